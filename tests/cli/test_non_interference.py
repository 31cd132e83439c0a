"""Non-interference: whatever leaves a training beside the curator's answers depends on no record.

The true curator is at work, with two changes: it reads and sums the records and then forgets the sums, and its noise
comes from a fixed seed. Two sets of records with the same public facts, and nothing else in common, must then give the
same bytes everywhere: heads, cards, rows of the ledger, both output streams, exit codes, and names and sizes of files.
Clocks and random names count how often they are asked for, so that one time more or less is seen, too.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from dpfc_cli import evaluation, files
from dpfc_cli.cli import display
from dpfc_cli.cli.app import app
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.manifest import MANIFEST, Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.heads import head as heads
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.training import charge, check, ledger, request, run
from dpfc_cli.training import train as training
from tests.support import blobs

N, TEST, D, M, K = 150, 30, 4, 3, 3
BLOCK = 64
"""Records read at a time: a pass takes three blocks."""
Fault = Callable[[pytest.MonkeyPatch], None]
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


def write_set(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """A feature set of these training records, whatever they are. The test split is always the same."""
    k = y.shape[1]
    test_x, test_y = blobs(TEST, D, M, seed=2)
    splits = {"train": (x, y), "test": (test_x, np.pad(test_y[:, None], ((0, 0), (0, k - 1)), constant_values=-1))}
    listing = {name: hashlib.sha256(part.tobytes()).hexdigest() for name, (part, _) in splits.items()}
    identity = {"imported": "raw.npz", "listing": listing, "k": k, "dtype": "float32"}
    rows = {name: len(part) for name, (part, _) in splits.items()}
    manifest = Manifest(
        classes=("flu", "cold", "rare"),
        dim=D,
        dtype="float32",
        labels_per_record=k,
        origin="asserted",
        splits={},
        backbone={"name": "imported", "from": "raw.npz"},
        source={"dataset": "raw", "identity": identity},
    )
    writer = FeatureWriter(
        folder, rows=rows, dim=D, dtype="float32", labels_per_record=k, identity=identity, shards=2
    )
    with closing(writer):
        shards = writer.missing
        for planned in shards:
            with writer.shard(planned) as sink:
                labels = splits[planned.split][1][planned.start : planned.stop]
                sink.append(np.zeros((planned.rows, D)), labels[:, 0] if k == 1 else labels)
        writer.finish(manifest)
    # Such features are refused by the writer. The curator does not rely on that.
    described = json.loads((folder / MANIFEST).read_text())
    for planned in shards:
        with h5py.File(folder / planned.file, "r+") as file:
            file["features"][:] = splits[planned.split][0][planned.start : planned.stop]
        for shard in described["splits"][planned.split]["shards"]:
            shard["sha256"] = files.sha256_of(folder / shard["file"])
    (folder / MANIFEST).write_text(json.dumps(described))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The working folder of each world. The public set is the same in both."""
    top = tmp_path_factory.mktemp("worlds")
    x, y = blobs(90, D, M, seed=3)
    raw = {"train_x": x[:60], "train_y": y[:60], "test_x": x[60:], "test_y": y[60:]}
    np.savez(top / "raw.npz", **raw)
    import_features(top / "raw.npz", top / "known", classes=("a", "b", "c"), labels_per_record=1)
    made = {}
    for name, records in WORLDS.items():
        folder = made[name] = top / name
        shutil.copytree(top / "known", folder / "features" / "known")
        for own, k in (("private", 1), ("several", K)):
            write_set(folder / "features" / own, *records(k))
        for i, manifest in enumerate(sorted(folder.glob(f"features/*/{MANIFEST}"))):
            os.utime(manifest, (i, i))
        x, y = records(1)
        (folder / "arrays").mkdir()
        for part, array in {**raw, "train_x": np.nan_to_num(x), "train_y": y[:, 0].clip(0, M - 1)}.items():
            np.save(folder / "arrays" / f"{part}.npy", array)
    return made


# --- What can be seen.

