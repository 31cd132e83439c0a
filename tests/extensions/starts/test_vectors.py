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

from dpfc_cli.extensions.starts import vectors
from dpfc_cli.extensions.starts.hooks import REMARK
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.populations import set_population
from dpfc_cli.privacy import chain as chains
from dpfc_cli.records.card import Start, card_of
from dpfc_cli.training.calibrate import HIDES, Calibrated, warnings_of
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.train import train
from tests.extensions.starts.starts import NAMES, VECTORS, calibrated, read, saved
from tests.support import blobs, feature_set, refuses, replace
from tests.training.requests import CLASSES, charges, head_of, three
from tests.training.stopped import Listener

pytestmark = pytest.mark.usefixtures("heads")


def start_of(head: Head) -> Start:
    assert head.card.public_head is not None
    return head.card.public_head


def test_vectors_are_matched_to_classes_by_name(tmp_path: Path, private: FeatureSet) -> None:
    expected = np.stack([VECTORS[1] / VECTORS[1].max(), np.zeros(6), VECTORS[0] / VECTORS[0].max()], axis=1)
    found = read(private, saved(tmp_path / "v.safetensors"))
    assert np.allclose(found.vectors, expected)
    assert found.origin == {
        **{"name": "v.safetensors", "sha256": sha256_of(tmp_path / "v.safetensors")},
        **{"classes": 2, "without": ["Wolf"]},
    }


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
    found = read(private, saved(tmp_path / "v.safetensors", origin=said))
    assert found.origin.get("made") == made


def test_the_statement_says_how_the_file_says_it_was_made(tmp_path: Path, private: FeatureSet) -> None:
    for origin, words in (
        (TEXT, "which says that they are the names of the classes as the text tower of clip-b16 sees them (3 prompts)"),
        (ROWS, "which says that they are of the classifier of vit-ti16 (1,000 rows)"),
    ):
        path = tmp_path / f"{origin['source']}.safetensors"
        saved(path, origin=json.dumps(origin))
        trained = head_of(private, epsilon=50.0, public_head=path)
        assert f"), {words}; the operator asserts" in trained.head.statement()["public start"]
        card = json.loads(trained.head.card.json)
        made = card["public_head"]["made"]
        for fault in ({"source": "x"}, {"count": 0}, {"model": 3}):
            card["public_head"]["made"] = {**made, **fault}
            with pytest.raises(ValueError, match=r"public_head\.made"):
                card_of(card)


def test_numbers_of_every_size_become_vectors(tmp_path: Path, private: FeatureSet) -> None:
    plain = read(private, saved(tmp_path / "v.safetensors"))
    for size in (1e-3, 1e300):
        found = read(private, saved(tmp_path / "v.safetensors", VECTORS.astype(np.float64) * size))
        assert np.allclose(found.vectors, plain.vectors)
    # A vector is there if any of its numbers is not 0.
    sparse = read(private, saved(tmp_path / "v.safetensors", VECTORS * [0, 1, 1, 1, 1, 1]))
    assert sparse.origin["without"] == plain.origin["without"] == ["Wolf"]


