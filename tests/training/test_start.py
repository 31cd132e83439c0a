"""Public starts: which files are class vectors, how they are matched to classes, and what is refused."""

import json
import math
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfc_cli.errors import UserError
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training import start
from dpfc_cli.training.account import account_of
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, facts_of
from dpfc_cli.training.run import Trained
from dpfc_cli.training.train import train
from dpfc_cli.training.warn import warnings_of
from dpfc_cli.trust.card import check
from dpfc_cli.trust.claims import epsilon_of
from dpfc_cli.trust.statement import SAMPLED
from tests.support import blobs

CLASSES = ("red fox", "Wolf", "otter")
VECTORS = np.arange(1, 19, dtype=np.float32).reshape(3, 6) ** 1.5
NAMES = ("otter", "RED_FOX", "badger")


def made(folder: Path, name: str, seed: int, classes: tuple[str, ...] = CLASSES) -> FeatureSet:
    x, y = blobs(120, 6, 3, seed=seed)
    np.savez(folder / f"{name}.npz", train_x=x, train_y=y)
    return import_features(folder / f"{name}.npz", folder / "features" / name, classes=classes).features


@pytest.fixture(autouse=True)
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path / "heads"))


@pytest.fixture
def private(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "private", 0)


def read(private: FeatureSet, path: Path | str) -> Any:
    return start.vectors_of(private, path, account_of(ledger_path(private.folder)))[0]


def npz(path: Path, vectors: np.ndarray = VECTORS, classes: tuple[str, ...] = NAMES) -> Path:
    np.savez(path, vectors=vectors, classes=np.array(classes))
    return path


def safetensors(path: Path) -> Path:
    save_file({"vectors": VECTORS}, path, {"classes": json.dumps(NAMES)})
    return path


@pytest.mark.parametrize(("write", "name"), [(npz, "v.npz"), (safetensors, "v.safetensors")])
def test_vectors_are_matched_to_classes_by_name(
    tmp_path: Path, private: FeatureSet, write: Callable[[Path], Path], name: str
) -> None:
    found = read(private, write(tmp_path / name))
    expected = np.stack([VECTORS[1] / VECTORS[1].max(), np.zeros(6), VECTORS[0] / VECTORS[0].max()], axis=1)
    assert np.allclose(found.vectors, expected)
    assert (found.origin["name"], found.origin["classes"], found.origin["without"]) == (name, 2, ["Wolf"])


TEXT = {"source": "text", "model": "clip-b16", "prompts": ["a {}.", "the {}", "{}"], "weights": {"id": "\x1b[2J"}}
ROWS = {"source": "classifier", "model": "vit-ti16", "classifier": 1000, "rows": {"\x1b": [1]}}


@pytest.mark.parametrize(
    ("origin", "made"),
    [
        (TEXT, {"source": "text", "model": "clip-b16", "count": 3}),
        (ROWS, {"source": "classifier", "model": "vit-ti16", "count": 1000}),
        ({**TEXT, "prompts": ["{}"]}, {"source": "text", "model": "clip-b16", "count": 1}),
        ({**ROWS, "classifier": 1}, {"source": "classifier", "model": "vit-ti16", "count": 1}),
        ({**TEXT, "model": "\x1b[2J"}, None),
        ({**TEXT, "source": "x" * 10_000}, None),
        ({**TEXT, "prompts": []}, None),
        ({**TEXT, "prompts": 3}, None),
        ({**ROWS, "classifier": -1}, None),
        ({**ROWS, "classifier": 1e300}, None),
        ({"source": "text", "model": "clip-b16"}, None),
        ([], None),
        ("{", None),
    ],
)
def test_of_what_a_file_says_of_itself_only_words_that_are_known_and_numbers_are_taken(
    tmp_path: Path, private: FeatureSet, origin: Any, made: dict[str, Any] | None
) -> None:
    said = origin if isinstance(origin, str) else json.dumps(origin)
    save_file({"vectors": VECTORS}, tmp_path / "v.safetensors", {"classes": json.dumps(NAMES), "origin": said})
    assert read(private, tmp_path / "v.safetensors").origin.get("made") == made