HOLDERS = {
    "features/*/*.h5": "the records themselves",
    "features/*/manifest.json": "digests of the shards, and of the source's listing",
    "features/*.ledger.sqlite": "`records`, a digest of the source's listing, links sets of the same records",
}
"""The files that depend on records, and how. They stay with whoever holds the records. Of the first kind only names and
sizes are compared; of the others everything but these digests.
"""
DIGEST = re.compile(rb"[0-9a-f]{64}")


class Clock(datetime):
    """A second later whenever it is asked."""

    asked = count()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(cls.asked))


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The curator with fixed answers, and clocks and names that count. Yields what could be seen at each release."""
    real, moments = curator.exact_sum, list[Any]()

    def forgotten(*given: Any) -> np.ndarray:
        moments.append({str(path): path.stat().st_size for path in sorted(Path().rglob("*")) if path.is_file()})
        return np.zeros_like(real(*given))

    patch.setattr(curator, "exact_sum", forgotten)
    patch.setattr(curator, "block_rows", lambda facts: BLOCK)
    patch.setattr(run, "SystemBits", lambda: SeededBits(0))
    asked, named = count(), count()
    patch.setattr(Clock, "asked", count())
    patch.setattr(charge, "datetime", Clock)
    # So long a time between two calls that each step of the progress is a line.
    patch.setattr(display, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(asked)))
    patch.setattr(files, "secrets", SimpleNamespace(token_hex=lambda size: f"{next(named):0{2 * size}x}"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield moments
    moments.append([str(each.message) for each in warned])


@contextmanager
def below_python() -> Iterator[list[bytes]]:
    """What libraries write to the process's own streams, past Python's."""
    written: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(1), os.dup(2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield written
        finally:
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            file.seek(0)
            written.append(file.read())


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
            for line in (f"statement {head}", f"statement {head} --json", f"evaluate {head} --json"):
                follow(line, seen)
        for line in ("list", "list --json", "budget --delta 1e-5 --json"):
            follow(line, seen)
    seen["meanwhile"] = moments
    digests = {found for path in here.rglob(MANIFEST) for found in DIGEST.findall(path.read_bytes())}
    for path in sorted(here.rglob("*")):
        name, data = str(path.relative_to(here)), path.read_bytes() if path.is_file() else b"a folder"
        if any(path.match(pattern) for pattern in HOLDERS):
            for digest in digests:
                data = data.replace(digest, b"*")
        seen[name] = len(data) if path.suffix in (".h5", ".npy") else data
    return seen


def both(worlds: dict[str, Path], here: Path, lines: tuple[str, ...], fault: Fault | None = None) -> list[Seen]:
    """What can be seen of these command lines in each world. fault: plants a leak."""
    found = []
    for world in worlds.values():
        with pytest.MonkeyPatch.context() as patch:
            found.append(seen_in(world, here, lines, patch, fault))
    return found


def follow(line: str, seen: Seen) -> None:
    """Run a command line, and note everything that it says."""
    with below_python() as written:
        ended = CliRunner().invoke(app, line.split())
    said = {"code": ended.exit_code, "stdout": ended.stdout, "stderr": ended.stderr, "error": repr(ended.exception)}
    seen.update({f"{line}: {what}": value for what, value in {**said, "below Python": written}.items()})
    if line.startswith("import") and "--json" in line:
        # The digest of the manifest, which has digests of the records. It is for whoever holds them.
        seen[f"{line}: stdout"] = re.sub('"sha256": "[0-9a-f]{64}"', "", ended.stdout)


def differences(one: Seen, other: Seen) -> list[str]:
    """Where something else can be seen."""
    return [name for name in one | other if one.get(name) != other.get(name)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place") / "here"


# --- What is run.

PRIVATE, SEVERAL = "train --features private", "train --features several"
SCENARIOS = {
    "dp-whitened": (f"{PRIVATE} --epsilon 1", f"{PRIVATE} --epsilon 1 --steps 2 --damping 0.5"),
    "dp-whitened with public features": (f"{PRIVATE} --epsilon 1 --public-features known --json",),
    "dp-fc": (
        f"{PRIVATE} --method dp-fc --epsilon 1 --adjacency replace-one --json",
        f"{PRIVATE} --method dp-fc --epsilon 1 --steps 2 --loss softmax --budget-split 0.3,0.7",
    ),
    "dp-ls": (
        f"{PRIVATE} --method dp-ls --noise-multiplier 30 --delta 0.02 --allow-large-delta",
        f"{PRIVATE} --method dp-ls --epsilon 8 --negative-weight 0.2 --ridge 1 --memory 8GB",
    ),
    "dp-newton": (f"{PRIVATE} --method dp-newton --epsilon 1 --steps 2",),
    "dp-newton, tuned": (f"{PRIVATE} --method dp-newton --epsilon 1 --steps 1 --damping 1 --tune-on known --json",),
    "dp-sgd, sampled": (
        f"{PRIVATE} --method dp-sgd --epsilon 1 --steps 2 --sampling-rate 0.3",
        f"{PRIVATE} --method dp-sgd --sigma 9 --steps 2 --average",
    ),
    "dp-momentum, with the traceback of a defect": (
        f"-v {PRIVATE} --method dp-momentum --epsilon 1 --steps 2 --feature-clip 0.1 --gradient-clip 1",
    ),
    "dp-adam, quiet": (f"-q {PRIVATE} --method dp-adam --epsilon 1 --steps 2 --learning-rate 1",),
    "noise of a seed": (f"{PRIVATE} --method dp-ls --epsilon 1 --seed 3 --out heads/a.research.safetensors",),
    "label sets": (
        f"{SEVERAL} --epsilon 1 --steps 2",
        f"{SEVERAL} --method dp-ls --epsilon 1 --adjacency replace-one",
        f"{SEVERAL} --method dp-sgd --epsilon 1 --steps 2 --loss softmax",
    ),
    "the newest set": ("train --method dp-ls --epsilon 1 --yes",),
    "a rehearsal": (f"{PRIVATE} --epsilon 1 --dry-run", f"{PRIVATE} --epsilon 1 --dry-run --json"),
    "refusals": (
        f"{PRIVATE} --epsilon 1 --delta 0.5",
        f"{PRIVATE} --epsilon 1 --memory 1KB",
        f"{PRIVATE} --epsilon 1 --out heads",
        f"{PRIVATE} --epsilon 1 --public-features private",
        f"{PRIVATE} --epsilon 1 --tune-on several",
        f"{PRIVATE} --sigma 1e30",
    ),
    "an import": (
        "import arrays --out fresh --classes 3 --labels-per-record 1 --json",
        "import arrays --out fresh2 --classes 3 --labels-per-record 1",
        "train --features fresh --method dp-ls --epsilon 1",
    ),
}


@pytest.fixture(scope="module")
def seen_of(worlds: dict[str, Path], here: Path) -> Callable[[str], list[Seen]]:
    """What can be seen of a scenario, in each world."""
    known: dict[str, list[Seen]] = {}

    def found(scenario: str) -> list[Seen]:
        if scenario not in known:
            known[scenario] = both(worlds, here, SCENARIOS[scenario])
        return known[scenario]

    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_that_can_be_seen_depends_on_a_record(seen_of: Callable[[str], list[Seen]], scenario: str) -> None:
    one, other = seen_of(scenario)
    assert not differences(one, other)
    codes = {code for name, code in one.items() if name.endswith(": code")}
    assert codes == ({0, 2} if scenario == "refusals" else {0})


def test_dbg(seen_of):
    import time
    for s in list(SCENARIOS):
        t=time.process_time(); one, other = seen_of(s); t=time.process_time()-t
        d=differences(one, other)
        print("=====", s, round(t,2), d)
        for k in d:
            a,b=one[k],other[k]
            if k=="meanwhile":
                for x,y in zip(a,b): print(set(x.items())^set(y.items()) if isinstance(x,dict) else (x,y))
                continue
            i=next(i for i in range(len(a)) if a[i]!=b[i])
            print(k,len(a),len(b),i,a[max(0,i-100):i+100],b[max(0,i-100):i+100])
