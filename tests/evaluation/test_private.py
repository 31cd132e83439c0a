"""A private evaluation: what is released, what is refused and charged, and how sure its figures are.

Tests that draw noise take it from a seed, or hold it against exact distributions with a tail of 1e-9.
"""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from scipy import stats

from dpfc_cli.errors import UserError
from dpfc_cli.evaluation import private as private_evaluation
from dpfc_cli.evaluation.evaluate import evaluate, evaluate_privately
from dpfc_cli.evaluation.private import PrivateEvaluation, fraction, prepare
from dpfc_cli.evaluation.request import PrivateScoring
from dpfc_cli.extraction.arrays import Source, in_memory, make_of
from dpfc_cli.extraction.request import Making
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.metrics import Z, wilson
from dpfc_cli.ledger.caps import left, set_cap
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.populations import register, set_population
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy import curator as curators
from dpfc_cli.privacy import forms, sums
from dpfc_cli.privacy.accounting import Privacy, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.standings import Standings
from dpfc_cli.structs import encoded, fields_of
from dpfc_cli.training import charged as charged_module
from dpfc_cli.training.charged import Charged
from dpfc_cli.training.machine import working_bytes
from dpfc_cli.training.train import train
from dpfc_cli.verification import verify
from tests import instead
from tests.hostile import a_card
from tests.noise import FALSE_ALARM
from tests.support import blobs, drawn_sigmas, feature_set, refuses, replace
from tests.training.requests import account, charges, ledger, states

