"""Making a feature set of features that another program computed: of pictures, of texts, of anything.

`tables` lists the formats.
"""

import hashlib
import json
import os
import shutil
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfc_cli.errors import (
    GUARDED,
    Faults,
    UserError,
    bad_record,
    conflict,
    counted,
    parameter,
    quoted,
    secret,
    unwritable,
)
from dpfc_cli.extraction import slides
from dpfc_cli.extraction.request import Import
from dpfc_cli.features.lookup import new_folder
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.table import ROWS, Table, reordered
from dpfc_cli.features.tables import opened
from dpfc_cli.features.writer import FeatureWriter, complete, saying_what_is_kept
from dpfc_cli.folders import PARTIAL
from dpfc_cli.ledger.populations import check_name, check_new, check_same, register
from dpfc_cli.memory import check_fits
from dpfc_cli.options import takes
from dpfc_cli.progress import Progress
from dpfc_cli.sources.classes import Labels, check_names, class_names, coded, numbers_of, stated
from dpfc_cli.sources.groups import GROUPS, check_apart, grouped
from dpfc_cli.sources.nulls import Broken, naming
from dpfc_cli.sources.person_hints import persons_noticed, refuse_both
from dpfc_cli.sources.split_files import held_out

BLOCK = 2**26
"""Bytes that a block should not exceed."""
_HOT = frozenset(("0", "1", "0.0", "1.0", "False", "True"))
"""Labels of tables with a column for each class."""


class Imported(NamedTuple):
    """What an import did. features: the set. made: whether it was made now; False if it was complete before."""

    features: FeatureSet
    made: bool


