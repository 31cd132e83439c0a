"""The description of a feature set, in one JSON file: `manifest.json`.

The manifest holds public facts: what made the features, the names of the classes, and the number of rows per split
(never per class). It also holds digests that depend on the records: the SHA-256 of each shard, for integrity, and the
listing of the source, for the ledger. Whoever knows all records but one can use them to confirm a guess of that one. So
the manifest stays with the shards. Nothing that is handed over has these digests. The manifest has no date. It has a
random id, so that no two sets are the same one for the ledger, whatever is in them.

A set may be *grouped*: its records belong to persons, and those of one person lie together. The number of groups is
public, as the number of records is. How many records each group has follows from the shards, and it is stated nowhere
else.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from dpfc_cli.annotations.classes import Origin
from dpfc_cli.errors import damaged, missing, quoted
from dpfc_cli.files import json_in
from dpfc_cli.reading import unread
from dpfc_cli.structs import Count, Digest, Fault, Fraction, Id, Open, Record, Scalar, Values, decoded, encoded

MANIFEST, SETTINGS = "manifest.json", "settings.json"
"""The names of the description of a set, and of the file in which an unfinished set says what it is made of and how."""
VERSION = 1
DTYPES = ("float16", "float32")
"""The precisions in which features are stored."""
Dtype = Annotated[str, Meta(pattern=rf"\A({'|'.join(DTYPES)})\Z")]
_Size = Annotated[int, Meta(ge=1, le=2**31)]


class Shard(Record):
    """One HDF5 file of a split.

    Attributes:
        file: its name in the folder of the set.
        rows: how many records it has.
        sha256: of the whole file, in hex.

    """

    file: str
    rows: Count
    sha256: str


class SplitFacts(Record, omit_defaults=True, dict=True):
    """One split: its number of records, and its shards in the order of the records.

    groups: the number of groups, if the set is grouped.
    """

    n: Count
    shards: Annotated[tuple[Shard, ...], Meta(min_length=1)]
    groups: Count | None = None

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first record of each shard, and at last `n`."""
        return [0, *itertools.accumulate(shard.rows for shard in self.shards)]


class Identity(Open):
    """What is asked of the identity of a source, which may say more.

    Attributes:
        listing: of each split, the digest of the source's listing.
        hold_out: the fraction of the training pictures that became the test split.
        groups: of each split, a digest of the group of each record, if the set is grouped.
        preparation: of the pictures.

    """

    listing: Mapping[str, str] = field(default_factory=dict)
    hold_out: Fraction | None = None
    groups: Mapping[str, Digest] | None = None
    preparation: Values | None = None


class _Weights(Open):
    sha256: str = ""


class _Backbone(Open):
    name: str | None = None
    weights: _Weights | None = None