N, D, M = 300, 4, 7
CLASSES = tuple("gbadfce")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 300 training records and 300 test records of seven classes, and a head; of the test records 20 have
    no label.
    """
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        x, y = blobs(2 * N, D, M)
        np.savez("raw.npz", train_x=x[:N], train_y=y[:N], test_x=x[N:], test_y=y[N:])
        made = feature_set("raw.npz", Path("features/set"), classes=CLASSES, labels_per_record=1)
        (*_, shard) = made.split("test").shards
        with h5py.File(made.folder / shard.file, "r+") as file:
            file["labels"][-20:] = -1
        told = (made.folder / MANIFEST).read_text()
        (made.folder / MANIFEST).write_text(told.replace(shard.sha256, sha256_of(made.folder / shard.file)))
        found = FeatureSet(made.folder)
        ledger_path(found.folder).unlink()
        begun = found.folder.rename("features/set.partial")
        register(found.folder, found.manifest, None)
        begun.rename(found.folder)
        train(found, epsilon=8.0, method="dp-ls", out="heads/h.safetensors")
    return folder


@pytest.fixture
def features(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return FeatureSet(Path("features/set"))


@pytest.fixture
def head(features: FeatureSet) -> Head:
    return Head.load("heads/h.safetensors")


def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.bits(monkeypatch, lambda: SeededBits(1))


# What is planned


def planned(n: int, m: int, epsilon: float, k: int = 1) -> tuple[bool, bool]:
    """Whether the best five are released, and the figures per class."""
    facts, privacy = Facts(n=n, m=m, d=2, k=k), Privacy(epsilon=epsilon, delta=1e-6)
    head = Head(chain=(), weight=np.ones((2, m)), bias=np.zeros(m), card=a_card())
    asked, plan = private_evaluation._planned(head, facts, privacy)
    assert plan.noise.sigmas == pytest.approx([math.sqrt(len(asked)) / mu_for(epsilon, 1e-6)] * len(asked))
    found = [query for query in asked if isinstance(query, Outcomes)]
    assert [query.by_class for query in found] == [False, True][: len(asked)]
    return found[0].best > 1, len(asked) == 2


@pytest.mark.parametrize(("m", "k"), [(2, 1), (5, 1), (6, 1), (6, 4)])
def test_figures_are_released_if_their_noise_is_not_larger_than_the_error_by_chance(m: int, k: int) -> None:
    epsilon = 0.05
    one = 4 / mu_for(epsilon, 1e-6) ** 2
    assert planned(math.ceil(one), m, epsilon, k) == (m > 5, False)
    assert planned(math.ceil(one) - 1, m, epsilon, k) == (False, False)
    # Half of the budget each. One record has k classes, and a class has n/m of the records.
    each = 2 * k * m * one
    assert planned(math.ceil(each), m, epsilon, k) == (m > 5, True)
    assert planned(math.ceil(each) - 1, m, epsilon, k) == (m > 5, False)


def test_more_classes_than_a_release_can_have_are_not_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_evaluation, "LONGEST", 6)
    assert [planned(10**6, m, 50.0)[1] for m in (2, 3, 4)] == [True, True, False]


def test_accuracies_and_areas_get_half_of_the_budget_each() -> None:
    facts, privacy = Facts(n=10**5, m=6, d=2), Privacy(epsilon=1.0, delta=1e-6)
    head = Head(chain=(), weight=np.ones((2, 6)), bias=np.zeros(6), card=a_card("abcdef"))
    mu = mu_for(1.0, 1e-6)
    for figures, shares in {"accuracy": (0.5, 0.5), "auroc": (1.0,), "both": (0.25, 0.25, 0.5)}.items():
        asked, plan = private_evaluation._planned(head, facts, privacy, figures)
        assert [type(query) is Standings for query in asked] == [False] * (len(asked) - 1) + [figures != "accuracy"]
        assert plan.noise.sigmas == pytest.approx([1 / mu / math.sqrt(share) for share in shares])
    # What pays is what pays with half of it.
    few = math.ceil(2 * 6 / mu**2 * 4)
    for n, more in ((few, 0), (2 * few, 1)):
        asked, _ = private_evaluation._planned(head, replace(facts, n=n), privacy, "both")
        assert len(asked) == 2 + more
    many = Head(chain=(), weight=np.ones((2, 257)), bias=np.zeros(257), card=a_card())
    with refuses("unsupported", parameter="figures"):
        private_evaluation._planned(many, replace(facts, m=257), privacy, "auroc")


# What is refused


def test_what_can_be_refused_is_refused_before_the_charge_and_before_a_record_is_read(
    features: FeatureSet, head: Head, room: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(charges(features))

    def refused(code: str = "", of: Head = head, split: str = "test", epsilon: Any = 1.0, **given: Any) -> UserError:
        with monkeypatch.context() as patched:
            patched.setattr(FeatureSet, "stream", lambda *_: pytest.fail("records were read"))
            with pytest.raises(UserError) as error:
                evaluate_privately(of, features, split, epsilon=epsilon, **given)
        assert len(charges(features)) == before
        assert code in (error.value.code, error.value.fields.get("parameter")), error.value
        return error.value

    refused("bad-value", epsilon=1000.0)
    refused("epsilon", epsilon=1e-4)
    for wrong in ({"epsilon": "1"}, {"delta": "1"}, {"by": ""}, {"purpose": ""}):
        refused(next(iter(wrong)), **wrong)  # type: ignore[arg-type]
    refused("epsilon", epsilon=0.05, figures="auroc")
    refused("figures", figures="all")
    refused("threshold", threshold=1.0)
    assert "add" not in refused("delta", delta=1.01 / N).remedy, "an evaluation has no option for it"
    refused("missing", replace(head, path=None))
    refused("missing", split="other")
    set_cap(features, 9.0)
    refused("over-cap", epsilon=9.1)
    needed = working_bytes(facts_of(features, split="test"))
    room(needed - 1)
    assert refused("memory").fields == {"needed": needed, "allowed": needed - 1}
    room(needed)
    prepare(PrivateScoring(head, features, epsilon=1.0))
    room(16e9)
    for place, name in ((private_evaluation, "check_devices"), (private_evaluation, "lattice_of"), (forms, "check")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, lambda *given: (_ for _ in ()).throw(UserError("No.", "Never.", code="lost")))
            refused("lost")
    # Only on other records a head without a guarantee may be evaluated.
    set_cap(features, None, note="the end")
    exposed = train(features, non_private=True, method="dp-ls", out="heads/plain.nonprivate.safetensors").head
    before = len(charges(features))
    refused("epsilon", exposed, "train")
    assert isinstance(evaluate_privately(exposed, features, epsilon=1.0), PrivateEvaluation)


def test_a_head_without_a_guarantee_is_evaluated_on_records_of_which_it_is_known_that_it_did_not_see_them(
    features: FeatureSet, tmp_path: Path
) -> None:
    """It was trained on another set: the test records of this one, and one more. No record is compared."""
    raw = np.load("raw.npz")
    x, y = raw["test_x"], raw["test_y"]
    np.savez("more.npz", train_x=np.concatenate([x, -x[:1]]), train_y=np.concatenate([y, y[:1]]))
    other = feature_set("more.npz", tmp_path / "features" / "more", classes=CLASSES, labels_per_record=1)
    exposed = train(other, non_private=True, method="dp-ls").head
    for named in ((), (features,), (features, other)):
        for each in named:
            set_population(each, "ward")
        with refuses("conflict", parameter="epsilon"):
            evaluate_privately(exposed, features, epsilon=1.0)
    np.savez("third.npz", train_x=x + 9, train_y=y)
    third = feature_set("third.npz", tmp_path / "features" / "third", classes=CLASSES, labels_per_record=1)
    set_population(third, "others")
    exposed = train(third, non_private=True, method="dp-ls").head
    assert evaluate_privately(exposed, features, epsilon=1.0).epsilon == 1.0


def test_a_head_leaks_if_its_card_says_that_it_saw_the_records() -> None:
    """Also where no ledger knows it: the set, the split and the number of records are the same."""
    known_set: dict[str, Any] = {"name": "set", "manifest": SimpleNamespace(id="0" * 32)}
    features: Any = SimpleNamespace(**known_set, split=lambda name: SimpleNamespace(n=200))

    PRIVACY = {"private": Privacy(epsilon=1.0), "research": Privacy(epsilon=1.0, seed=3), "non-private": Privacy()}

    def leaks(claim: str, name: str = "set", split: str = "test", **facts: int) -> bool:
        card = a_card(privacy=PRIVACY[claim], facts={"n": 200, **facts}, name=name, split=split)
        head = Head(chain=(), weight=np.eye(2), bias=np.zeros(2), card=card)
        try:
            private_evaluation._refuse_leaking(head, "d", features, "test", Ledger(path=Path("ledger.sqlite")))
        except UserError:
            return True
        return False

    assert not leaks("private")
    for claim in ("research", "non-private"):
        assert leaks(claim)
        assert leaks(claim, n=70, records=200)
        assert not leaks(claim, records=300)
        assert not leaks(claim, n=199)
        assert not leaks(claim, split="train")
        assert not leaks(claim, name="other")


def test_how_sure_the_figures_will_be_is_said_before_the_charge(features: FeatureSet, head: Head) -> None:
    for epsilon, ends in ((0.1, "34–66 %"), (50.0, "44–56 %")):
        assert re.findall("[0-9]+–[0-9]+ %", prepare(PrivateScoring(head, features, epsilon=epsilon)).sure)[0] == ends
    with refuses("bad-value", parameter="epsilon"):
        evaluate_privately(head, features, epsilon=0.01)
    assert [each.method for each in charges(features)] == ["dp-ls"]


# What is charged and told


@pytest.mark.parametrize("epsilon", [1.0, 50.0])
def test_the_noise_that_is_drawn_is_what_is_charged_and_told(
    features: FeatureSet, head: Head, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, told, heard = drawn_sigmas(monkeypatch), list[tuple[float, ...]](), list[tuple[str, int, int | None]]()
    monkeypatch.setattr(private_evaluation, "fraction", lambda *given: (told.append(given), fraction(*given))[1])
    given: dict[str, Any] = {"delta": 1e-6, "by": "me", "purpose": "paper"}
    found = evaluate_privately(head, features, epsilon=epsilon, **given, progress=lambda *far: heard.append(far))
    row = charges(features)[-1]
    sigmas = [s / 4**MOST_BITS for s in drawn]
    assert sigmas == pytest.approx([r.sigma for r in row.releases for _ in range(r.times)], rel=1e-9)
    assert math.fsum(1 / s**2 for s in sigmas) == pytest.approx(row.mu**2, rel=1e-9)  # type: ignore[operator]
    assert (row.epsilon, row.delta, row.claim, row.n) == (epsilon, 1e-6, "private", N)
    assert epsilon_for(row.mu or 0, 1e-6) == pytest.approx(epsilon, rel=1e-6)
    assert (row.id, row.method, row.set, row.split) == (found.charge, "evaluation", features.manifest.id, "test")
    assert (row.head, row.digest, row.by, row.purpose) == (found.head, found.head_sha256, "me", "paper")
    assert (states(features)[-1], ledger(features).written(found.sha256)) == ("written", [row])
    assert [r.shape[1] for r in row.releases] == ([3] if epsilon == 1 else [3, 2 * M])
    assert (found.per_class is None) == (epsilon == 1)
    # Two cells make the wrong records of the first figure, and the right ones of the second.
    pairs = [(sigmas[0], sigmas[0] * math.sqrt(2)), (sigmas[0] * math.sqrt(2), sigmas[0]), *[(sigmas[-1],) * 2] * M]
    # Before the charge it was asked what can come of it.
    del told[:2]
    assert [given[2:4] for given in told] == [pytest.approx(pair, rel=1e-3) for pair in pairs[: len(told)]]
    assert heard == sorted(heard, key=lambda far: far[1])
    assert {(stage, total) for stage, _, total in heard} == {("Evaluating", heard[-1][1])}
    assert found.warnings == ()


def test_a_record_of_several_labels_moves_several_counts_and_the_noise_is_told_so() -> None:
    head = Head(chain=(), weight=np.ones((2, 6)), bias=np.zeros(6), card=a_card("abcdef"))
    facts, privacy = Facts(n=10**6, m=6, d=2, k=4), Privacy(epsilon=50.0, delta=1e-6)
    asked, plan = private_evaluation._planned(head, facts, privacy)
    silent = SimpleNamespace(release=lambda query: np.zeros((1, 2)))
    paid: Any = SimpleNamespace(planned=plan, oracle=lambda told, together: silent)
    (_, total), (_, by_class) = private_evaluation._answers(paid, asked, None)
    first, second = plan.noise.sigmas
    assert total == pytest.approx(first, rel=1e-3)
    # One record moves the counts of its four classes by 1 each.
    assert by_class == pytest.approx(2 * second, rel=1e-3)


def test_with_little_noise_the_figures_are_those_of_an_exact_evaluation(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded(monkeypatch)
    exact, found = evaluate(head, features), evaluate_privately(head, features, epsilon=100.0)
    assert found.per_class is not None
    assert found.top5 is not None
    assert exact.top5 is not None
    assert exact.n == N - 20
    # At ε = 100 a count has noise of 0.12; at half of the budget of 0.17. Five times that is 0.9 of one record.
    assert abs(found.n - exact.n) <= 1
    for value, true in ((found.top1, exact.top1), (found.top5, exact.top5)):
        assert value == pytest.approx(true, abs=1.5 / exact.n)
    for mine, other in zip(found.per_class, exact.per_class, strict=True):
        assert mine.name == other.name
        assert mine.top1 == pytest.approx(other.top1, abs=1.5 / other.n)
        assert abs(mine.n - other.n) <= 1
        assert mine.interval == pytest.approx(other.interval, abs=0.02)
    assert found.interval == pytest.approx(exact.interval, abs=0.005)


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_with_little_noise_the_areas_are_those_of_an_exact_evaluation(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch, threshold: float | None
) -> None:
    seeded(monkeypatch)
    exact = evaluate(head, features, threshold=threshold)
    found = evaluate_privately(head, features, epsilon=100.0, figures="auroc", threshold=threshold)
    assert (found.top1, found.interval, found.per_class, found.threshold) == (None, (0, 1), None, threshold)
    assert abs(found.n - exact.n) <= 1
    assert found.told()["AUROC"].startswith("0.")
    pairs = [(found.auroc, exact.auroc), (found.balanced_accuracy, exact.balanced_accuracy if threshold else None)]
    for mine, other in zip(found.ranks or (), exact.per_class, strict=True):
        assert (mine.name, abs(mine.n - other.n) <= 2) == (other.name, True)
        pairs.append((mine.auroc, other.auroc))
        rates = (other.sensitivity, other.specificity) if threshold else (None, None)
        pairs += zip((mine.sensitivity, mine.specificity), rates, strict=True)
    for noisy, plain in pairs:
        assert (noisy is None) is (plain is None)
        if noisy is not None and plain is not None:
            assert noisy.value == pytest.approx(plain.value, abs=0.06)
            assert noisy.noise is not None
            assert noisy.noise < 0.03
    # The same ε for other figures is another evaluation, and both are kept.
    both = evaluate_privately(head, features, epsilon=100.0, figures="both")
    assert both.top1 == pytest.approx(exact.top1, abs=0.02)
    assert both.auroc is not None
    assert exact.auroc is not None
    assert both.auroc.value == pytest.approx(exact.auroc.value, abs=0.06)
    assert both.balanced_accuracy is not None
    assert ledger(features).released_of(found.head_sha256) == [found.figures, both.figures]
    with refuses("exists"):
        evaluate_privately(head, features, epsilon=100.0, figures="both")


def test_one_charge_pays_for_the_records_of_its_split_once(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid, oracle = list[Charged](), Charged.oracle
    seen, real = list[list[str]](), sums.exact_sum
    monkeypatch.setattr(
        Charged, "oracle", lambda self, *given, **more: paid.append(self) or oracle(self, *given, **more)
    )
    instead.exact_sum(monkeypatch, lambda *given: (seen.append(states(features)), real(*given))[1])
    evaluate_privately(head, features, epsilon=1.0)
    assert seen == [["written", "charged"]], "the records are read after the row is written"
    with pytest.raises(RuntimeError, match="was used already"):
        oracle(paid[0])
    blocks = replace(paid[0], _unused=Lock()).opened()(N)
    assert next(blocks)[2].min() == -1, "those of the test split"


def test_of_equal_evaluations_that_were_checked_in_the_same_moment_one_is_charged(
    features: FeatureSet, head: Head
) -> None:
    wanted = PrivateScoring(head, features, epsilon=1.0)
    first, second = prepare(wanted), prepare(replace(wanted, by="you", purpose="another"))
    private_evaluation.release(first)
    with refuses("exists"):
        private_evaluation.release(second)
    assert states(features) == ["written", "written"]


def test_figures_are_told_even_if_the_ledger_cannot_say_so(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead.settle(monkeypatch, lambda *_: UserError("The disk is full.", "Make room."))
    found = evaluate_privately(head, features, epsilon=50.0)
    assert found.top1 is not None
    assert "does not say that the figures were released. The disk is full." in found.warnings[-1]
    assert len(found.spent.charges) == 2


def test_a_note_says_whether_an_evaluation_that_stopped_is_charged(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = UserError("No.", "Never.")

    def stop_of(place: object, name: str, how: BaseException) -> list[str]:
        def stopped(*given: object) -> None:
            raise how

        with monkeypatch.context() as patched:
            patched.setattr(place, name, stopped)
            with pytest.raises(type(how)) as stop:
                evaluate_privately(head, features, epsilon=1.0, again=True)
        return getattr(stop.value, "__notes__", [])

    assert stop_of(charged_module, "append", refused) == [], "it says itself what was charged"
    (note,) = stop_of(charged_module, "append", KeyboardInterrupt())
    assert "stopped during the charge: 'dpfc budget' says whether it is charged. No figure" in note
    assert len(charges(features)) == 1
    for how in (refused, KeyboardInterrupt(), ValueError()):
        (note,) = stop_of(curators, "draw_noise", how)
        assert "stays charged. No figure was released." in note
    assert states(features)[1:] == ["stopped"] * 3


# What the counts say


def test_figures_are_fractions_of_the_counts(features: FeatureSet, head: Head) -> None:
    ready = prepare(PrivateScoring(head, features, epsilon=1.0))

    def told(*answers: tuple[list[float], float]) -> PrivateEvaluation:
        """The figures of these counts with noise of these standard deviations."""
        found = [np.stack([counts, np.full(len(counts), noise)]) for counts, noise in answers]
        return private_evaluation._figures(ready, found, ready.book.account_of(features.manifest.id))

    found = told(([120.0, 30.0], 3.0))
    assert (found.n, found.top1, found.interval, found.noise) == (150, *fraction(120.0, 30.0, 3.0, 3.0, N))
    assert (found.top5, found.top5_interval, found.top5_noise, found.per_class) == (None,) * 4
    # Right at first, among the five, and wrong.
    found = told(([120.0, 20.0, 10.0], 3.0))
    noisier = 3.0 * math.sqrt(2)
    assert (found.top1, found.interval, found.noise) == fraction(120.0, 30.0, 3.0, noisier, N)
    assert (found.top5, found.top5_interval, found.top5_noise) == fraction(140.0, 10.0, noisier, 3.0, N)
    assert [told(([each, -40.0], 3.0)).n for each in (30.0, 40.4, 400.0)] == [0, 0, N]
    # Classes have counts of their own.
    right, wrong = [50.0 + j for j in range(M)], [5.0 + 2 * j for j in range(M)]
    found = told(([120.0, 18.0], 3.0), ([*right, *wrong], 4.0))
    assert found.per_class is not None
    for each, name, h, w in zip(found.per_class, CLASSES, right, wrong, strict=True):
        assert (each.name, each.n) == (name, h + w)
        assert (each.top1, each.interval, each.noise) == fraction(h, w, 4.0, 4.0, N)
    # The digest is of everything that was released and of nothing else.
    assert set(fields_of(found.figures)) == {*fields_of(found)} - {"warnings", "spent"}
    assert set(encoded(found.figures)["per_class"][0]) == {"class", "n", "top1", "interval", "noise"}
    assert replace(found, warnings=("more",)).sha256 == found.sha256 != replace(found, n=1).sha256


@pytest.mark.parametrize(
    ("right", "wrong", "a", "b", "n"),
    [
        (120.0, 30.0, 3.0, 5.0, 200), (120.0, 30.0, 5.0, 3.0, 140), (60.0, -3.0, 5.0, 5.0, 57),
        (-2.0, 90.0, 4.0, 6.0, 100), (0.5, 0.3, 0.1, 0.2, 100), (1e4, 2e3, 40.0, 0.0, 10**6), (9.0, 1.0, 0.0, 0.0, 10),
        (30.0, 0.0, 0.0, 16.25, 100),
    ],
)  # fmt: skip
def test_an_interval_has_the_fractions_that_the_counts_do_not_exclude(
    right: float, wrong: float, a: float, b: float, n: int
) -> None:
    value, (low, high), noise = fraction(right, wrong, a, b, n)
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    size = min(max(right + wrong, 1.0), n)
    assert value == right / (right + wrong)
    assert noise == pytest.approx(math.hypot((1 - value) * a, value * b) / (right + wrong))
    p = np.linspace(0, 1, 200_001)
    variance = size * p * (1 - p) + (1 - p) ** 2 * a**2 + p**2 * b**2
    inside = p[((1 - p) * right - p * wrong) ** 2 <= Z**2 * variance * (1 + 1e-12)]
    assert (low, high) == pytest.approx((inside[0], inside[-1]), abs=1e-5)


def covered(n: int, p: float, a: float, b: float) -> int:
    """How often the interval has p, if the head is right with probability p."""
    rng = np.random.default_rng([n, int(1000 * p), int(a)])
    right = rng.binomial(n, p, RUNS)
    counts = zip(right + rng.normal(0, a, RUNS), n - right + rng.normal(0, b, RUNS), strict=True)
    found = (fraction(float(h), float(w), a, b, n)[1] for h, w in counts)
    return sum(low <= p <= high for low, high in found)


RUNS = 2000
ENOUGH = int(stats.binom.ppf(FALSE_ALARM, RUNS, 0.94))
"""An interval that covers 94 % falls below this with a probability of 1e-9. It is 88.6 % of the runs."""


@pytest.mark.parametrize("n", [300, 10_000])
@pytest.mark.parametrize("p", [0.5, 0.99])
def test_an_interval_covers_the_choice_of_the_records_and_the_noise(n: int, p: float) -> None:
    for epsilon in (0.1, 1.0):
        noise = 1 / mu_for(epsilon, 1e-5)
        for wrong in (1.0, math.sqrt(2)):
            assert covered(n, p, noise, wrong * noise) >= ENOUGH


def test_without_noise_it_is_the_interval_of_an_exact_evaluation() -> None:
    for hits, n in ((0, 10), (7, 10), (10, 10), (9312, 10_000)):
        value, interval, noise = fraction(hits, n - hits, 0.0, 0.0, n)
        assert (value, noise) == (hits / n, 0)
        assert interval == pytest.approx(wilson(hits, n), abs=1e-12)
    # Where there is nothing but noise there is no figure.
    assert fraction(-3.0, -0.5, 5.0, 5.0, 40) == (None, (0.0, 1.0), None)
    assert fraction(3.0, 4.0, 50.0, 50.0, 40)[1] == (0.0, 1.0)
    low, high = fraction(60.0, -3.0, 5.0, 5.0, 57)[1]
    assert 0.5 < low < high == 1


# Subgroups


def test_figures_of_subgroups_are_those_of_their_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact ones, and released ones with little noise; in the order of persons, too."""
    monkeypatch.chdir(tmp_path)
    seeded(monkeypatch)
    x, y = blobs(400, D, 3, apart=2.5)
    sex = np.arange(400)[:, None] // 5 % 3 - 1
    splits = {
        split: replace(in_memory(x[part], y[part]), subgroups=sex[part].astype(np.int32))
        for split, part in (("train", slice(100)), ("test", slice(100, 400)))
    }
    source = Source(path=Path("raw"), classes=("a", "b", "c"), k=1)
    made, _ = make_of(splits, source, Path("features/sexed"), Making(subgroups="sex=f,m", progress=None))
    head = train(made, epsilon=8.0, method="dp-ls", out="heads/s.safetensors").head
    exact = evaluate(head, made, subgroups="sex")
    assert exact.subgroups is not None
    found = evaluate_privately(head, made, epsilon=100.0, figures="both", subgroups="sex")
    assert (found.per_class, [each.column for each in found.subgroups or ()]) == (None, ["sex", "sex"])
    right = head.scores(x[100:]).argmax(axis=1) == y[100:]
    for i, each in enumerate(found.subgroups or ()):
        own = sex[100:, 0] == i
        plain = exact.subgroups["fm"[i]]
        assert (each.value, plain.n, plain.top1) == ("fm"[i], own.sum(), right[own].mean())
        assert abs(each.n - plain.n) <= 2
        assert each.top1 == pytest.approx(plain.top1, abs=0.02)
        assert each.auroc is not None
        assert plain.auroc is not None
        assert each.auroc.value == pytest.approx(plain.auroc.value, abs=0.05)
    known = sex[100:, 0] >= 0
    assert abs(found.n - known.sum()) <= 3
    assert found.top1 == pytest.approx(right[known].mean(), abs=0.02)
    assert ledger(made).released_of(found.head_sha256) == [found.figures]
    for call in (evaluate, lambda *given, **named: evaluate_privately(*given, epsilon=1.0, **named)):
        with refuses("missing", parameter="subgroups"):
            call(head, made, subgroups="site")
    # A set that is made again with other subgroups is another one.
    with refuses("exists"):
        make_of(splits, source, Path("features/sexed"), Making(subgroups="sex=m,f", progress=None))
    with refuses("conflict", parameter="subgroups"):
        plainly = {split: replace(each, subgroups=None) for split, each in splits.items()}
        make_of(plainly, source, Path("features/other"), Making(subgroups="sex=m,f", progress=None))