@takes(Import)
def import_features(wanted: Import) -> Imported:
    """Make a feature set of the features in a file or a folder.

        texts = import_features("embeddings.npz", "texts", classes=["spam", "ham"]).features

    The classes and the most labels of a record are public facts: every head has them. So they are stated, and do not
    follow from the records.

    Returns:
        The set, and whether it was made now. It is not made again if `out` already holds it.

    Raises:
        UserError: something cannot be imported, or some records seem to be of one person (`PersonsNoticedError`). No
            finished set is left behind then.

    """
    folder = slides.folder_of(wanted.path)
    path = Path(wanted.path) if folder is None else folder
    hold_out, group_column, labels_per_record = wanted.hold_out, wanted.group_column, wanted.labels_per_record
    single, tolerant, progress = wanted.each_record_is_a_person, wanted.tolerant, wanted.progress
    refuse_both(single, group_column is not None, "group_column")
    # Heads have the name. A path may be called after a patient.
    default = ("imported" if folder is None else "slides") + ("" if hold_out is None else f"-holdout{hold_out:g}")
    out = new_folder(default if wanted.out is None else wanted.out)
    check_name(wanted.population)
    wanted.check_there(path=path)
    names = stated(class_names(wanted.classes))
    with naming(out, tolerant), ExitStack() as stack:
        if folder is None:
            slides.refuse(wanted)
            source = stack.enter_context(opened(path, wanted.column, wanted.label_column, group_column))
        else:
            source = slides.pooled(folder, wanted, names)
        raw = source.splits
        persons = any(table.keys is not None for table in raw.values())
        refuse_both(single, persons, "group_column")
        for remark in source.remarks:
            wanted.warned(remark)
        faults = Faults()
        with faults.gathered():
            if not persons and not single and (seems := source.noticed()) is not None:
                raise persons_noticed(str(path), "group_column", seems)
        with faults.gathered():
            check_apart({split: table.keys for split, table in raw.items() if table.keys is not None})
        tables = _by_classes(raw, source.classes, names, faults)
        faults.refuse()
        width = max(table.y.shape[1] for table in tables.values())
        by_list = any(table.counted for table in tables.values())
        if labels_per_record is None and (width > 1 or by_list):
            raise conflict(
                "Records may have several labels here, and nobody says how many. Each head says it, so it is public.",
                f"Say how many a record has at most: {parameter('labels_per_record')}.",
                parameter="labels_per_record",
            )
        k = labels_per_record or 1
        if k < width:
            raise conflict(
                f"{quoted(path)} has {f'a record with {width} labels' if by_list else f'{width} label columns'}, more "
                f"than {parameter('labels_per_record')} {k}.{f' {GUARDED}' if by_list else ''}",
                "Assert the larger number, or drop columns.",
            )
        dtype = wanted.dtype or (
            "float16" if all(table.dtype == np.float16 for table in tables.values()) else "float32"
        )
        _check_room(path, out, tables, k, dtype)
        listing = _listing(raw, progress)
        if hold_out is not None:
            tables = _held_out(tables, hold_out, str(path))
            # Both splits keep the listing of the whole, as those of an extraction do.
            listing["test"] = listing["train"]
        keys = {split: table.keys for split, table in tables.items() if table.keys is not None}
        identity: dict[str, Any] = {
            "imported": path.name,
            "listing": listing,
            "k": k,
            "dtype": dtype,
            **({} if hold_out is None else {"hold_out": hold_out}),
        }
        # The listing is that of the source. So the ledger knows the records, with groups and without.
        groupings = {split: grouped(own) for split, own in keys.items()}
        if groupings:
            identity["groups"] = {split: grouping.digest for split, grouping in groupings.items()}
            tables = {
                split: reordered(table, groupings[split].order, _rows_of(table)) for split, table in tables.items()
            }
        facts = {} if folder is None else {"feature": f"mean of the patches of each {wanted.pool_by or 'slide'}"}
        person = {"by": "column" if folder is None else "table", "column": source.person or group_column or GROUPS}
        manifest = Manifest(
            classes=names,
            dim=tables["train"].d,
            dtype=dtype,
            labels_per_record=k,
            origin="asserted",
            splits={},
            backbone={"name": "imported", **facts},
            source={"dataset": path.stem if path.is_file() else path.name, "identity": identity},
            versions={"numpy": np.__version__},
            grouped_by=person if groupings else None,
        )
        features = complete(out, manifest, partial(check_same, population=wanted.population))
        if features is not None:
            return Imported(features, made=False)
        check_new(out, manifest, wanted.population)
        sizes = {split: table.n for split, table in tables.items()}
        nulls = Broken("record", sizes, lambda split, i: f"record {i} of {split}", wanted.share)
        writer = FeatureWriter(
            out,
            manifest,
            rows=sizes,
            groups={split: grouping.ids for split, grouping in groupings.items()} or None,
            tolerant=tolerant,
            population=wanted.population,
            shared=False,
        )
        with saying_what_is_kept(out), closing(writer):
            try:
                _write(writer, tables, k, progress)
                finished = writer.finish(nulls.approve, partial(register, population=wanted.population))
            except UserError as error:
                if error.code in ("bad-record", "conflict"):
                    # What was refused is another import once it is corrected.
                    writer.discard()
                raise
    assert finished is not None, "a writer that works alone finishes the set"
    if nulls.said is not None:
        wanted.warned(nulls.said)
    return Imported(FeatureSet(out), made=True)


def _held_out(tables: dict[str, Table], fraction: float, source: str) -> dict[str, Table]:
    """The records for training as two splits. They have no names, so their places count as names."""
    train = tables["train"]
    parts = held_out(source, {split: table.n for split, table in tables.items()}, fraction, "record", keys=train.keys)
    return {split: reordered(train, records, _rows_of(train)) for split, records in parts.items()}


def _by_classes(
    tables: dict[str, Table], called: tuple[str, ...] | None, classes: tuple[str, ...], faults: Faults
) -> dict[str, Table]:
    """The tables with numbers of classes as labels. called: what numbers stand for, if the source says so.

    Added to the faults: a label means no class, a record has none, or the labels are zeros and ones for each class.
    """
    labels = {split: _labels(table, called) for split, table in tables.items()}
    for split, own in labels.items():
        # Of two classes, each record could have both. Whoever means that has columns of zeros and ones, too.
        if own.codes.shape[1] > 1 and _HOT.issuperset(own.texts[code] for code in np.unique(own.codes)):
            with faults.gathered():
                raise bad_record(
                    f"The {split} labels are a table of zeros and ones, as of a column for each class. {GUARDED}",
                    "Give the numbers of each record's classes instead, from 0, filled up with −1 to one length. For "
                    "one class in each record, in NumPy: y.argmax(axis=1).",
                )
        unlabelled = np.array([not text for text in own.texts])[own.codes].all(axis=1)
        if not tables[split].nulls and (lacking := np.flatnonzero(unlabelled).tolist()):
            what = f"{counted(len(lacking), f'{split} record')} without a label: {secret(*lacking)}. {GUARDED}"
            with faults.gathered():
                raise bad_record(what, "Label them, or leave them out before importing.")
    with faults.gathered():
        check_names(called or (), classes)
    numbers = numbers_of(labels, classes, faults)
    return {split: replace(tables[split], y=y, names=None) for split, y in numbers.items()}


