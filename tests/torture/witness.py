"""What lies in a working folder, read without dpfc: feature sets, heads and the ledger, and what is wrong with them."""

import hashlib
import json
import math
import re
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import h5py
import numpy as np

LOCKS = re.compile(r"features/ledger\.locks(/[0-9a-f]{32})?")
"""The lock of a training that was stopped."""
LEFT_BY_KILLS = re.compile(
    # A head's place, the parts of an unfinished set, what SQLite undoes the next time, a ledger without facts, and the
    # notes of a set that was finished but for its tidying.
    r"(heads|starts)/\.[^/]+\.[0-9a-f]{16}\.tmp"
    rf"|{LOCKS.pattern}"
    r"|features/[^/]+\.partial(/.*)?"
    r"|features/ledger\.sqlite-journal"
    r"|features/[^/]+/(settings\.json|\.[^/]+\.[0-9a-f]{16}\.tmp)"
)
"""What a run may leave that was killed. The next extraction tidies up; docs/heads.md names the head's place."""
PRODUCTS = re.compile(
    r"features/[^/.]+/(manifest\.json|[^/.]+\.h5)"
    r"|features/[^/.]+\.tuning\.jsonl"
    r"|(heads|starts)/[^/]+\.safetensors"
)
LEDGER = "features/ledger.sqlite"


@dataclass(frozen=True)
class Seen:
    """files: SHA-256 of each file but the ledger, by its path. facts: of the ledger, in their order. wrong: what is
    broken.
    """

    files: dict[str, str]
    facts: list[dict[str, Any]]
    wrong: list[str]

    def kind(self, kind: str) -> list[dict[str, Any]]:
        """The facts of a kind."""
        return [fact for fact in self.facts if fact["kind"] == kind]

    def outcomes(self, charge: str) -> list[dict[str, Any]]:
        """What became of a charge."""
        return [fact for fact in self.kind("outcome") if fact["charge"] == charge]

    @property
    def open(self) -> list[str]:
        """The charges that have no head yet, as the ledger knows."""
        written = {fact["charge"] for fact in self.kind("outcome") if fact["state"] == "written"}
        return [fact["id"] for fact in self.kind("charge") if fact["id"] not in written]

    @property
    def heads(self) -> dict[str, str]:
        """SHA-256 of each head, by its name."""
        return {Path(path).name: digest for path, digest in self.files.items() if path.startswith("heads/")}

    @property
    def products(self) -> dict[str, str]:
        """Files that are there for good, without what was there by kills alone."""
        return {path: digest for path, digest in self.files.items() if PRODUCTS.fullmatch(path)}

    @property
    def strange(self) -> list[str]:
        """Files in `features`, `heads` and `starts` that are no products."""
        watched = ("features", "heads", "starts")
        return [path for path in self.files if path.split("/")[0] in watched and path not in self.products]


def look(work: Path) -> Seen:
    """Everything below a working folder."""
    files, wrong = dict[str, str](), list[str]()
    facts: list[dict[str, Any]] = []
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if name == LEDGER:
            facts, faults = ledger(path)
            wrong += [f"{name}: {fault}" for fault in faults]
        elif path.is_file() and path.name == "manifest.json":
            # Its id is random.
            files[name] = hashlib.sha256(re.sub(rb'"id": ?"[0-9a-f]{32}"', b"", path.read_bytes())).hexdigest()
        elif path.is_file():
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.parent.name == "features" and not re.search(r"\.partial$|^ledger\.", path.name):
            wrong += [f"{name}: {fault}" for fault in feature_set(path)]
    for name in files:
        if name.startswith("heads/") and name.endswith(".safetensors") and not name.startswith("heads/."):
            wrong += [f"{name}: {fault}" for fault in head(work / name)]
    return Seen(files, facts, wrong)


def ledger(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts of a ledger, and what is wrong with it. SQLite may repair a copy, as a command would."""
    with tempfile.TemporaryDirectory() as folder:
        for each in (path, path.with_name(path.name + "-journal")):
            if each.exists():
                shutil.copy(each, folder)
        try:
            with closing(sqlite3.connect(Path(folder) / path.name)) as connection:
                found = connection.execute("PRAGMA quick_check").fetchone()[0]
                there = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
                asked = "SELECT n, id, kind, body, hash FROM facts ORDER BY n"
                rows = connection.execute(asked).fetchall() if there else []
        except sqlite3.Error as error:
            return [], [str(error)]
    wrong, before = [] if found == "ok" else [found], ""
    for due, (n, fact, kind, body, hashed) in enumerate(rows, 1):
        before = hashlib.sha256(json.dumps([before, n, fact, kind, body]).encode()).hexdigest()
        if (n, hashed) != (due, before):
            wrong.append(f"row {n} does not follow the one before it")
            break
    return [{**json.loads(body), "id": fact, "kind": kind} for _, fact, kind, body, _ in rows], wrong


def delta_spent(epsilon: float, mu: float) -> float:
    """δ(ε) of a μ-GDP mechanism, by the formula of Balle and Wang."""
    normal = NormalDist()
    return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)


def spent(charges: Iterable[dict[str, Any]]) -> float:
    """Σ times/σ² of all releases of charges."""
    return math.fsum(each["times"] / each["sigma"] ** 2 for charge in charges for each in charge["releases"])


def feature_set(folder: Path) -> list[str]:
    """What is wrong with a folder that has the name of a finished set."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        wrong = []
        for split, facts in manifest["splits"].items():
            start = 0
            for shard in facts["shards"]:
                data = (folder / shard["file"]).read_bytes()
                if hashlib.sha256(data).hexdigest() != shard["sha256"]:
                    wrong.append(f"{shard['file']} has another digest")
                with h5py.File(folder / shard["file"]) as file:
                    index, shape = file["index"][:], file["features"].shape
                    if not np.array_equal(index, np.arange(start, start + shard["rows"])):
                        wrong.append(f"{shard['file']} has other rows")
                    if shape != (shard["rows"], manifest["dim"]) or file["labels"].shape[0] != shard["rows"]:
                        wrong.append(f"{shard['file']} has shape {shape}")
                start += shard["rows"]
            if start != facts["n"]:
                wrong.append(f"{split} has {start} rows of {facts['n']}")
    except (OSError, ValueError, KeyError) as error:
        return [f"not whole ({type(error).__name__}: {error})"]
    return wrong


def card(path: Path) -> dict[str, Any]:
    """The card of a head."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["card"])
    return found


def head(path: Path) -> list[str]:
    """What is wrong with a head's file."""
    data = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__")
        card = json.loads(metadata["card"])
        end = max(tensor["data_offsets"][1] for tensor in header.values())
        if 8 + length + end != len(data):
            return [f"{len(data)} bytes, not {8 + length + end}"]
        kinds = {"F32": np.float32, "F64": np.float64}
        for name, tensor in header.items():
            begin, stop = (8 + length + offset for offset in tensor["data_offsets"])
            if not np.isfinite(np.frombuffer(data[begin:stop], kinds[tensor["dtype"]])).all():
                return [f"{name} is not finite"]
        if header["weight"]["shape"][1] != len(card["classes"]):
            return ["its weight and its classes do not fit together"]
    except (struct.error, ValueError, KeyError) as error:
        return [f"not whole ({type(error).__name__}: {error})"]
    return []