def test_the_statement_says_how_the_file_says_it_was_made(tmp_path: Path, private: FeatureSet) -> None:
    for origin, words in (
        (TEXT, "which says that they are the names of the classes as the text tower of clip-b16 sees them (3 prompts)"),
        (ROWS, "which says that they are of the classifier of vit-ti16 (1,000 rows)"),
    ):
        path = tmp_path / f"{origin['source']}.safetensors"
        save_file({"vectors": VECTORS}, path, {"classes": json.dumps(NAMES), "origin": json.dumps(origin)})
        trained = head_of(private, epsilon=50.0, public_head=path)
        assert f"), {words}; the operator asserts" in trained.head.statement()["public start"]
        card = json.loads(json.dumps(trained.head.card))
        check(card)
        for fault in ({"source": "x"}, {"count": 0}, {"model": 3}):
            card["public_head"]["made"] = {**trained.head.card["public_head"]["made"], **fault}
            with pytest.raises(ValueError, match=r"public_head\.made"):
                check(card)


def test_an_array_has_the_classes_of_the_set_in_their_order(tmp_path: Path, private: FeatureSet) -> None:
    np.save(tmp_path / "v.npy", VECTORS)
    found = read(private, tmp_path / "v.npy")
    assert np.allclose(found.vectors, (VECTORS / VECTORS.max(axis=1, keepdims=True)).T)
    assert found.origin["without"] == []
    np.save(tmp_path / "v.npy", VECTORS[:2])
    with pytest.raises(UserError, match="2 vectors without names for 3 classes"):
        read(private, tmp_path / "v.npy")


def test_numbers_beyond_float64_are_refused(tmp_path: Path, private: FeatureSet) -> None:
    """Such numbers are finite in 80 bits, and infinite where the start is computed."""
    np.save(tmp_path / "v.npy", VECTORS.astype(np.longdouble) * np.longdouble("1e4000"))
    with pytest.raises(UserError, match="NaN or infinite"):
        read(private, tmp_path / "v.npy")


def test_numbers_of_every_size_become_vectors(tmp_path: Path, private: FeatureSet) -> None:
    plain = read(private, npz(tmp_path / "v.npz"))
    for size in (1e-3, 1e300):
        found = read(private, npz(tmp_path / "v.npz", VECTORS.astype(np.float64) * size))
        assert np.allclose(found.vectors, plain.vectors)
    # A vector is there if any of its numbers is not 0.
    sparse = read(private, npz(tmp_path / "v.npz", VECTORS * [0, 1, 1, 1, 1, 1]))
    assert sparse.origin["without"] == plain.origin["without"] == ["Wolf"]