# The account


def test_a_card_counts_evaluations(features: FeatureSet, head: Head) -> None:
    """Those of the training split with the trainings, and those of another split where they cost more."""
    evaluate_privately(head, features, "train", epsilon=8.0)
    later = train(features, epsilon=1.0, method="dp-ls")
    standing = later.head.card.ledger
    assert standing is not None
    assert (standing.private, standing.unprotected) == (3, 0)
    together = math.hypot(*(mu_for(each, 1e-5) for each in (8.0, 8.0, 1.0)))
    assert standing.epsilon == pytest.approx(epsilon_for(together, 1e-5), rel=1e-6)
    evaluate_privately(head, features, epsilon=20.0)
    later = train(features, epsilon=1.0, method="dp-ls", again=True)
    assert later.head.card.ledger is not None
    assert later.head.card.ledger.epsilon == pytest.approx(20.0, rel=1e-6)
    for path in (later.path, head.path or ""):
        assert verify(path, ledger=ledger_path(features.folder)).contradictions == []


def test_a_cap_holds_for_each_split(features: FeatureSet, head: Head) -> None:
    set_cap(features, 9.0)
    evaluate_privately(head, features, epsilon=8.0)
    with refuses("over-cap") as refused:
        evaluate_privately(head, features, epsilon=8.0)
    fits = refused.value.fields["left"]
    assert isinstance(fits, float)
    after = evaluate_privately(head, features, epsilon=fits).spent
    remains = left(after, 1e-5, charges(features)[-1])
    assert remains is not None
    assert remains[0] < 0.1
    assert len(charges(features)) == 3
    with refuses("over-cap", parameter="cap"):
        set_cap(features, 8.5)


