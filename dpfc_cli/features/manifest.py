"""What a feature set is, in one JSON file: `manifest.json`.

The manifest holds public facts only: what made the features, the classes' names, rows per split (never per class), and
for each shard its file, rows and SHA-256, which serve integrity and go nowhere else. It has no date, so the same inputs
give the same manifest, byte for byte.
"""

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dpfc_cli.errors import UserError

MANIFEST = "manifest.json"
PARTIAL = ".partial"
"""What the folder's name ends in while the set is being made."""
VERSION = 1
Origin = Literal["data set", "asserted", "inferred"]


@dataclass(frozen=True)
class Shard:
    """One HDF5 file of a split. sha256: of the whole file."""

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class SplitFacts:
    """A split: its rows and its shards, in the global record order."""

    n: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Manifest:
    """The description of a feature set.

    dim: d. dtype: "float16" or "float32". labels_per_record: the most labels of one record, k. origin: who says that
    classes and labels_per_record are public: the data set's own definition, the operator ("asserted"), or nobody but
    the data ("inferred"). backbone: what made the features; source: what they were made from.
    """

    classes: tuple[str, ...]
    dim: int
    dtype: str
    labels_per_record: int
    origin: Origin
    splits: dict[str, SplitFacts]
    backbone: dict[str, Any]
    source: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the recipe: what turns a picture into a feature vector (backbone with the digest of its weights,
        preparation, dtype), and the classes.

        Two sets of one fingerprint may share a head. It says nothing about the records, for it goes into heads: the
        pictures are named by the listing, which stays here and in the ledger. Nor does it cover the libraries'
        versions, which move last bits only and are listed beside it.
        """
        preparation = self.source["identity"].get("preparation")
        # Nor does it matter in which file imported features came.
        backbone = {name: value for name, value in self.backbone.items() if name != "from"}
        if "sha256" in (weights := backbone.get("weights") or {}):
            # Where the file was found and what it was called does not matter.
            backbone["weights"] = weights["sha256"]
        public = {"backbone": backbone, "classes": self.classes, "dim": self.dim, "dtype": self.dtype}
        public |= {} if preparation is None else {"preparation": preparation}
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> Manifest:
    """The manifest of a feature set. UserError when there is none or it is not one of ours."""
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("version") != VERSION:
            raise ValueError(f"its version is {raw.get('version')!r}, this dpfc reads version {VERSION}")
        splits = {
            name: SplitFacts(
                int(s["n"]), tuple(Shard(str(h["file"]), int(h["rows"]), str(h["sha256"])) for h in s["shards"])
            )
            for name, s in raw.pop("splits").items()
        }
        manifest = Manifest(splits=splits, classes=tuple(map(str, raw.pop("classes"))), **raw)
    except FileNotFoundError as error:
        raise UserError(
            f"'{folder}' is no feature set: it has no {MANIFEST}.",
            "Name a folder made by 'dpfc extract' or 'dpfc import'.",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"'{path}' cannot be read as a manifest: {error}.",
            "Make the feature set anew with 'dpfc extract' or 'dpfc import'.",
        ) from error
    _check(manifest, path)
    return manifest


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that is there, and that the system will not let us read."""
    return UserError(
        f"'{path}' cannot be read: {os.strerror(error.errno or 0)}.",
        "The file itself need not be damaged: check who may read it, and the disk.",
    )


def _check(manifest: Manifest, path: Path) -> None:
    wrong = [
        f"split '{name}' has shards that do not add up to its rows"
        for name, split in manifest.splits.items()
        if sum(s.rows for s in split.shards) != split.n or split.n < 1
    ]
    wrong += [
        f"split '{name}' lists a shard twice"
        for name, split in manifest.splits.items()
        if len({s.file.casefold() for s in split.shards}) < len(split.shards)
    ]
    wrong += [
        f"shard name '{shard.file}' is not a plain file name"
        for split in manifest.splits.values()
        for shard in split.shards
        if Path(shard.file).name != shard.file
    ]
    numbers = (manifest.dim, manifest.labels_per_record)
    if (
        any(type(v) is not int for v in numbers)
        or manifest.dtype not in ("float16", "float32")
        or manifest.dim < 1
        or manifest.labels_per_record < 1
        or not manifest.classes
        or not isinstance(manifest.backbone, dict)
        or not isinstance(manifest.source, dict)
        or not isinstance(manifest.source.get("identity"), dict)
        or not isinstance(manifest.source["identity"].get("listing"), dict)
        or not set(manifest.source["identity"]["listing"]) >= set(manifest.splits)
    ):
        wrong.append("its dtype, dim, labels_per_record, classes, backbone or source make no sense")
    if wrong:
        raise UserError(
            f"'{path}' contradicts itself: {wrong[0]}.",
            "Make the feature set anew with 'dpfc extract' or 'dpfc import'.",
        )


def write_durably(path: Path, text: str) -> None:
    """Write a whole file or nothing: temporary name, fsync, rename."""
    os.replace(_written(path, text), path)


def write_first(path: Path, text: str) -> bool:
    """Write a whole file unless there is one of that name; False if there was. Of several processes one is first."""
    if path.exists():
        return False
    temporary = _written(path, text)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: who was first is then not certain.
        os.replace(temporary, path)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _written(path: Path, text: str) -> Path:
    # Several processes may write the same file in a shared folder.
    temporary = path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return temporary
