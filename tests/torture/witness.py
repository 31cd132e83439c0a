"""What lies in a working folder, read without dpfc: feature sets, heads and ledgers, and what is wrong with them."""

import hashlib
import json
import re
import shutil
import sqlite3
import struct
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ANSWERS = re.compile(r"heads/\.[^/]+\.[0-9a-f]{16}\.answers")
"""The answers of a training that was stopped."""
LEFT_BY_KILLS = re.compile(
    # A head's place, the parts of an unfinished set, what SQLite undoes the next time, and the notes of a set that was
    # finished but for its tidying.
    r"(heads|starts)/\.[^/]+\.[0-9a-f]{16}\.tmp"
    rf"|{ANSWERS.pattern}"
    r"|features/[^/]+\.partial(/.*)?"
    r"|features/[^/]+\.ledger\.sqlite-journal"
    r"|features/\.[^/]+\.ledger\.digests\.[0-9a-f]{16}\.tmp"
    r"|features/[^/]+/(settings\.json|[^/]+\.sha256|[^/]+\.h5\.digests|\.[^/]+\.[0-9a-f]{16}\.tmp)"
)
"""What a run may leave that was killed. The next extraction tidies up; docs/heads.md names the head's place."""
PRODUCTS = re.compile(
    r"features/[^/.]+/(manifest\.json|[^/.]+\.h5|records\.digests)"
    r"|features/[^/.]+\.(ledger\.(sqlite|digests)|tuning\.jsonl)"
    r"|(heads|starts)/[^/]+\.safetensors"
)


@dataclass(frozen=True)
class Seen:
    """files: SHA-256 of each file but ledgers, by its path. rows, caps: of each ledger. wrong: what is broken."""

    files: dict[str, str]
    rows: dict[str, list[dict[str, Any]]]
    wrong: list[str]
    caps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

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
    files, rows, caps, wrong = {}, {}, {}, []
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if path.name.endswith(".ledger.sqlite"):
            rows[name], caps[name], faults = ledger(path)
            wrong += [f"{name}: {fault}" for fault in faults]
        elif path.is_file():
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.parent.name == "features" and not path.name.endswith(".partial"):
            wrong += [f"{name}: {fault}" for fault in feature_set(path)]
    for name in files:
        if name.startswith("heads/") and name.endswith(".safetensors") and not name.startswith("heads/."):
            wrong += [f"{name}: {fault}" for fault in head(work / name)]
    return Seen(files, rows, wrong, caps)


def ledger(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The rows of a ledger, its caps, and what is wrong with it. SQLite may repair a copy, as a command would."""
    with tempfile.TemporaryDirectory() as folder:
        for each in (path, path.with_name(path.name + "-journal")):
            if each.exists():
                shutil.copy(each, folder)
        try:
            with closing(sqlite3.connect(Path(folder) / path.name)) as connection:
                connection.row_factory = sqlite3.Row
                found = connection.execute("PRAGMA quick_check").fetchone()[0]
                names = [row["name"] for row in connection.execute("SELECT name FROM sqlite_schema")]
                tables = {
                    name: [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY id")]
                    for name in ("trainings", "caps")
                    if name in names
                }
        except sqlite3.Error as error:
            return [], [], [str(error)]
    return tables.get("trainings", []), tables.get("caps", []), [] if found == "ok" else [found]


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
