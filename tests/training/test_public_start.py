"""Public starts: which files are class vectors, how they are matched to classes, and what is refused."""

import json
import math
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfc_cli import memory
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training import public_start as start
from dpfc_cli.training.calibrate import calibrate, warnings_of
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.train import train
from dpfc_cli.trust.card import check
from tests.support import blobs
from tests.training.requests import ledger
from tests.training.starts import CLASSES, NAMES, VECTORS, Quiet, calibrated, head_of, npz, read, safetensors

pytestmark = pytest.mark.usefixtures("heads")


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


# Trainings


def test_plan_and_guarantee_stay(tmp_path: Path, private: FeatureSet) -> None:
    plain = calibrated(private, epsilon=1.0)
    begun = start.begin(plain, private, npz(tmp_path / "v.npz"), ledger(private))
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
            ledger(private),
        )
    assert refused.value.code == "conflict"


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
    begun = start.begin(plain, private, npz(tmp_path / "v.npz"), ledger(private))
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


HUGE = 2 * 10**8
"""Vectors that a file declares: 9.6 GB as float64. On the disk they are a hole, or zeros that were compressed."""


def hollow_npy(path: Path, shape: tuple[int, ...]) -> Path:
    np.lib.format.open_memmap(path, "w+", np.float16, shape).flush()
    return path


def hollow_safetensors(path: Path, shape: tuple[int, ...]) -> Path:
    size = 2 * math.prod(shape)
    header = json.dumps(
        {
            "__metadata__": {"classes": json.dumps(NAMES)},
            "vectors": {"dtype": "F16", "shape": shape, "data_offsets": [0, size]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    return path


def hollow_npz(path: Path, shape: tuple[int, ...]) -> Path:
    """As large as its size lets us write: the bound on memory is smaller, too."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("vectors", np.broadcast_to(np.float16(0), shape)), ("classes", np.array(NAMES))):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
                if name == "classes":
                    file.write(array.tobytes())
                else:
                    for _ in range(0, 2 * math.prod(shape), 2**20):
                        file.write(bytes(2**20))
    return path


def hollow_names(path: Path, shape: tuple[int, ...]) -> Path:
    """Few vectors, and a name that is one long blank."""
    names = np.zeros(3, f"U{shape[0]}")
    np.savez_compressed(path, vectors=VECTORS, classes=names)
    return path


@pytest.mark.parametrize(
    ("write", "name", "shape"),
    [
        (hollow_npy, "v.npy", (HUGE, 6)),
        (hollow_safetensors, "v.safetensors", (HUGE, 6)),
        (hollow_npz, "v.npz", (2**23, 8)),
        (hollow_names, "names.npz", (2**23,)),
    ],
)
def test_what_a_file_declares_is_checked_before_it_takes_memory(
    tmp_path: Path,
    private: FeatureSet,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path, tuple[int, ...]], Path],
    name: str,
    shape: tuple[int, ...],
) -> None:
    path = write(tmp_path / name, shape)
    monkeypatch.setattr(memory, "free_memory", lambda: 5e7)
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as refused:
            read(private, path)
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()
    assert refused.value.code in ("conflict", "memory")
    assert refused.value.fields["path"] == str(path)


def test_vectors_that_memory_cannot_hold_are_refused(
    tmp_path: Path, private: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100.0)
    for path in (npz(tmp_path / "v.npz"), safetensors(tmp_path / "v.safetensors")):
        with pytest.raises(UserError) as refused:
            read(private, path)
        assert refused.value.code == "memory"


def test_an_archive_is_no_array_whatever_its_name(tmp_path: Path, private: FeatureSet) -> None:
    npz(tmp_path / "v.npz").rename(tmp_path / "v.npy")
    with pytest.raises(UserError) as refused:
        read(private, tmp_path / "v.npy")
    assert refused.value.code == "conflict"