@pytest.mark.parametrize(
    ("vectors", "classes", "why"),
    [
        (VECTORS[:, :5], NAMES, r"\[3, 5\]"),
        (VECTORS > 5, NAMES, "bool"),
        (np.where(VECTORS > 20, np.nan, VECTORS), NAMES, "NaN"),
        (VECTORS, NAMES[:2], r"not \[2, 6\]"),
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
        read(private, saved(tmp_path / "v.safetensors", vectors, classes))


def test_what_is_no_file_of_vectors_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    whole = saved(tmp_path / "whole.safetensors").read_bytes()
    save_file({"vectors": VECTORS}, tmp_path / "unnamed.safetensors")
    save_file({"other": VECTORS}, tmp_path / "other.safetensors", {"classes": json.dumps(NAMES)})
    for name, data in {"short": whole[:-1], "begun": b"1", "empty": b"", "pickle": pickle.dumps(VECTORS)}.items():
        (tmp_path / f"{name}.safetensors").write_bytes(data)
    for path in {*tmp_path.glob("*.safetensors"), tmp_path / "no.safetensors"} - {tmp_path / "whole.safetensors"}:
        with refuses("conflict" if path.exists() else "missing", parameter="public_head", path=str(path)):
            read(private, path)


@pytest.mark.parametrize(("option", "given"), [("public_head", "v.safetensors"), ("public_features", None)])
def test_what_has_no_use_for_something_public_refuses_it(private: FeatureSet, option: str, given: Any) -> None:
    """The remedy names no method that the set cannot be trained with."""
    asked: dict[str, Any] = {option: private if given is None else given}
    with refuses("conflict", match="non_private", parameter=option):
        train(private, non_private=True, **asked)
    with refuses("conflict", parameter=option) as refused:
        train(private, epsilon=1.0, method="dp-fc", **asked)
    assert "use dp-whitened" in refused.value.remedy
    private.manifest = replace(private.manifest, labels_per_record=2)
    with refuses("conflict", parameter=option) as refused:
        train(private, epsilon=1.0, **asked)
    assert "dp-whitened is for records with one label" in refused.value.remedy


# Trainings


def begun(private: FeatureSet, path: Path, epsilon: float = 1.0) -> Calibrated:
    made = calibrated(private, epsilon=epsilon)
    return replace(made, options=replace(made.options, public_head=read(private, path)))


@pytest.mark.parametrize(("others", "shown"), [(4, "0, 1, 2, 3, Wolf."), (5, "0, 1, 2, 3, 4 and 1 more.")])
def test_what_a_start_lacks_is_told(tmp_path: Path, others: int, shown: str) -> None:
    private = three(tmp_path, "more", 0, (*map(str, range(others)), *CLASSES))
    (said,) = vectors.warnings_of(begun(private, saved(tmp_path / "v.safetensors"), 100.0))
    assert said.endswith(f"have no public vector and start at zero: {shown}")


def test_that_noise_hides_a_wrong_start_is_told(tmp_path: Path, private: FeatureSet) -> None:
    path = saved(tmp_path / "v.safetensors", classes=CLASSES)
    for epsilon, hidden in ((100.0, False), (0.01, True)):
        made = begun(private, path, epsilon)
        assert ["Be sure that 'v.safetensors'" in said for said in vectors.warnings_of(made)] == [True] * hidden
        assert any(HIDES in said for said in warnings_of(made)) is hidden


def test_that_wrong_vectors_of_some_classes_may_stay_is_said_at_any_noise(tmp_path: Path, private: FeatureSet) -> None:
    head_of(private, epsilon=100.0, public_head=saved(tmp_path / "v.safetensors"), observer=(told := Listener()))
    assert REMARK in told.said


def test_card_and_statement_name_the_classes_whose_vectors_were_found_wrong(
    tmp_path: Path, private: FeatureSet
) -> None:
    """Which ones is a function of the gradients that are released anyway."""
    x, y = blobs(120, 6, 3, seed=0)
    right = np.stack([x[y == j].mean(axis=0) for j in range(3)]) - x.mean(axis=0)
    path = saved(tmp_path / "v.safetensors", -right.astype(np.float32), CLASSES)
    with pytest.warns(TrainingWarning, match="trusted to 0 %"):
        trained = head_of(private, epsilon=50.0, public_head=path, observer=Observer())
    assert start_of(trained.head).doubted == CLASSES
    assert trained.head.statement()["public start"].endswith("found wrong or of little use for red fox, Wolf, otter")


def test_card_and_statement_say_where_the_start_came_from(tmp_path: Path, private: FeatureSet) -> None:
    path = saved(tmp_path / "v.safetensors")
    trained = head_of(private, epsilon=50.0, public_head=path)
    told = start_of(trained.head)
    assert (told.name, told.classes, told.without) == ("v.safetensors", 2, ("Wolf",))
    assert 0 <= (told.trusted or 0) <= 1
    shown = trained.head.statement()["public start"]
    assert "class vectors for 2 of 3 classes from v.safetensors" in shown
    assert "the operator asserts that they are public" in shown
    assert f"trusted to {told.trusted:.0%} by what was released" in shown
    assert "found wrong" not in shown
    assert "public start" not in head_of(private, epsilon=50.0).head.statement()


def test_what_a_file_declares_beyond_the_names_of_its_classes_is_not_read(tmp_path: Path, private: FeatureSet) -> None:
    """Here 2.4 GB, as a hole."""
    shape, size, path = (2 * 10**8, 6), 2 * 2 * 10**8 * 6, tmp_path / "v.safetensors"
    tensor = {"dtype": "F16", "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"classes": json.dumps(NAMES)}, "vectors": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    tracemalloc.start()
    try:
        with refuses("conflict", path=str(path)):
            read(private, path)
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


def test_the_weights_of_a_public_head_are_its_vectors(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(three(tmp_path, "public", 1, ("otter", "red fox", "badger")), non_private=True)
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
    for features in (private, three(tmp_path, "other", 3)):
        first = head_of(features, epsilon=1.0).path
        with refuses("private-records", match="the claim"):
            head_of(private, epsilon=2.0, public_head=first)
    assert len(charges(private)) == 2


def test_a_head_of_another_backbone_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(three(tmp_path, "public", 1), non_private=True)
    private.manifest = replace(private.manifest, backbone={"name": "vit", "sha256": "ab"})
    with refuses("conflict", match="name, sha256", parameter="public_head"):
        read(private, trained.path)
    private.manifest = replace(private.manifest, backbone={"name": "imported"}, dim=7)
    with refuses("conflict", match="dimensions", parameter="public_head"):
        read(private, trained.path)


def test_a_head_without_privacy_of_the_same_people_is_no_start(tmp_path: Path, private: FeatureSet) -> None:
    other = three(tmp_path, "other", 3)
    trained = head_of(other, non_private=True)
    read(private, trained.path)
    # Now somebody says that both sets are of one population.
    for features in (private, other):
        set_population(features, "ward7")
    with refuses("private-records", match="private records"):
        read(private, trained.path)
