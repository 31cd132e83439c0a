"""The description of a feature set, in one JSON file: `manifest.json`.

The manifest holds public facts: what made the features, the names of the classes, and the number of rows per split
(never per class). It also holds digests that depend on the records: the SHA-256 of each shard, for integrity, and the
listing of the source, for the ledger. Whoever knows all records but one can use them to confirm a guess of that one. So
the manifest stays with the shards. Nothing that is handed over has these digests. The manifest has no date, so the same
inputs give the same manifest, byte for byte.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError
from dpfc_cli.sources.classes import Origin

MANIFEST = "manifest.json"
VERSION = 1
DTYPES = ("float16", "float32")
"""The precisions in which features are stored."""
REMEDY = "Make the feature set again with 'dpfc extract' or 'dpfc import'."


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One HDF5 file of a split.

    Attributes:
        file: its name in the folder of the set.
        rows: how many records it has.
        sha256: of the whole file, in hex.

    """

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """One split: its number of records, and its shards in the order of the records."""

    n: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a feature set.

    Attributes:
        classes: the names of the classes, in the order of the labels.
        dim: the length of a feature vector, d.
        dtype: "float16" or "float32".
        labels_per_record: the most labels that a record can have, k.
        origin: who says that `classes` and `labels_per_record` are public facts: the definition of the data set ("data
            set"), the user ("asserted"), or nobody, and they were inferred from the data ("inferred").
        splits: the splits by name: "train", perhaps "test".
        backbone: what made the features.
        source: what the features were made from.
        versions: the versions of the libraries that made them.
        version: the version of this file format.

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
        """SHA-256 of the recipe: of everything that turns a picture into a feature vector (the backbone with the digest
        of its weights, the preparation of the pictures, the dtype), and of the classes.

        Two sets with the same fingerprint may share a head. The fingerprint depends on no record, because heads contain
        it. The records are named by the listing, which stays in the manifest and in the ledger. The fingerprint also
        leaves out the versions of the libraries: they change the last bits only, and are listed beside it.
        """
        preparation = self.source["identity"].get("preparation")
        # The file that imported features came in does not matter.
        backbone = {name: value for name, value in self.backbone.items() if name != "from"}
        if "sha256" in (weights := backbone.get("weights") or {}):
            # The place and the name of the file with the weights do not matter.
            backbone["weights"] = weights["sha256"]
        public = {"backbone": backbone, "classes": self.classes, "dim": self.dim, "dtype": self.dtype}
        public |= {} if preparation is None else {"preparation": preparation}
        return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> Manifest:
    """The manifest of a feature set. Raises UserError if there is none, or if it is damaged."""
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("version") != VERSION:
            raise ValueError(f"its version is {raw.get('version')!r}, this dpfc reads version {VERSION}")
        splits = {
            name: SplitFacts(
                n=int(s["n"]),
                shards=tuple(
                    Shard(file=str(h["file"]), rows=int(h["rows"]), sha256=str(h["sha256"])) for h in s["shards"]
                ),
            )
            for name, s in raw.pop("splits").items()
        }
        manifest = Manifest(splits=splits, classes=tuple(map(str, raw.pop("classes"))), **raw)
    except FileNotFoundError as error:
        raise UserError(
            f"'{folder}' is no feature set: it has no {MANIFEST}.",
            "Name a folder made by 'dpfc extract' or 'dpfc import'.",
            code="missing",
            path=str(path),
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"'{path}' cannot be read as a manifest: {error}.", REMEDY, code="damaged", path=str(path)
        ) from error
    _check(manifest, path)
    return manifest


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that is there, but that the system does not let us read."""
    return UserError(
        f"'{path}' cannot be read: {os.strerror(error.errno or 0)}.",
        "The file itself need not be damaged: check its permissions, and the disk.",
        code="unreadable",
        path=str(path),
    )


def _check(manifest: Manifest, path: Path) -> None:
    """Raise UserError for a manifest that contradicts itself."""
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
        or manifest.dtype not in DTYPES
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
        raise UserError(f"'{path}' contradicts itself: {wrong[0]}.", REMEDY, code="damaged", path=str(path))
