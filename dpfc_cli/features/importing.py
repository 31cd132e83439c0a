"""Features that something else computed, made into a feature set.

Taken: a folder with `train_x.npy`, `train_y.npy` and, optionally, `test_x.npy`, `test_y.npy`; or one `.npz` with those
names. x is n × d, float16, float32 or float64; y is n or n × k integers, −1 for "no label". Arrays of a folder are
memory-mapped, so memory stays bounded. Nothing is unpickled.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import Manifest, Origin
from dpfc_cli.features.writer import FeatureWriter, already_complete, asserted

SPLITS = ("train", "test")
ROWS = 4_096
MOST_INFERRED = 100_000
CURATOR = "This message depends on a record: it is for the data's curator only."
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Arrays:
    """One split as found: x n × d, y n × k."""

    x: np.ndarray
    y: np.ndarray


def import_features(
    path: Path,
    out: Path,
    classes: tuple[str, ...] | None = None,
    labels_per_record: int | None = None,
    dtype: str | None = None,
    shards: int | None = None,
    progress: Progress | None = None,
) -> tuple[Manifest, bool]:
    """Make a feature set of `path` in `out`: (its manifest, whether it had to be made).

    classes, labels_per_record: the public facts, asserted by the caller; what is None is inferred from the data and
    said to be so. Raises UserError for anything that cannot be taken; then nothing finished is left behind.
    """
    arrays = _open(path)
    d = arrays["train"].x.shape[1]
    width = max(a.y.shape[1] for a in arrays.values())
    _check_labels(arrays, len(classes) if classes else None)
    k = labels_per_record or width
    if k < width:
        raise UserError(
            f"'{path}' has {width} label columns, more than --labels-per-record {k}.",
            "Assert the larger number, or drop columns.",
        )
    origin: Origin = "asserted" if classes and (labels_per_record or width == 1) else "inferred"
    classes = classes or _inferred_classes(arrays)
    dtype = dtype or ("float16" if all(a.x.dtype == np.float16 for a in arrays.values()) else "float32")
    identity = {"imported": path.name, "listing": _listing(arrays), "k": k, "dtype": dtype}
    backbone = {"name": "imported", "from": path.name}
    source = {"dataset": path.stem if path.is_file() else path.name, "identity": identity}
    wanted = Manifest(classes, d, dtype, k, origin, {}, backbone, source, {"numpy": np.__version__})
    if already_complete(out, identity):
        return asserted(out, wanted), False
    writer = FeatureWriter(out, {s: len(a.x) for s, a in arrays.items()}, d, dtype, k, identity, shards)
    for task in writer.tasks:
        split = arrays[task.split]
        with writer.shard(task) as sink:
            for at in range(task.start, task.stop, ROWS):
                stop = min(at + ROWS, task.stop)
                sink.append(np.asarray(split.x[at:stop]), _as_stored(split.y[at:stop], k))
                if progress:
                    progress(task.split, stop, len(split.x))
    finished = writer.finish(wanted)
    assert finished is not None, "a writer by itself finishes"
    return finished, True


def _inferred_classes(arrays: dict[str, Arrays]) -> tuple[str, ...]:
    count = 1 + max(int(a.y.max()) for a in arrays.values())
    if count > MOST_INFERRED:
        raise UserError(f"The labels seem to name {count:,} classes. {CURATOR}", "Say how many there are: --classes.")
    return tuple(str(j) for j in range(count))


def _open(path: Path) -> dict[str, Arrays]:
    if path.is_dir():
        names = {s: (path / f"{s}_x.npy", path / f"{s}_y.npy") for s in SPLITS}
        arrays = {s: Arrays(_npy(x), _npy(y)) for s, (x, y) in names.items() if x.exists() or y.exists()}
    elif path.suffix == ".npz":
        arrays = _npz(path)
    else:
        raise UserError(
            f"'{path}' is neither a folder nor an .npz file.",
            "Give a folder with {train,test}_{x,y}.npy, or an .npz with those names.",
        )
    if "train" not in arrays:
        raise UserError(f"'{path}' has no train_x and train_y.", "Name the arrays train_x, train_y, test_x and test_y.")
    return {split: _checked(path, split, a) for split, a in arrays.items()}


def _npy(path: Path) -> np.ndarray:
    try:
        # np.load would take other formats under this name, too.
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise ValueError("it does not begin like one")
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"'{path}' cannot be read as a .npy array: {error}.",
            "Both {split}_x.npy and {split}_y.npy must be whole, plain arrays.",
        ) from error


def _npz(path: Path) -> dict[str, Arrays]:
    import zipfile
    import zlib

    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            return {s: Arrays(file[f"{s}_x"], file[f"{s}_y"]) for s in SPLITS if f"{s}_x" in file or f"{s}_y" in file}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"'{path}' cannot be read as an .npz of features: {error}.",
            "It must hold train_x and train_y (and test_x, test_y).",
        ) from error


def _checked(path: Path, split: str, a: Arrays) -> Arrays:
    y = a.y[:, None] if a.y.ndim == 1 else a.y
    if a.x.ndim != 2 or a.x.dtype not in (np.float16, np.float32, np.float64) or a.x.shape[0] < 1 or a.x.shape[1] < 1:
        raise UserError(
            f"'{path}': {split}_x has shape {a.x.shape} and dtype {a.x.dtype}.",
            "Features are an n × d array of float16, 32 or 64.",
        )
    if y.ndim != 2 or not np.issubdtype(y.dtype, np.integer) or len(y) != len(a.x) or y.shape[1] < 1:
        raise UserError(
            f"'{path}': {split}_y has shape {a.y.shape} and dtype {a.y.dtype} beside {len(a.x)} rows of features.",
            "Labels are n, or n × k, integers.",
        )
    return Arrays(a.x, y)


def _check_labels(arrays: dict[str, Arrays], m: int | None) -> None:
    widths = {a.x.shape[1] for a in arrays.values()}
    if len(widths) > 1:
        raise UserError(
            f"Train and test features differ in width: {sorted(widths)}.", "Both must come from the same backbone."
        )
    for split, a in arrays.items():
        if (a.y < -1).any() or (m is not None and (a.y >= m).any()):
            high = f"0..{m - 1}" if m else "0 and above"
            raise UserError(
                f"{split}_y has labels out of range. {CURATOR}", f"Labels are {high} (−1 for none); check --classes."
            )
        if (a.y < 0).all(axis=1).any():
            raise UserError(
                f"{split}_y has records without a label. {CURATOR}", "Label them, or leave them out before importing."
            )


def _as_stored(y: np.ndarray, k: int) -> np.ndarray:
    """N × k int32, or n for k = 1."""
    padded = np.full((len(y), k), -1, np.int32)
    padded[:, : y.shape[1]] = y
    return padded[:, 0] if k == 1 else padded


def _listing(arrays: dict[str, Arrays]) -> dict[str, str]:
    """A digest of each split's values, so that a resumed import can tell that the source changed. It never leaves the
    manifest and the ledger.
    """
    digests = {}
    for split, a in arrays.items():
        digest = hashlib.sha256(f"{a.x.shape} {a.x.dtype} {a.y.shape} {a.y.dtype}".encode())
        for array in (a.x, a.y):
            for at in range(0, len(array), ROWS):
                digest.update(np.ascontiguousarray(array[at : at + ROWS]).tobytes())
        digests[split] = digest.hexdigest()
    return digests