class Manifest(Record, dict=True):
    """The description of a feature set.

    Attributes:
        classes: the names of the classes, in the order of the labels.
        dim: the length of a feature vector, d.
        dtype: "float16" or "float32".
        labels_per_record: the most labels that a record can have, k.
        origin: who says that `classes` and `labels_per_record` are public facts: the definition of the data set ("data
            set"), or the user ("asserted").
        splits: the splits by name: "train", perhaps "test".
        backbone: what made the features.
        source: what the features were made from.
        versions: the versions of the libraries that made them.
        version: the version of this file format.
        id: the set's own random id, 32 hexadecimal digits; "" before the set is made.
        grouped_by: how groups were found, such as {"by": "folder", "level": 1}, without any name of a group; None if
            the set is not grouped.
        subgroups: the columns that are kept beside the shards, with their values; None if there are none.

    """

    classes: Annotated[tuple[str, ...], Meta(min_length=1)]
    dim: _Size
    dtype: Dtype
    labels_per_record: _Size
    origin: Origin
    splits: Mapping[str, SplitFacts]
    backbone: Values
    source: Values
    versions: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION
    id: Id = ""
    grouped_by: Mapping[str, Scalar] | None = None
    subgroups: Mapping[str, tuple[str, ...]] | None = None

    @cached_property
    def identity(self) -> Identity:
        """What the source says of itself."""
        return decoded(self.source["identity"], Identity)

    @property
    def grouped(self) -> bool:
        return self.grouped_by is not None

    @property
    def hold_out(self) -> float:
        """The fraction of the training pictures that became the test split. 0 if the source has its own test split."""
        return self.identity.hold_out or 0.0

    def to_json(self) -> bytes:
        """The bytes of `manifest.json`. A name that is not UTF-8 on disk is written with JSON's escapes."""
        values = encoded(self)
        for name in ("grouped_by", "subgroups"):
            if values[name] is None:
                del values[name]
        said = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        return said.encode("utf-8", "backslashreplace")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the recipe: of everything that turns a picture into a feature vector (the backbone with the digest
        of its weights, the preparation of the pictures, the dtype), and of the classes.

        Two sets with the same fingerprint may share a head. The fingerprint depends on no record, because heads contain
        it. The records are named by the listing, which stays in the manifest and in the ledger. The fingerprint also
        leaves out the versions of the libraries: they change the last bits only, and are listed beside it.
        """
        return fingerprint_of(self.backbone, self.classes, self.dim, self.dtype, self.identity.preparation)


def fingerprint_of(backbone: Values, classes: Sequence[str], dim: int, dtype: str, preparation: Values | None) -> str:
    """`Manifest.fingerprint`, of the values that it depends on."""
    known = dict(backbone)
    if "sha256" in (weights := known.get("weights") or {}):
        # The place and the name of the file with the weights do not matter.
        known["weights"] = weights["sha256"]
    public = {"backbone": known, "classes": classes, "dim": dim, "dtype": dtype}
    public |= {} if preparation is None else {"preparation": preparation}
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def _file_name(value: str) -> bool:
    """Whether it names a file in the folder of the set, and nothing elsewhere."""
    try:
        return value not in ("", ".", "..") and not {*os.fsencode(value)} & {*b"/\0"}
    except UnicodeEncodeError:
        return False


def load(folder: Path) -> Manifest:
    """The manifest of a feature set. Raises UserError if there is none, or if it is damaged."""
    path = folder / MANIFEST
    try:
        raw = json_in(path)
        if not isinstance(raw, dict):
            raise ValueError("it is no JSON object")
        if type(raw.get("version")) is not int or raw["version"] != VERSION:
            raise ValueError(f"its version is {str(raw.get('version'))[:40]}, this dpfc reads version {VERSION}")
        manifest = decoded({"grouped_by": None, "subgroups": None, **raw}, Manifest)
        decoded(manifest.backbone, _Backbone)
        if not isinstance(manifest.source.get("identity"), dict) or manifest.identity is None:
            raise Fault("source.identity")
        if not all(_file_name(shard.file) for split in manifest.splits.values() for shard in split.shards):
            raise Fault("shards")
    except FileNotFoundError as error:
        raise missing(
            f"{quoted(folder)} is no feature set: it has no {MANIFEST}.",
            "Name a folder made by 'dpfc extract' or 'dpfc import'.",
        ) from error
    except OSError as error:
        raise unread(path, error, wrong="unreadable") from error
    except ValueError as error:
        raise damaged(f"{quoted(path)} cannot be read as a manifest: {error}.", _made_again(folder)) from error
    wrong = next(_contradictions(manifest), None)
    if wrong is not None:
        raise damaged(f"{quoted(path)} contradicts itself: {wrong}.", _made_again(folder))
    return manifest


def _made_again(folder: Path) -> str:
    """The remedy for a set that is damaged. Its command makes nothing anew while the folder is there."""
    return f"Delete '{folder}', and type the command again that made it: 'dpfc extract' or 'dpfc import'."


def _contradictions(manifest: Manifest) -> Iterator[str]:
    splits, identity = manifest.splits, manifest.identity
    for name, split in splits.items():
        if sum(s.rows for s in split.shards) != split.n:
            yield f"split '{name}' has shards that do not add up to its rows"
        if len({s.file.casefold() for s in split.shards}) < len(split.shards):
            yield f"split '{name}' lists a shard twice"
        if (split.groups is not None) != manifest.grouped:
            yield f"split '{name}' has {'no ' if split.groups is None else ''}groups, unlike the set"
        if (split.groups or 0) > split.n:
            yield f"split '{name}' has more groups than records"
    if not splits:
        yield "it has no split"
    if len(set(manifest.classes)) < len(manifest.classes):
        yield "two of its classes have one name"
    if manifest.grouped != (set(identity.groups or ()) >= set(splits) != set()):
        yield "what it says of groups does not fit its splits"
    if not set(identity.listing) >= set(splits):
        yield "its listing lacks a split"