@pytest.mark.parametrize(
    ("vectors", "classes", "why"),
    [
        (VECTORS[:, :5], NAMES, r"shape \[3, 5\], not numbers of shape \[classes, 6\]"),
        (VECTORS[0], NAMES, r"shape \[6\]"),
        (VECTORS > 5, NAMES, r"bool of shape \[3, 6\], not numbers"),
        (np.where(VECTORS > 20, np.nan, VECTORS), NAMES, "NaN or infinite"),
        (VECTORS, NAMES[:2], "2 names for 3 vectors"),
        (VECTORS, ("a", "b", "c"), "only 0 of the set's classes"),
        (VECTORS * [[1], [0], [1]], NAMES, "only 1 of the set's classes"),
        (np.outer([1, 2, 3], VECTORS[0]), NAMES, "do not tell any two classes apart"),
        (VECTORS, ("otter", "otter", "Wolf"), "a class twice"),
        (VECTORS, ("Red Fox", "RED_FOX", "otter"), "could all be 'red fox'"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, private: FeatureSet, vectors: np.ndarray, classes: tuple[str, ...], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        read(private, npz(tmp_path / "v.npz", vectors, classes))


@pytest.mark.parametrize(
    ("name", "data"),
    [("v.npz", b"PK"), ("v.npy", b"\x93NUMPY"), ("v.safetensors", b"1"), ("v.txt", b"1"), ("no", None)],
)
def test_what_is_no_file_of_vectors_is_refused(
    tmp_path: Path, private: FeatureSet, name: str, data: bytes | None
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as refused:
        read(private, tmp_path / name)
    assert refused.value.fields["parameter"] == "public_head"
    assert ("does not end in" in refused.value.what) == (name == "v.txt")


def test_objects_in_arrays_are_not_unpacked(tmp_path: Path, private: FeatureSet) -> None:
    np.savez(tmp_path / "v.npz", vectors=VECTORS, classes=np.array(list(NAMES), dtype=object))
    with pytest.raises(UserError, match="cannot be read as class vectors"):
        read(private, tmp_path / "v.npz")
    (tmp_path / "v.npy").write_bytes(pickle.dumps(VECTORS))
    with pytest.raises(UserError, match="cannot be read as class vectors"):
        read(private, tmp_path / "v.npy")


@pytest.mark.parametrize(("k", "remedy"), [(1, "use dp-whitened"), (2, "dp-whitened is for records with one label")])
@pytest.mark.parametrize("method", ["dp-fc", "dp-adam"])
def test_a_method_that_cannot_tell_how_good_a_start_is_refuses_it(method: str, k: int, remedy: str) -> None:
    """The remedy names no method that the set cannot be trained with."""
    calibrated = calibrate(METHODS[method], Facts(n=500, m=3, d=6, k=k), {}, Privacy(epsilon=1.0))
    with pytest.raises(UserError, match="how good a start is") as refused:
        start.check(calibrated)
    assert remedy in refused.value.remedy


# Heads as a start


def head_of(features: FeatureSet, method: str = "dp-whitened", **others: Any) -> Trained:
    return train(features, method=method, steps=2, observer=Quiet(), **others)


class Quiet(Observer):
    def warn(self, text: str) -> None:
        """Warnings are not what is tested here."""


def test_the_weights_of_a_public_head_are_its_vectors(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(made(tmp_path, "public", 1, ("otter", "red fox", "badger")), non_private=True)
    found = read(private, trained.path)
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    head = trained.head
    # Up to their length, and to what centring adds to all records alike, the scores are those of the head.
    scores = np.diff(x @ found.vectors[:, [2, 0]] * np.abs(head_vectors(head)[:, :2]).max(axis=0), axis=0)
    before = tuple(step for step in head.chain if isinstance(step, chains.Linear))
    expected = np.diff(chains.run(before, x, np) @ head.weight[:, :2], axis=0)
    assert np.allclose(scores, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert found.origin["without"] == ["Wolf"]
    # A head of another program may change the space of the records before.
    a, b = (np.random.default_rng(seed).normal(size=(6, 6)) for seed in (1, 2))
    linear = replace(head, chain=(chains.Linear(a), chains.Linear(b)))
    fetched = tmp_path / f"models--us--heads/snapshots/{'ab' * 20}/h.safetensors"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(encoded(linear))
    found = read(private, fetched)
    expected = (a @ b @ head.weight)[:, [1, 0]]
    assert np.allclose(found.vectors[:, [0, 2]], expected / np.abs(expected).max(axis=0), rtol=1e-4)
    assert found.origin["name"] == f"hf:us/heads/h.safetensors@{'ab' * 20}"


def head_vectors(head: Any) -> np.ndarray:
    weight: np.ndarray = head.weight
    for step in reversed(head.chain):
        if isinstance(step, chains.Linear):
            weight = step.matrix @ weight
    return weight


def test_a_head_that_saw_the_private_records_without_privacy_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(private, non_private=True)
    with pytest.raises(UserError, match="without privacy") as refused:
        read(private, trained.path)
    assert refused.value.code == "private-records"
    ledger_path(private.folder).unlink()
    with pytest.raises(UserError, match="without privacy"):
        read(private, trained.path)
    seeded = head_of(private, epsilon=1.0, seed=1)
    with pytest.raises(UserError, match="without privacy"):
        read(private, seeded.path)
    # The ledger knows it where the set has another name.
    again = FeatureSet(shutil.copytree(private.folder, private.folder.with_name("again")))
    with pytest.raises(UserError, match="without privacy"):
        read(again, seeded.path)


def test_a_private_head_that_the_ledger_was_not_charged_for_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    """The new head would depend on it, so its cost would be missing in the new claim."""
    other, mine = head_of(made(tmp_path, "other", 3), epsilon=1.0), head_of(private, epsilon=1.0)
    read(private, mine.path)
    ledger_path(private.folder).unlink()
    for trained in (other, mine):
        with pytest.raises(UserError, match="not be in the claim of the new one") as refused:
            read(private, trained.path)
        assert refused.value.code == "private-records"
    # A row of another training.
    head_of(private, epsilon=1.0)
    with pytest.raises(UserError, match="not be in the claim of the new one"):
        read(private, mine.path)


def test_a_head_that_continues_a_private_one_claims_what_both_cost(private: FeatureSet) -> None:
    paths = [head_of(private, epsilon=1.0).path]
    for epsilon in (2.0, 1.0):
        paths.append(head_of(private, epsilon=epsilon, public_head=paths[-1]).path)
    rows = account_of(ledger_path(private.folder)).own
    assert [row.epsilon for row in rows] == [1.0, 2.0, 1.0]
    trained = [Head.load(path) for path in paths]
    for count, head in enumerate(trained, start=1):
        card = head.card
        assert card["mu"] == pytest.approx(math.hypot(*(row.mu or 0.0 for row in rows[:count])))
        # η is near 1e-70: no absolute tolerance.
        assert card["eta"] == pytest.approx(sum(row.eta or 0.0 for row in rows[:count]), rel=1e-9, abs=0)
        assert card["epsilon"] == pytest.approx(card["ledger"]["epsilon"], rel=1e-6)
        assert sum(release["times"] for release in card["plan"]) == 4 * count
    assert trained[2].card["epsilon"] > 2.4
    assert "the guarantee and the releases are those of both trainings" in trained[2].statement()["started from"]
    cards = [(path, head.card) for path, head in zip(paths, trained, strict=True)]
    assert not account_of(ledger_path(private.folder), cards=cards).lost


def test_a_continued_head_says_on_which_condition_its_claim_holds(private: FeatureSet) -> None:
    """Noise that is chosen by looking at an answer is not covered by composition. A cap is, for full passes."""
    first = head_of(private, epsilon=1.0)
    exact = head_of(private, epsilon=1.0, public_head=first.path).head.statement()["started from"]
    assert "holds if the noise of this training was fixed before that head was looked at" in exact
    assert "or if both stay below a cap that was fixed before" in exact
    sampled = head_of(private, method="dp-sgd", sampling_rate=0.5, noise_multiplier=4.0)
    trained = head_of(private, epsilon=2.0, public_head=sampled.path)
    said = trained.head.statement()["started from"]
    assert "fixed before that head was looked at" in said
    assert "cap" not in said
    card = trained.head.card
    made = [release for row in trained.spent.own[2:] for release in row.plan]
    assert epsilon_of(made, card["delta"], card["eta"]) == pytest.approx(card["epsilon"], rel=1e-9)
    assert card["epsilon"] > 2.0
    assert card["accounting"] == SAMPLED


def test_a_private_head_is_not_continued_on_other_records(tmp_path: Path, private: FeatureSet) -> None:
    """A ledger outlives its set. So it may have rows of records that were in the same folder before."""
    first = head_of(private, epsilon=1.0)
    shutil.rmtree(private.folder)
    with pytest.raises(UserError, match="no row of its training on these records"):
        read(made(tmp_path, "private", 5), first.path)


@pytest.mark.parametrize("other", [{"sha256": "0" * 64}, {"records": "others"}, {"n": 119}], ids=str)
def test_the_row_of_a_continued_head_is_of_its_file_of_the_records_and_of_their_number(
    private: FeatureSet, other: dict[str, Any]
) -> None:
    first = head_of(private, epsilon=1.0)
    account = account_of(ledger_path(private.folder))
    start.vectors_of(private, first.path, account)
    with pytest.raises(UserError, match="no row of its training on these records"):
        start.vectors_of(private, first.path, replace(account, own=(replace(account.own[0], **other),)))


def test_the_row_of_a_continued_head_of_persons_is_of_these_persons_and_of_their_number(tmp_path: Path) -> None:
    x, y = blobs(120, 6, 3)
    np.savez(tmp_path / "p.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 2)
    persons = import_features(tmp_path / "p.npz", tmp_path / "features" / "p", classes=CLASSES).features
    first, account = head_of(persons, epsilon=1.0), account_of(ledger_path(persons.folder))
    assert start.vectors_of(persons, first.path, account)[1] == Head.load(first.path).card
    assert account.own[0].n == 60
    for other in ({"n": 120}, {"persons": "0" * 64}):
        with pytest.raises(UserError, match="no row of its training on these records"):
            start.vectors_of(persons, first.path, replace(account, own=(replace(account.own[0], **other),)))


def test_stated_classes_do_not_cover_a_head_whose_classes_were_inferred(tmp_path: Path, private: FeatureSet) -> None:
    """The classes of the first head would be seen in the card of the new one, and no guarantee would cover them."""
    shutil.rmtree(private.folder)
    inferred = import_features(tmp_path / "private.npz", private.folder).features
    first = head_of(inferred, epsilon=1.0)
    read(inferred, first.path)
    shutil.rmtree(private.folder)
    stated = import_features(tmp_path / "private.npz", private.folder, classes=("0", "1", "2")).features
    with pytest.raises(UserError, match="inferred from the private records") as refused:
        read(stated, first.path)
    assert refused.value.code == "private-records"


def test_what_earlier_heads_took_for_public_is_named_by_later_ones(tmp_path: Path, private: FeatureSet) -> None:
    path = head_of(
        private, epsilon=1.0, public_head=npz(tmp_path / "v.npz"), public_features=made(tmp_path, "b", 1)
    ).path
    for _ in range(2):
        trained = head_of(private, epsilon=1.0, public_head=path)
        said = trained.head.statement()["started from"]
        assert "with b, v.npz, which the operator asserts to be public" in said
        path = trained.path


def test_a_card_of_a_continued_head_must_have_releases_of_its_own_and_a_claim(private: FeatureSet) -> None:
    first = head_of(private, epsilon=1.0)
    card = dict(Head.load(head_of(private, epsilon=2.0, public_head=first.path).path).card)
    check(card)
    start = card["public_head"]
    research = {"claim": "research", **dict.fromkeys(("epsilon", "delta", "mu", "eta"))}
    for changed in ({"public_head": {**start, "releases": len(card["plan"])}}, research):
        with pytest.raises(ValueError, match="contradict"):
            check({**card, **changed})
    check({**card, **research, "public_head": {k: v for k, v in start.items() if k != "releases"}})


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"epsilon": 1.0}, {"epsilon": 1.0, "seed": 3}, "this training has no guarantee"),
        ({"epsilon": 1.0}, {"epsilon": 1.0, "adjacency": "replace-one"}, "with zero-out adjacency"),
        ({"epsilon": 70.0}, {"epsilon": 90.0}, "together spend epsilon = 1"),
    ],
)
def test_a_private_head_is_not_continued_where_nothing_could_be_claimed(
    private: FeatureSet, first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    begun = head_of(private, **first)
    with pytest.raises(UserError, match=why) as refused:
        head_of(private, **second, public_head=begun.path)
    assert refused.value.code == "private-records"
    assert len(account_of(ledger_path(private.folder)).own) == 1


def test_a_head_that_protects_records_is_not_continued_by_a_training_that_protects_persons(private: FeatureSet) -> None:
    begun = start.begin(
        calibrated(private, epsilon=1.0),
        private,
        head_of(private, epsilon=1.0).path,
        account_of(ledger_path(private.folder)),
    )
    start._check_together(begun)
    with pytest.raises(UserError, match="protects one record, and this training one person"):
        start._check_together(replace(begun, facts=replace(begun.facts, unit="person", rows=200)))


def test_a_head_of_another_backbone_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(made(tmp_path, "public", 1), non_private=True)
    private.manifest = replace(private.manifest, backbone={"name": "vit", "sha256": "ab"})
    with pytest.raises(UserError, match=r"another backbone \(they differ in name, sha256\)"):
        read(private, trained.path)
    private.manifest = replace(private.manifest, backbone={"name": "imported"}, dim=7)
    with pytest.raises(UserError, match=r"another backbone \(they differ in dimensions\)"):
        read(private, trained.path)


# Trainings


def calibrated(private: FeatureSet, method: str = "dp-whitened", **privacy: Any) -> Calibrated:
    return calibrate(METHODS[method], facts_of(private), {}, Privacy(**privacy))


def test_plan_and_guarantee_stay(tmp_path: Path, private: FeatureSet) -> None:
    plain = calibrated(private, epsilon=1.0)
    begun = start.begin(plain, private, npz(tmp_path / "v.npz"), account_of(ledger_path(private.folder)))
    assert (begun.plan, begun.guarantee, begun.mechanism) == (plain.plan, plain.guarantee, plain.mechanism)
    assert replace(begun.options, public_head=None) == plain.options


@pytest.mark.parametrize(("method", "privacy"), [("dp-fc", {"epsilon": 1.0}), ("dp-whitened", {})])
def test_trainings_without_a_use_for_a_start_refuse_it(
    tmp_path: Path, private: FeatureSet, method: str, privacy: dict[str, float]
) -> None:
    with pytest.raises(UserError, match=r"‹public_head›|public_head") as refused:
        start.begin(
            calibrated(private, method, **privacy),
            private,
            npz(tmp_path / "v.npz"),
            account_of(ledger_path(private.folder)),
        )
    assert refused.value.code == "conflict"


def test_what_a_start_lacks_and_what_noise_hides_is_told(
    tmp_path: Path, private: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = start.begin(
        calibrated(private, epsilon=1.0), private, npz(tmp_path / "v.npz"), account_of(ledger_path(private.folder))
    )

    def said(known: dict[str, Any], doubt: float) -> list[str]:
        monkeypatch.setattr(start, "doubt", lambda facts, options: doubt)
        public = replace(begun.options.public_head, origin={**begun.options.public_head.origin, **known})
        return start.warnings_of(replace(begun, options=replace(begun.options, public_head=public)))

    assert "1 of 3 classes have no public vector and start at zero: Wolf." in said({}, 0.0)[0]
    for missing, shown in (("abcde", "a, b, c, d, e."), ("abcdef", "a, b, c, d, e and 1 more.")):
        assert said({"without": [*missing]}, 0.0)[0].endswith(f": {shown}")
    assert said({"without": []}, start.HIDDEN) == []
    (hidden,) = said({"without": []}, 0.0501)
    assert "may be taken for a good one. Be sure that 'v.npz'" in hidden
    assert start.warnings_of(calibrated(private, epsilon=1.0)) == []


def test_how_much_noise_hides_a_wrong_start_is_computed(tmp_path: Path, private: FeatureSet) -> None:
    account = account_of(ledger_path(private.folder))
    for epsilon, hidden in ((100.0, False), (0.01, True)):
        begun = start.begin(calibrated(private, epsilon=epsilon), private, npz(tmp_path / "v.npz"), account)
        assert any("may be taken for a good one" in said for said in start.warnings_of(begun)) is hidden


def test_that_wrong_vectors_of_some_classes_may_stay_is_said_at_any_noise_but_not_of_heads_of_the_records(
    tmp_path: Path, private: FeatureSet
) -> None:
    class Told(Quiet):
        def say(self, text: str) -> None:
            told.append(text)

    def said(**given: Any) -> list[str]:
        told.clear()
        train(private, method="dp-whitened", steps=1, observer=Told(), **given)
        return list(told)

    told: list[str] = []
    assert start.REMARK in said(epsilon=100.0, public_head=npz(tmp_path / "v.npz"))
    first = head_of(private, epsilon=1.0)
    assert start.REMARK not in said(epsilon=1.0, public_head=first.path)


def test_what_to_expect_of_noise_depends_on_the_start(tmp_path: Path, private: FeatureSet) -> None:
    plain, fc = calibrated(private, epsilon=0.1), calibrated(private, "dp-fc", epsilon=0.1)
    begun = start.begin(plain, private, npz(tmp_path / "v.npz"), account_of(ledger_path(private.folder)))
    said = [warnings_of(each)[0].split("epsilon = 0.1). ")[1] for each in (fc, plain, begun)]
    assert said == [
        "Expect a poor head. More records, fewer dimensions or a larger epsilon help.",
        "Expect a poor head. More records, fewer dimensions, a larger epsilon or a public start help.",
        "Expect a head that is little better than its start.",
    ]


def test_card_and_statement_name_the_classes_whose_vectors_were_found_wrong(
    tmp_path: Path, private: FeatureSet
) -> None:
    """Which ones is a function of the gradients that are released anyway."""
    x, y = blobs(120, 6, 3, seed=0)
    right = np.stack([x[y == j].mean(axis=0) for j in range(3)]) - x.mean(axis=0)
    path = npz(tmp_path / "v.npz", -right.astype(np.float32), CLASSES)
    trained = head_of(private, epsilon=50.0, public_head=path)
    assert trained.head.card["public_head"]["doubted"] == list(CLASSES)
    assert trained.head.statement()["public start"].endswith("found wrong or of little use for red fox, Wolf, otter")


def test_card_and_statement_say_where_the_start_came_from(tmp_path: Path, private: FeatureSet) -> None:
    path = npz(tmp_path / "v.npz")
    trained = head_of(private, epsilon=50.0, public_head=path)
    told = trained.head.card["public_head"]
    assert (told["name"], told["classes"], told["without"]) == ("v.npz", 2, ["Wolf"])
    assert 0 <= told["trusted"] <= 1
    shown = trained.head.statement()["public start"]
    assert "class vectors for 2 of 3 classes from v.npz" in shown
    assert "the operator asserts that they are public" in shown
    assert f"trusted to {told['trusted']:.0%} by what was released" in shown
    assert "found wrong" not in shown
    assert "public start" not in head_of(private, epsilon=50.0).head.statement()
