"""Two worlds: the same public facts, and nothing else in common. What somebody can see of command lines in them."""

import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import h5py
import numpy as np
import pytest
from PIL import Image

from dpfc_cli import files, points, progress
from dpfc_cli.features import writer as writers
from dpfc_cli.features.manifest import MANIFEST, Manifest, load
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.folders import LEDGER, PARTIAL
from dpfc_cli.heads.head import ordered
from dpfc_cli.ledger import facts
from dpfc_cli.ledger.facts import Set
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.populations import register
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.noise import SeededBits
from tests import instead
from tests.support import blobs, feature_set, nulls, shards_of, typed

N, TEST, D, M, K = 150, 30, 4, 3, 3
CLASSES = ("flu", "cold", "rare")
BLOCK = 64
"""Records read at a time: a pass takes three blocks."""
Fault = Callable[[pytest.MonkeyPatch], None]
PRIVATE = "train --features private --epsilon 1"
LINE = f"-v {PRIVATE} --method dp-sgd --steps 2"
Seen = dict[str, Any]
"""What somebody can see of some command lines, by where it is seen."""


# --- Two worlds: the same public facts, and nothing else in common.


def ordinary(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Records as they should be: classes of one size, features near 1."""
    x, y = blobs(N, D, M, seed=1)
    return x, np.stack([(y + i) % M for i in range(k)], axis=1)


def strange(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Records as they should not be: duplicates, zeros, tiny, huge and infinite numbers and NaN, one class alone, and
    null records of every kind.
    """
    x = np.repeat(np.array([[1e-45, 3e38, -3e38, 7.0]], np.float32), N, axis=0)
    x[10:20], x[20:30], x[30:40] = 0, np.nan, np.inf
    y = np.full((N, k), -1, np.int32)
    y[:, 0] = M - 1
    y[40:90], y[90:95], y[95:100] = -1, 99, -7
    return x, y


WORLDS = {"ordinary": ordinary, "strange": strange}
PERSONS = 15
SIZES = {"ordinary": [N // PERSONS] * PERSONS, "strange": [1] * 7 + [N - PERSONS + 1] + [1] * 7}
"""How many records each person has."""


def write_set(folder: Path, x: np.ndarray, y: np.ndarray, sizes: list[int] | None = None) -> None:
    """A feature set of these training records, whatever they are. The test split is always the same. sizes: how many
    records each person has.
    """
    k = y.shape[1]
    test_x, test_y = blobs(TEST, D, M, seed=2)
    splits = {"train": (x, y), "test": (test_x, np.pad(test_y[:, None], ((0, 0), (0, k - 1)), constant_values=-1))}
    listing = {name: hashlib.sha256(part.tobytes()).hexdigest() for name, (part, _) in splits.items()}
    identity = {"imported": "raw.npz", "listing": listing, "k": k, "dtype": "float32"}
    rows = {name: len(part) for name, (part, _) in splits.items()}
    groups = None if sizes is None else {"train": np.repeat(np.arange(PERSONS), sizes), "test": np.arange(TEST)}
    if groups is not None:
        identity["groups"] = {name: hashlib.sha256(each.tobytes()).hexdigest() for name, each in groups.items()}
    manifest = Manifest(
        classes=CLASSES,
        dim=D,
        dtype="float32",
        labels_per_record=k,
        origin="asserted",
        splits={},
        backbone={"name": "imported"},
        source={"dataset": "raw", "identity": identity},
        grouped_by=None if groups is None else {"by": "column", "column": "person"},
        subgroups={"sex": ("f", "m")},
    )
    values = {name: (np.arange(len(part)) % 3 - 1).astype(np.int32)[:, None] for name, (part, _) in splits.items()}
    if not np.isfinite(x).all():
        values["train"][:] = 1
    with shards_of(N // 2):
        writer = FeatureWriter(folder, manifest, nulls(rows, 1.0), groups, subgroups=values)
    shards = writer.missing

    def rewritten(lies: Path, made: Manifest) -> None:
        """Such features are refused by the writer. The curator does not rely on that."""
        now = lies.with_name(lies.name + PARTIAL)
        described = json.loads((now / MANIFEST).read_text())
        for planned in shards:
            with h5py.File(now / planned.file, "r+") as file:
                file["features"][:] = splits[planned.split][0][planned.start : planned.stop]
            for shard in described["splits"][planned.split]["shards"]:
                shard["sha256"] = files.sha256_of(now / shard["file"])
        (now / MANIFEST).write_text(json.dumps(described))
        register(lies, load(now), None)

    with closing(writer):
        for planned in shards:
            with writer.shard(planned) as sink:
                labels = splits[planned.split][1][planned.start : planned.stop]
                sink.append(np.zeros((planned.rows, D)), labels[:, 0] if k == 1 else labels)
        writer.finish(register=rewritten)


SHARED = {"ordinary": (0, N), "strange": (1, N - 1)}
"""How many records of `ward` are in `later`, too, and how many of them are in `copy`."""
SETS = ("known", "ward", "later", "copy", "several", "persons", "private")
"""The feature sets of a world. The last one is the newest."""


def write_related(folder: Path, later: int, copy: int) -> None:
    """Three sets of 150 records each: see `SHARED`. All else about them is the same in each world."""
    x, y = blobs(3 * N, D, M, seed=4)
    own, fresh, more = (slice(start, start + N) for start in (0, N, 2 * N))
    taken = {"ward": x[own]}
    taken["later"] = np.concatenate([x[own][:later], x[fresh][later:]])
    taken["copy"] = np.concatenate([x[own][:copy], x[more][copy:]])
    for i, (name, rows) in enumerate(taken.items(), start=1):
        source, (test_x, test_y) = folder.parent / f"{name}.npz", blobs(TEST, D, M, seed=4 + i)
        np.savez(source, train_x=rows, train_y=y[:N], test_x=test_x, test_y=test_y)
        feature_set(source, folder / name, classes=CLASSES, labels_per_record=1)
        source.unlink()


def written_worlds(top: Path) -> dict[str, Path]:
    """The working folder of each world, below `top`. The public set is the same in both."""
    x, y = blobs(N + TEST, D, M, seed=3)
    raw: dict[str, Any] = {"train_x": x[:N], "train_y": y[:N], "test_x": x[N:], "test_y": y[N:]}
    np.savez(top / "raw.npz", **raw)
    made = {}
    for name, records in WORLDS.items():
        folder = made[name] = top / name
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            counted_up(patch, 0)
            feature_set(top / "raw.npz", folder / "features" / "known", classes=("a", "b", "c"), labels_per_record=1)
            write_related(folder / "features", *SHARED[name])
            for own, k in (("private", 1), ("several", K)):
                write_set(folder / "features" / own, *records(k))
            write_set(folder / "features" / "persons", *records(1), SIZES[name])
        told = {"source": "text", "model": "clip-b16", "prompts": ["a {}"]}
        start = {"classes": json.dumps(CLASSES), "origin": json.dumps(told)}
        (folder / "vectors.safetensors").write_bytes(ordered({"vectors": np.eye(M, D)}, start))
        for i, each in enumerate(SETS):
            os.utime(folder / "features" / each / MANIFEST, (i, i))
        x, y = records(1)
        clean = {**raw, "train_x": np.nan_to_num(x), "train_y": y[:, 0].clip(0, M - 1)}
        (folder / "arrays").mkdir()
        for part, array in clean.items():
            np.save(folder / "arrays" / f"{part}.npy", array)
        np.savez(top / "clean.npz", **clean)
        with pytest.MonkeyPatch.context() as patch:
            counted_up(patch, 10**5)
            feature_set(top / "clean.npz", folder / "elsewhere" / "fresh", classes=CLASSES, labels_per_record=1)
        write_pictures(folder / "pictures", y[:12, 0], damaged=name == "strange")
    return made


def write_pictures(folder: Path, labels: np.ndarray, damaged: bool) -> None:
    """Pictures in class folders. A damaged set has one good picture, of another size, and TIFF that libtiff refuses."""
    rng = np.random.default_rng(0)
    for i, label in enumerate(labels):
        file = io.BytesIO()
        size = (9, 30) if damaged else (20, 20)
        picture = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))
        picture.save(file, "TIFF", compression="tiff_deflate")
        path = folder / CLASSES[label] / f"{i:03d}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = file.getvalue()
        path.write_bytes(
            data[:8] + data[8:-300].replace(data[20:40], bytes(20)) + data[-300:] if damaged and i else data
        )


# --- What can be seen.

HOLDERS = {
    "*.h5": "the records themselves",
    "manifest.json": "digests of the shards, and of the source's listing",
    "ledger.sqlite": "of each set `records` and `listing`, the same digests; and hashes of rows that have them",
}
"""The files that depend on records, and how. They stay with whoever holds the records. Of shards only names and
sizes are compared; of the others everything but these digests.
"""
SOURCES = ("arrays", "pictures")
"""What feature sets are made of."""
DIGEST = re.compile(rb"[0-9a-f]{64}")


class Clock(datetime):
    """A second later whenever it is asked."""

    asked = count()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 1, 1, tzinfo=tz) + timedelta(seconds=next(cls.asked))


def counted_up(patch: pytest.MonkeyPatch, first: int) -> None:
    """Random names, ids and clocks that count how often they are asked for."""
    named = count(first)
    Clock.asked = count(first)
    patch.setattr(facts, "datetime", Clock)
    for place in (files, facts, writers):
        patch.setattr(place, "secrets", SimpleNamespace(token_hex=lambda size: f"{next(named):0{2 * size}x}"))


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The curator with fixed answers, and clocks and names that count. Yields what could be seen at each release."""
    real, moments = curator._Passes._sum, list[Any]()

    def forgotten(*given: Any) -> np.ndarray:
        found = (os.path.join(top, name) for top, _, names in os.walk(".") for name in names)
        moments.append({path: os.stat(path).st_size for path in sorted(found) if not path[2:].startswith(SOURCES)})
        return np.zeros_like(real(*given))

    instead.total(patch, forgotten)
    instead.block_rows(patch, BLOCK)
    instead.bits(patch, lambda: SeededBits(0))
    asked = count()
    counted_up(patch, 10**6)
    # A terminal, and so long a time between two calls that each step of the progress is drawn.
    patch.setenv("TTY_COMPATIBLE", "1")
    patch.setattr(progress, "monotonic", lambda: 60.0 * next(asked))
    for place in ("extraction.extract", "training.many", "cli.train"):
        patch.setattr(f"dpfc_cli.{place}.time", SimpleNamespace(monotonic=lambda: 60.0 * next(asked)))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield moments


def seen_in(world: Path, here: Path, lines: tuple[str, ...], patch: pytest.MonkeyPatch, fault: Fault | None) -> Seen:
    """What can be seen of these command lines in that world. It is moved to `here` first: outputs have whole paths."""
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(world, here)
    patch.chdir(here)
    seen: Seen = {}
    with watched(patch) as moments:
        if fault is not None:
            fault(patch)
        for line in lines:
            follow(line, seen)
        for head in sorted(Path("heads").glob("*")):
            follow(f"statement {head}", seen)
            if "report" in points.added("dpfc.commands"):
                follow(f"report {head} --out {head.name}.md", seen)
    seen["meanwhile"] = moments
    digests = {found for path in here.rglob(MANIFEST) for found in DIGEST.findall(path.read_bytes())}
    digests |= {found for path in here.rglob(LEDGER) for found in digests_in(path)}
    for path in sorted(here.rglob("*")):
        name, data = str(path.relative_to(here)), path.read_bytes() if path.is_file() else b"a folder"
        if name.startswith(SOURCES):
            continue
        if any(path.match(pattern) for pattern in HOLDERS):
            for digest in digests:
                data = data.replace(digest, b"*" * len(digest))
        seen[name] = len(data) if path.suffix == ".h5" else data
    return seen


def digests_in(path: Path) -> set[bytes]:
    """Digests in a ledger that depend on records: those of a set's shards, and the hash of each row."""
    with closing(sqlite3.connect(path)) as connection:
        hashes = {each.encode() for (each,) in connection.execute("SELECT hash FROM facts")}
    return hashes | {each.records.encode() for each in read(path).all(Set)}


def both(worlds: dict[str, Path], here: Path, lines: tuple[str, ...], fault: Fault | None = None) -> list[Seen]:
    """What can be seen of these command lines in each world. fault: plants a leak."""
    found = []
    for world in worlds.values():
        with pytest.MonkeyPatch.context() as patch:
            found.append(seen_in(world, here, lines, patch, fault))
    return found


def follow(line: str, seen: Seen) -> None:
    """Run a command line as the console script does, and note everything that it says."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as remarks:
        code = typed(line.split(), output, remarks)
        out, err = ((file.seek(0), file.read())[1] for file in (output, remarks))
    if line.startswith("import") and "--json" in line:
        # The digest of the manifest, which has digests of the records. It is for whoever holds them.
        out = re.sub(b'"sha256": "[0-9a-f]{64}"', b"", out)
    if line.startswith("extract"):
        # Which pictures became null records, and how many. It is for whoever holds them.
        err = re.sub(rb"Warning: Null records.*do not publish it\..*\n(  .*\n)*", b"", err)
    seen.update({f"{line}: code": code, f"{line}: stdout": out, f"{line}: stderr": err})


def differences(one: Seen, other: Seen) -> list[str]:
    """Where something else can be seen."""
    return [name for name in one | other if one.get(name) != other.get(name)]
