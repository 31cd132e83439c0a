"""Features that something else computed, made into a feature set: of pictures, texts, anything. `tables` says from
what.
"""

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.features.manifest import Manifest, Origin
from dpfc_cli.features.tables import Table, opened
from dpfc_cli.features.writer import FeatureWriter, already_complete, asserted
from dpfc_cli.sources.classes import check_classes

ROWS = 4_096
MOST_INFERRED = 100_000
Progress = Callable[[str, int, int], None]


def import_features(
    path: Path,
    out: Path,
    classes: tuple[str, ...] | None = None,
    labels_per_record: int | None = None,
    dtype: str | None = None,
    shards: int | None = None,
    progress: Progress | None = None,
    column: str | None = None,
    label_column: str | None = None,
) -> tuple[Manifest, bool]:
    """Make a feature set of `path` in `out`: (its manifest, whether it had to be made).

    classes, labels_per_record: the public facts, asserted by the caller; what is None is inferred from the data and
    said to be so. column, label_column: what the source calls features and labels. Raises UserError for anything that
    cannot be taken; then nothing finished is left behind.
    """
    with opened(path, column, label_column) as source:
        tables = source.splits
        width = max(table.y.shape[1] for table in tables.values())
        origin: Origin = "inferred"
        if classes or source.classes:
            origin = "asserted" if classes else "data set"
            counted = any(table.counted for table in tables.values())
            origin = origin if labels_per_record or (width == 1 and not counted) else "inferred"
        classes = classes or source.classes
        _check_labels(tables, len(classes) if classes else None)
        k = labels_per_record or width
        if k < width:
            raise UserError(
                f"'{path}' has {width} label columns, more than --labels-per-record {k}.",
                "Assert the larger number, or drop columns.",
            )
        classes = classes or _inferred_classes(tables)
        check_classes(classes, origin == "inferred")
        dtype = dtype or ("float16" if all(table.dtype == np.float16 for table in tables.values()) else "float32")
        identity = {"imported": path.name, "listing": _listing(tables, progress), "k": k, "dtype": dtype}
        described = {"dataset": path.stem if path.is_file() else path.name, "identity": identity}
        backbone = {"name": "imported", "from": path.name}
        d = tables["train"].d
        wanted = Manifest(classes, d, dtype, k, origin, {}, backbone, described, {"numpy": np.__version__})
        if already_complete(out, identity):
            return asserted(out, wanted), False
        rows = {split: table.n for split, table in tables.items()}
        with closing(FeatureWriter(out, rows, d, dtype, k, identity, shards)) as writer:
            _write(writer, tables, k, progress)
            finished = writer.finish(wanted)
    assert finished is not None, "a writer by itself finishes"
    return finished, True


def _write(writer: FeatureWriter, tables: dict[str, Table], k: int, progress: Progress | None) -> None:
    for task in writer.tasks:
        table = tables[task.split]
        with writer.shard(task) as sink:
            for at in range(task.start, task.stop, ROWS):
                stop = min(at + ROWS, task.stop)
                sink.append(table.rows(at, stop), _as_stored(table.y[at:stop], k))
                if progress:
                    progress(f"Importing {task.split}", stop, table.n)


def _inferred_classes(tables: dict[str, Table]) -> tuple[str, ...]:
    count = 1 + max(int(table.y.max()) for table in tables.values())
    if count > MOST_INFERRED:
        raise UserError(f"The labels seem to name {count:,} classes. {GUARDED}", "Say how many there are: --classes.")
    return tuple(str(j) for j in range(count))


def _check_labels(tables: dict[str, Table], m: int | None) -> None:
    for split, table in tables.items():
        if (table.y < -1).any() or (m is not None and (table.y >= m).any()):
            high = f"0..{m - 1}" if m else "0 and above"
            raise UserError(
                f"The {split} labels are out of range for some records. {GUARDED}",
                f"Labels are {high} (−1 for none); check --classes.",
            )
        if (table.y < 0).all(axis=1).any():
            raise UserError(
                f"Some {split} records are without a label. {GUARDED}",
                "Label them, or leave them out before importing.",
            )


def _as_stored(y: np.ndarray, k: int) -> np.ndarray:
    """N × k int32, or n for k = 1."""
    padded = np.full((len(y), k), -1, np.int32)
    padded[:, : y.shape[1]] = y
    return padded[:, 0] if k == 1 else padded


def _listing(tables: dict[str, Table], progress: Progress | None) -> dict[str, str]:
    """A digest of each split's values, the same from every format, so that a resumed import can tell that the source
    changed. It never leaves the manifest and the ledger.
    """
    digests = {}
    for split, table in tables.items():
        digest = hashlib.sha256(f"{(table.n, table.d)} {table.dtype} {table.y.shape}".encode())
        for at in range(0, table.n, ROWS):
            stop = min(at + ROWS, table.n)
            digest.update(np.ascontiguousarray(table.rows(at, stop)).tobytes())
            digest.update(table.y[at:stop].astype("<i8").tobytes())
            if progress:
                progress(f"Reading {split}", stop, table.n)
        digests[split] = digest.hexdigest()
    return digests