# Persons


def persons(folder: Path, sizes: list[int], right: list[float]) -> FeatureSet:
    """A test split in which the given fraction of each person's pictures is where the head expects it."""
    y = np.arange(sum(sizes)) % M
    hit = np.concatenate([np.arange(size) < round(size * part) for size, part in zip(sizes, right, strict=True)])
    x = np.eye(M, dtype=np.float32)[np.where(hit, y, (y + 1) % M)]
    groups = np.repeat(np.arange(len(sizes)), sizes)
    own: dict[str, Any] = {"train_x": np.eye(M, dtype=np.float32), "train_y": np.arange(M)}
    np.savez(folder / "p.npz", test_x=x, test_y=y, test_groups=groups, train_groups=~np.arange(M), **own)
    return feature_set(folder / "p.npz", folder / "p", classes=CLASSES, labels_per_record=1)


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
def test_each_person_has_the_same_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with many pictures that are all wrong does not pull the figure down further than one of a hundred."""
    monkeypatch.chdir(tmp_path)
    seeded(monkeypatch)
    found = persons(tmp_path, [1] * 60 + [4] * 39 + [500], [1.0] * 60 + [0.5] * 39 + [0.0])
    made = train(found, epsilon=8.0, method="dp-ls", out="heads/p.safetensors").head
    ideal = replace(made, chain=(), weight=np.eye(M), bias=np.zeros(M))
    assert evaluate(ideal, found).top1 < 0.2
    result = evaluate_privately(ideal, found, epsilon=100.0)
    assert (result.unit, result.n) == ("person", 100)
    assert result.top1 == pytest.approx((60 + 39 / 2) / 100, abs=0.02)
    row = charges(found)[-1]
    assert (row.unit, row.n, row.split) == ("person", 100, "test")
    # A cap for the persons of one split is one for those of the other.
    with refuses("over-cap", parameter="cap"):
        set_cap(found, 50.0)
    assert account(found).unit == "person"
