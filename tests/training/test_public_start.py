"""Public starts: files of class vectors, and heads whose weights are taken; what is refused, and what is claimed."""

import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.populations import set_population
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.records.card import Start, card_of
from dpfc_cli.training import public_start as start
from dpfc_cli.training.calibrate import HIDES, calibrate, warnings_of
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.train import train
from tests.support import blobs, feature_set, refuses, replace
from tests.training.requests import charges, ledger
from tests.training.starts import CLASSES, NAMES, VECTORS, calibrated, head_of, made, npz, read, safetensors
from tests.training.stopped import Listener

pytestmark = pytest.mark.usefixtures("heads")


def start_of(head: Head) -> Start:
    assert head.card.public_head is not None
    return head.card.public_head


def test_vectors_are_matched_to_classes_by_name(tmp_path: Path, private: FeatureSet) -> None:
    expected = np.stack([VECTORS[1] / VECTORS[1].max(), np.zeros(6), VECTORS[0] / VECTORS[0].max()], axis=1)
    for path in (npz(tmp_path / "v.npz"), safetensors(tmp_path / "v.safetensors")):
        found = read(private, path)
        assert np.allclose(found.vectors, expected)
        assert (found.origin["name"], found.origin["classes"], found.origin["without"]) == (path.name, 2, ["Wolf"])


TEXT = {"source": "text", "model": "clip-b16", "prompts": ["a {}.", "the {}", "{}"], "weights": {"id": "\x1b[2J"}}


ROWS = {"source": "classifier", "model": "vit-ti16", "classifier": 1000, "rows": {"\x1b": [1]}}