def _labels(table: Table, called: tuple[str, ...] | None) -> Labels:
    if table.names is None:
        return coded(table.y, called)
    own = coded([*table.names, None], called)
    # −1 is the last one.
    return Labels(own.texts, own.codes[table.y])


def _write(writer: FeatureWriter, tables: dict[str, Table], k: int, progress: Progress | None) -> None:
    for planned in writer.missing:
        table = tables[planned.split]
        with writer.shard(planned) as sink:
            rows = _rows_of(table)
            for at in range(planned.start, planned.stop, rows):
                stop = min(at + rows, planned.stop)
                x, y = table.rows(at, stop), table.y[at:stop]
                sink.append(x, _as_stored(y, k), np.asarray((y < 0).all(axis=1)))
                if progress:
                    progress(f"Importing {planned.split}", stop, table.n)


def _rows_of(table: Table) -> int:
    """How many rows are read at once. Only the size of a row decides, and the digest of the rows does not."""
    return max(1, min(ROWS, BLOCK // (8 * table.d)))


def _check_room(path: Path, out: Path, tables: dict[str, Table], k: int, dtype: str) -> None:
    """Raise UserError if memory cannot hold a row, or the disk the feature set. So a small file that expands without
    end stops nothing.
    """
    for table in tables.values():
        check_fits(path, "one record", 8 * table.d, copies=8)
    width = np.dtype(dtype).itemsize
    needed = sum(table.n * (table.d * width + 4 * k + (8 if table.keys is None else 16)) for table in tables.values())
    partial = out.with_name(out.name + PARTIAL)
    made = sum(file.stat().st_size for file in partial.glob("*.h5"))
    place = next(folder for folder in partial.absolute().parents if os.path.isdir(folder))
    free = shutil.disk_usage(place).free
    if needed - made > free:
        raise unwritable(
            f"{quoted(path)} says that it holds {' + '.join(f'{table.n:,}' for table in tables.values())} records. "
            f"They take {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free in '{place}'.",
            f"Check the file. If it is right, choose another {parameter('out')}, or make room.",
            needed=needed,
            allowed=free,
        )


def _as_stored(y: np.ndarray, k: int) -> np.ndarray:
    """Labels as the writer takes them: rows × k int32, or rows for k = 1."""
    padded = np.full((len(y), k), -1, np.int32)
    padded[:, : y.shape[1]] = y
    return padded[:, 0] if k == 1 else padded


def _listing(tables: dict[str, Table], progress: Progress | None) -> dict[str, str]:
    """A digest of each split's values. It is the same for every format.

    With it, a resumed import can tell that the source has changed. It stays in the manifest and the ledger.
    """
    digests = {}
    for split, table in tables.items():
        digest = hashlib.sha256(f"{(table.n, table.d)} {table.dtype} {table.y.shape}".encode())
        # Texts count in their own order. So the listing does not depend on the order of the classes.
        digest.update(b"" if table.names is None else json.dumps(table.names).encode())
        rows = _rows_of(table)
        for at in range(0, table.n, rows):
            stop = min(at + rows, table.n)
            digest.update(np.ascontiguousarray(table.rows(at, stop)).tobytes())
            digest.update(table.y[at:stop].astype("<i8").tobytes())
            if progress:
                progress(f"Reading {split}", stop, table.n)
        digests[split] = digest.hexdigest()
    return digests
