"""A private evaluation: what is refused, what is charged, and what is told."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.evaluation import private as private_evaluation
from dpfc_cli.evaluation.evaluate import evaluate, evaluate_privately
from dpfc_cli.evaluation.private import PrivateEvaluation, fraction
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import LEDGER_DIGESTS
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.caps import left, set_cap
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.populations import register, set_population
from dpfc_cli.privacy import curator as curators
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.lattice import MOST_BITS
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.training.charge import pay
from dpfc_cli.training.train import train
from dpfc_cli.verification import verify
from tests.support import blobs, drawn_sigmas
from tests.training.requests import account, charges, ledger, states

N, D, M = 300, 4, 7
CLASSES = tuple("abcdefg")


# The way of an evaluation


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """300 training records and 300 test records of seven classes; of the test records 20 have no label."""
    monkeypatch.chdir(tmp_path)
    x, y = blobs(2 * N, D, M)
    np.savez("raw.npz", train_x=x[:N], train_y=y[:N], test_x=x[N:], test_y=y[N:])
    made = import_features("raw.npz", classes=CLASSES, labels_per_record=1).features
    (shard,) = made.split("test").shards
    with h5py.File(made.folder / shard.file, "r+") as file:
        file["labels"][-20:] = -1
    told = (made.folder / MANIFEST).read_text()
    (made.folder / MANIFEST).write_text(told.replace(shard.sha256, sha256_of(made.folder / shard.file)))
    found = FeatureSet(made.folder)
    ledger_path(found.folder).unlink()
    shutil.rmtree(ledger_path(found.folder).with_name(LEDGER_DIGESTS))
    register(found.folder, found.folder, found.manifest, None)
    return found


@pytest.fixture
def head(features: FeatureSet) -> Head:
    return train(features, epsilon=8.0, method="dp-ls").head


def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_evaluation, "SystemBits", lambda: SeededBits(1))


@pytest.mark.parametrize("epsilon", [1.0, 50.0])
def test_the_noise_that_is_drawn_is_what_is_charged(
    features: FeatureSet, head: Head, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = drawn_sigmas(monkeypatch)
    found = evaluate_privately(head, features, epsilon=epsilon, delta=1e-6, by="me", purpose="paper")
    row = charges(features)[-1]
    sigmas = [s / 4**MOST_BITS for s in drawn]
    assert sigmas == pytest.approx([r["sigma"] for r in row.releases for _ in range(r["times"])], rel=1e-9)
    assert math.fsum(1 / s**2 for s in sigmas) == pytest.approx(row.mu**2, rel=1e-9)  # type: ignore[operator]
    assert (row.epsilon, row.delta, row.claim, row.n) == (epsilon, 1e-6, "private", N)
    assert epsilon_for(row.mu or 0, 1e-6) == pytest.approx(epsilon, rel=1e-6)
    assert (row.id, row.method, row.set, row.split) == (found.charge, "evaluation", features.manifest.id, "test")
    assert (row.head, row.digest, row.by, row.purpose) == (found.head, found.head_sha256, "me", "paper")
    assert (states(features)[-1], ledger(features).written(found.sha256)) == ("written", [row])
    assert [len(r["shape"]) and r["shape"][1] for r in row.releases] == ([3] if epsilon == 1 else [3, 2 * M])
    assert (found.per_class is None) == (epsilon == 1)


def test_intervals_are_told_of_the_noise_that_was_drawn(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, ...]] = []
    monkeypatch.setattr(private_evaluation, "fraction", lambda *given: (told.append(given), fraction(*given))[1])
    evaluate_privately(head, features, epsilon=50.0)
    total, each = (release["sigma"] for release in charges(features)[-1].releases for _ in range(release["times"]))
    # Two cells make the wrong records of the first figure, and the right ones of the second.
    expected = [(total, total * math.sqrt(2)), (total * math.sqrt(2), total), *[(each, each)] * M]
    assert [given[2:4] for given in told] == [pytest.approx(pair, rel=1e-3) for pair in expected]


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


def test_the_records_are_read_after_the_row_is_written(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    real = sums.exact_sum

    def watched(*given: Any) -> np.ndarray:
        seen.append(states(features))
        return real(*given)

    monkeypatch.setattr(sums, "exact_sum", watched)
    evaluate_privately(head, features, epsilon=1.0)
    assert seen == [["written", "charged"]]


@pytest.mark.parametrize("how", [KeyboardInterrupt, ValueError])
def test_an_evaluation_that_is_stopped_stays_charged_and_says_so(
    features: FeatureSet, head: Head, how: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: object) -> np.ndarray:
        raise how

    monkeypatch.setattr(curators, "draw_noise", stopped)
    with pytest.raises(how) as end:
        evaluate_privately(head, features, epsilon=1.0)
    assert "stays charged. No figure was released." in end.value.__notes__[0]
    assert states(features)[1:] == ["stopped"]


def test_one_charge_pays_for_the_records_of_its_split_once(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[Any] = []
    monkeypatch.setattr(private_evaluation, "pay", lambda *given: paid.append(pay(*given)) or paid[-1])
    evaluate_privately(head, features, epsilon=1.0)
    mechanism = paid[0].planned.mechanism
    assert isinstance(mechanism, Mechanism)
    with pytest.raises(RuntimeError, match="was used already"):
        Curator(mechanism, paid[0], SeededBits(0))
    blocks = replace(paid[0], unused=Lock()).opened()(N)
    assert next(blocks)[2].min() == -1, "those of the test split"


def test_what_cannot_be_evaluated_is_refused_before_the_charge(features: FeatureSet, head: Head) -> None:
    assert head.path is not None
    exposed = train(features, non_private=True, method="dp-ls", out="heads/plain.nonprivate.safetensors").head
    before = len(charges(features))
    refused: dict[str, Callable[[], object]] = {
        "larger than 1/n": lambda: evaluate_privately(head, features, epsilon=1.0, delta=0.5),
        "epsilon must be a number": lambda: evaluate_privately(head, features, epsilon="1"),  # type: ignore[arg-type]
        "100": lambda: evaluate_privately(head, features, epsilon=1000.0),
        "by must be a text": lambda: evaluate_privately(head, features, epsilon=1.0, by=""),
        "not read from a file": lambda: evaluate_privately(replace(head, path=None), features, epsilon=1.0),
        "no split 'other'": lambda: evaluate_privately(head, features, "other", epsilon=1.0),
        "trained on these records without a guarantee": lambda: evaluate_privately(
            exposed, features, "train", epsilon=1.0
        ),
    }
    for said, what in refused.items():
        with pytest.raises(UserError, match=said):
            what()
    assert len(charges(features)) == before
    # On other records a head without a guarantee may be evaluated.
    assert isinstance(evaluate_privately(exposed, features, epsilon=1.0), PrivateEvaluation)


def test_a_head_without_a_guarantee_is_evaluated_on_records_of_which_it_is_known_that_it_did_not_see_them(
    features: FeatureSet, tmp_path: Path
) -> None:
    """It was trained on another set: the test records of this one, and one more. No record is compared."""
    raw = np.load("raw.npz")
    x, y = raw["test_x"], raw["test_y"]
    np.savez("more.npz", train_x=np.concatenate([x, -x[:1]]), train_y=np.concatenate([y, y[:1]]))
    other = import_features("more.npz", tmp_path / "features" / "more", classes=CLASSES, labels_per_record=1).features
    exposed = train(other, non_private=True, method="dp-ls").head
    for named in ((), (features,), (features, other)):
        for each in named:
            set_population(each, "ward")
        with pytest.raises(UserError, match="without a guarantee") as refused:
            evaluate_privately(exposed, features, epsilon=1.0)
        assert refused.value.fields["parameter"] == "epsilon"
    assert len(charges(features)) == 1
    np.savez("third.npz", train_x=x + 9, train_y=y)
    third = import_features("third.npz", tmp_path / "features" / "third", classes=CLASSES, labels_per_record=1).features
    set_population(third, "others")
    exposed = train(third, non_private=True, method="dp-ls").head
    assert evaluate_privately(exposed, features, epsilon=1.0).epsilon == 1.0


# The account


def test_of_the_splits_of_a_set_the_one_counts_on_which_most_was_spent(features: FeatureSet, head: Head) -> None:
    """A record lies in one of them."""
    found = evaluate_privately(head, features, epsilon=2.0).spent
    assert found.epsilon(1e-5) == pytest.approx(8.0, rel=1e-6)
    assert found.exact
    found = evaluate_privately(head, features, epsilon=9.0).spent
    both = math.hypot(mu_for(2.0, 1e-5), mu_for(9.0, 1e-5))
    assert found.epsilon(1e-5) == pytest.approx(epsilon_for(both, 1e-5), rel=1e-6)
    assert found.exact
    again = evaluate_privately(head, features, "train", epsilon=8.0).spent
    assert again.epsilon(1e-5) == pytest.approx(epsilon_for(mu_for(8.0, 1e-5) * 2**0.5, 1e-5), rel=1e-6)


def test_a_card_counts_evaluations(features: FeatureSet, head: Head) -> None:
    """Those of the training split with the trainings, and those of another split where they cost more."""
    evaluate_privately(head, features, "train", epsilon=8.0)
    later = train(features, epsilon=1.0, method="dp-ls")
    standing = later.head.card["ledger"]
    assert (standing["trainings"], standing["private"], standing["unprotected"]) == (3, 3, 0)
    together = math.hypot(*(mu_for(each, 1e-5) for each in (8.0, 8.0, 1.0)))
    assert standing["epsilon"] == pytest.approx(epsilon_for(together, 1e-5), rel=1e-6)
    evaluate_privately(head, features, epsilon=20.0)
    later = train(features, epsilon=1.0, method="dp-ls")
    assert later.head.card["ledger"]["epsilon"] == pytest.approx(20.0, rel=1e-6)
    for path in (later.path, head.path or ""):
        assert verify(path, ledger=ledger_path(features.folder)).contradictions == []


def test_a_cap_holds_for_each_split(features: FeatureSet, head: Head) -> None:
    set_cap(features, 9.0)
    evaluate_privately(head, features, epsilon=8.0)
    with pytest.raises(UserError) as refused:
        evaluate_privately(head, features, epsilon=8.0)
    assert refused.value.code == "over-cap"
    fits = refused.value.fields["left"]
    assert isinstance(fits, float)
    after = evaluate_privately(head, features, epsilon=fits).spent
    remains = left(after, 1e-5, charges(features)[-1])
    assert remains is not None
    assert remains[0] < 0.1
    assert len(charges(features)) == 3
    with pytest.raises(UserError, match=r"More than epsilon = 8\.5"):
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
    return import_features(folder / "p.npz", folder / "p", classes=CLASSES, labels_per_record=1).features


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
    with pytest.raises(UserError, match="More than epsilon = 50"):
        set_cap(found, 50.0)
    assert account(found).unit == "person"


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
def test_a_cap_for_persons_holds_for_each_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held = persons(tmp_path, [3] * 40, [1.0] * 40)
    head = train(held, epsilon=2.0, method="dp-ls").head
    set_cap(held, 3.0)
    evaluate_privately(head, held, epsilon=2.0)
    for charged in (
        lambda: evaluate_privately(head, held, epsilon=2.5),
        lambda: train(held, epsilon=2.5, method="dp-ls"),
    ):
        with pytest.raises(UserError) as refused:
            charged()
        assert refused.value.code == "over-cap"
    later = train(held, epsilon=1.0, method="dp-ls")
    assert later.head.card["ledger"]["unit"] == account(held).unit == "person"