@pytest.mark.parametrize(
    ("origin", "made"),
    [
        (TEXT, {"source": "text", "model": "clip-b16", "count": 3}),
        (ROWS, {"source": "classifier", "model": "vit-ti16", "count": 1000}),
        ({**TEXT, "model": "\x1b[2J"}, None),
        ({**TEXT, "source": "x" * 10_000}, None),
        ({**TEXT, "prompts": []}, None),
        ({**ROWS, "classifier": 1e300}, None),
        ({"source": "text", "model": "clip-b16"}, None),
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
        card = json.loads(trained.head.card.json)
        made = card["public_head"]["made"]
        for fault in ({"source": "x"}, {"count": 0}, {"model": 3}):
            card["public_head"]["made"] = {**made, **fault}
            with pytest.raises(ValueError, match=r"public_head\.made"):
                card_of(card)


def test_an_array_has_the_classes_of_the_set_in_their_order(tmp_path: Path, private: FeatureSet) -> None:
    np.save(tmp_path / "v.npy", VECTORS)
    found = read(private, tmp_path / "v.npy")
    assert np.allclose(found.vectors, (VECTORS / VECTORS.max(axis=1, keepdims=True)).T)
    assert found.origin["without"] == []
    np.save(tmp_path / "v.npy", VECTORS[:2])
    with refuses("conflict", match="2 vectors", parameter="public_head"):
        read(private, tmp_path / "v.npy")


def test_numbers_beyond_float64_are_refused(tmp_path: Path, private: FeatureSet) -> None:
    """Such numbers are finite in 80 bits, and infinite where the start is computed."""
    np.save(tmp_path / "v.npy", VECTORS.astype(np.longdouble) * np.longdouble("1e4000"))
    with refuses("conflict", match="NaN", parameter="public_head"):
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
        (VECTORS[:, :5], NAMES, r"\[3, 5\]"),
        (VECTORS > 5, NAMES, "bool"),
        (np.where(VECTORS > 20, np.nan, VECTORS), NAMES, "NaN"),
        (VECTORS, NAMES[:2], "2 names"),
        (VECTORS * [[1], [0], [1]], NAMES, "only 1 "),
        (np.outer([1, 2, 3], VECTORS[0]), NAMES, "apart"),
        (VECTORS, ("otter", "otter", "Wolf"), "twice"),
        (VECTORS, ("Red Fox", "RED_FOX", "otter"), "'red fox'"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, private: FeatureSet, vectors: np.ndarray, classes: tuple[str, ...], why: str
) -> None:
    with refuses("conflict", match=why, parameter="public_head"):
        read(private, npz(tmp_path / "v.npz", vectors, classes))


def test_what_is_no_file_of_vectors_is_refused_and_nothing_is_unpacked(tmp_path: Path, private: FeatureSet) -> None:
    np.savez(tmp_path / "objects.npz", vectors=VECTORS, classes=np.array(list(NAMES), dtype=object))
    for name, data in {
        **{"v.npz": b"PK", "v.npy": b"\x93NUMPY", "v.safetensors": b"1", "v.txt": b"1"},
        "pickle.npy": pickle.dumps(VECTORS),
    }.items():
        (tmp_path / name).write_bytes(data)
    for path in (*tmp_path.iterdir(), tmp_path / "no"):
        if path.is_file() or not path.exists():
            with pytest.raises(UserError) as refused:
                read(private, path)
            assert refused.value.fields["parameter"] == "public_head"
            assert ("does not end in" in refused.value.what) == (path.name == "v.txt")


def test_a_training_that_cannot_tell_how_good_a_start_is_refuses_it() -> None:
    """The remedy names no method that the set cannot be trained with."""
    for k, remedy in ((1, "use dp-whitened"), (2, "dp-whitened is for records with one label")):
        calibrated = calibrate(METHODS["dp-fc"], Facts(n=500, m=3, d=6, k=k), {}, Privacy(epsilon=1.0))
        with refuses("conflict", parameter="public_head") as refused:
            start.check(calibrated)
        assert remedy in refused.value.remedy
    with refuses("conflict", match="non_private", parameter="public_head"):
        start.check(calibrate(METHODS["dp-whitened"], Facts(n=500, m=3, d=6), {}, Privacy()))


# Trainings


def test_plan_and_guarantee_stay(tmp_path: Path, private: FeatureSet) -> None:
    plain = calibrated(private, epsilon=1.0)
    begun = start.begin(plain, private, npz(tmp_path / "v.npz"), ledger(private))
    assert (begun.plan, begun.guarantee, begun.mechanism) == (plain.plan, plain.guarantee, plain.mechanism)
    assert replace(begun.options, public_head=None) == plain.options


def test_what_a_start_lacks_and_what_noise_hides_is_told(
    tmp_path: Path, private: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = start.begin(calibrated(private, epsilon=1.0), private, npz(tmp_path / "v.npz"), ledger(private))

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
    account = ledger(private)
    for epsilon, hidden in ((100.0, False), (0.01, True)):
        begun = start.begin(calibrated(private, epsilon=epsilon), private, npz(tmp_path / "v.npz"), account)
        assert any("may be taken for a good one" in said for said in start.warnings_of(begun)) is hidden
        assert any(HIDES in said for said in warnings_of(begun)) is hidden


def test_that_wrong_vectors_of_some_classes_may_stay_is_said_at_any_noise(tmp_path: Path, private: FeatureSet) -> None:
    train(
        private,
        method="dp-whitened",
        steps=1,
        epsilon=100.0,
        public_head=npz(tmp_path / "v.npz"),
        observer=(told := Listener()),
    )
    assert start.REMARK in told.said


def test_card_and_statement_name_the_classes_whose_vectors_were_found_wrong(
    tmp_path: Path, private: FeatureSet
) -> None:
    """Which ones is a function of the gradients that are released anyway."""
    x, y = blobs(120, 6, 3, seed=0)
    right = np.stack([x[y == j].mean(axis=0) for j in range(3)]) - x.mean(axis=0)
    path = npz(tmp_path / "v.npz", -right.astype(np.float32), CLASSES)
    with pytest.warns(TrainingWarning, match="trusted to 0 %"):
        trained = head_of(private, epsilon=50.0, public_head=path, observer=Observer())
    assert start_of(trained.head).doubted == CLASSES
    assert trained.head.statement()["public start"].endswith("found wrong or of little use for red fox, Wolf, otter")


def test_card_and_statement_say_where_the_start_came_from(tmp_path: Path, private: FeatureSet) -> None:
    path = npz(tmp_path / "v.npz")
    trained = head_of(private, epsilon=50.0, public_head=path)
    told = start_of(trained.head)
    assert (told.name, told.classes, told.without) == ("v.npz", 2, ("Wolf",))
    assert 0 <= (told.trusted or 0) <= 1
    shown = trained.head.statement()["public start"]
    assert "class vectors for 2 of 3 classes from v.npz" in shown
    assert "the operator asserts that they are public" in shown
    assert f"trusted to {told.trusted:.0%} by what was released" in shown
    assert "found wrong" not in shown
    assert "public start" not in head_of(private, epsilon=50.0).head.statement()


def test_what_a_file_declares_beyond_the_names_of_its_classes_is_not_read(tmp_path: Path, private: FeatureSet) -> None:
    """Here 2.4 GB, as a hole."""
    shape, size = (2 * 10**8, 6), 2 * 2 * 10**8 * 6
    np.lib.format.open_memmap(tmp_path / "v.npy", "w+", np.float16, shape).flush()
    tensor = {"dtype": "F16", "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"classes": json.dumps(NAMES)}, "vectors": tensor}).encode()
    (tmp_path / "v.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(tmp_path / "v.safetensors", 8 + len(header) + size)
    tracemalloc.start()
    try:
        for path in (tmp_path / "v.npy", tmp_path / "v.safetensors"):
            with refuses("conflict", path=str(path)):
                read(private, path)
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


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
    with refuses("private-records", match="without privacy"):
        read(private, trained.path)
    seeded = head_of(private, epsilon=1.0, seed=1)
    with refuses("private-records", match="without privacy"):
        read(private, seeded.path)
    # The ledger knows it where the set has another name, and where it was made of the same records anew.
    again = FeatureSet(shutil.copytree(private.folder, private.folder.with_name("again")))
    anew = feature_set(tmp_path / "private.npz", tmp_path / "features" / "anew", classes=CLASSES)
    for each in (again, anew):
        with refuses("private-records", match="without privacy"):
            read(each, seeded.path)
    # The card says it where the ledger is gone.
    ledger_path(private.folder).unlink()
    with refuses("private-records", match="without privacy"):
        read(private, trained.path)


def test_a_private_head_is_refused_whosever_records_it_is_of(tmp_path: Path, private: FeatureSet) -> None:
    """What it cost would not be in the claim of the new head."""
    for features in (private, made(tmp_path, "other", 3)):
        first = head_of(features, epsilon=1.0).path
        with refuses("private-records", match="the claim"):
            head_of(private, epsilon=2.0, public_head=first)
    assert len(charges(private)) == 2


def test_a_head_of_another_backbone_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(made(tmp_path, "public", 1), non_private=True)
    private.manifest = replace(private.manifest, backbone={"name": "vit", "sha256": "ab"})
    with refuses("conflict", match="name, sha256", parameter="public_head"):
        read(private, trained.path)
    private.manifest = replace(private.manifest, backbone={"name": "imported"}, dim=7)
    with refuses("conflict", match="dimensions", parameter="public_head"):
        read(private, trained.path)


def test_a_head_without_privacy_of_the_same_people_is_no_start(tmp_path: Path, private: FeatureSet) -> None:
    other = made(tmp_path, "other", 3)
    trained = head_of(other, non_private=True)
    read(private, trained.path)
    # Now somebody says that both sets are of one population.
    for features in (private, other):
        set_population(features, "ward7")
    with refuses("private-records", match="private records"):
        read(private, trained.path)
