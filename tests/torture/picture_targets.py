"""Fuzz targets that read pictures: files of pictures, archives, tables beside them, and who is on them."""

import contextlib
import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGBaseline8Bit, RLELossless

from dpfc_cli.images import Preparation, by_person, open_images
from dpfc_cli.images.cifar import read_pickle
from dpfc_cli.images.decoding import decode
from dpfc_cli.sources.groups import rule_of
from dpfc_cli.sources.metadata import NAMES
from tests.images.dicoms import written as dicom
from tests.torture.target import PICTURES, SQUARE, Target, as_json, look, parquet, picture, saved


def _run_pictures(data: bytes, place: Path) -> None:
    path = place / "train.parquet"
    path.write_bytes(data)
    look(open_images(f"parquet:{path}", geometry=SQUARE))


def _run_persons(data: bytes, place: Path) -> None:
    """A column of persons beside pictures."""
    path = place / "train.parquet"
    path.write_bytes(data)
    found, groupings = by_person(open_images(f"parquet:{path}", geometry=SQUARE, group_by=rule_of("column:who")))
    assert all(len(grouping.ids) == found.splits[name].n for name, grouping in groupings.items())
    look(found)


def _run_rules(data: bytes, place: Path) -> None:
    rule = rule_of(data.decode("utf-8", "surrogateescape"))
    rule.describe()
    if rule.by in ("folder", "name"):
        rule.of_name("a/p1/b.png", "p1/b.png")


def _run_tar(data: bytes, place: Path) -> None:
    path = place / "train.tar"
    path.write_bytes(data)
    look(open_images(f"webdataset:{path}", geometry=SQUARE))


def _tar(kind: int = tarfile.PAX_FORMAT, prefix: str = "ü") -> bytes:
    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
            for i in range(2):
                for name, data in ((f"{prefix}{i}.png", picture("PNG")), (f"{prefix}{i}.cls", b"%d" % i)):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))

    return saved(write)


def _run_decode(data: bytes, place: Path) -> None:
    decode(data, "picture", Preparation(geometry=SQUARE))


def _dicoms() -> list[bytes]:
    values = PICTURES[:, :, 0].astype(np.uint16) * 16
    jpeg = encapsulate([picture("JPEG", "L")])
    return [
        dicom(values),
        dicom(values, RLELossless),
        dicom(values.astype(np.uint8), JPEGBaseline8Bit, PixelData=jpeg),
        dicom(PICTURES, RescaleSlope="2"),
    ]


def _run_dicom(data: bytes, place: Path) -> None:
    decode(data, "picture", Preparation(geometry=SQUARE, window=(0, 4095)))


def _run_metadata(data: bytes, place: Path) -> None:
    """The first byte says which kind of table is the input."""
    for name in NAMES:
        (place / name).unlink(missing_ok=True)
    for name in "ab":
        (place / f"{name}.png").write_bytes(picture("PNG"))
    (place / NAMES[data[:1] > b"c"]).write_bytes(data[1:])
    look(open_images(f"imagefolder:{place}", geometry=SQUARE))


def _run_facts(data: bytes, place: Path) -> None:
    """The .json of a record in an archive."""
    with tarfile.open(place / "train.tar", "w") as archive:
        for name, part in (("0.png", picture("PNG")), ("0.json", data)):
            info = tarfile.TarInfo(name)
            info.size = len(part)
            archive.addfile(info, io.BytesIO(part))
    look(open_images(f"webdataset:{place}", geometry=SQUARE))


def _idx(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


_NUMBERS = np.arange(3, dtype=np.uint8)

_DIGITS = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)


def _run_idx(data: bytes, place: Path) -> None:
    """The first byte says which file is the input, and whether it is packed."""
    for path in place.glob("train-*"):
        path.unlink()
    parts = {"train-images-idx3-ubyte": _idx(_DIGITS), "train-labels-idx1-ubyte": _idx(_NUMBERS)}
    which = data[0] if data else 0
    name = list(parts)[which & 1]
    for other, whole in parts.items():
        (place / other).write_bytes(whole)
    if which & 2:
        (place / name).unlink()
        (place / f"{name}.gz").write_bytes(data[1:] if which & 4 else gzip.compress(data[1:], 1))
    else:
        (place / name).write_bytes(data[1:])
    look(open_images("mnist", place))


def _batch() -> dict[bytes, object]:
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    return {b"data": pixels, b"labels": [1, 2], b"batch_label": b"a", b"filenames": [b"a.png", b"b.png"]}


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=2)


_META = _pickled({b"label_names": [b"c%d" % i for i in range(10)]})


def _run_pickle(data: bytes, place: Path) -> None:
    with contextlib.suppress(ValueError):
        read_pickle(data, "name")


def _run_cifar(data: bytes, place: Path) -> None:
    """The first byte says whether pictures or names are the input."""
    folder = place / "cifar-10-batches-py"
    folder.mkdir(exist_ok=True)
    pictures = data[:1] < b"\x80"
    (folder / "batches.meta").write_bytes(_META if pictures else data[1:])
    (folder / "data_batch_1").write_bytes(data[1:] if pictures else _pickled(_batch()))
    look(open_images("cifar10", place))


def _run_cifar_archive(data: bytes, place: Path) -> None:
    (place / "cifar-10-python.tar.gz").write_bytes(gzip.compress(data, 1))
    look(open_images("cifar10", place))


def _cifar_tar() -> bytes:
    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name, data in (("batches.meta", _META), ("data_batch_1", _pickled(_batch()))):
                info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    return saved(write)


def _of_persons() -> pa.Table:
    """Pictures and features of three persons, in an order that is not theirs."""
    table = pa.concat_tables([_pictures()] * 3)
    return table.append_column("who", pa.array(["p1", "p0", "p1", "p2", "p0", "p0"]).dictionary_encode())


def _pictures() -> pa.Table:
    image = pa.array([{"bytes": picture("PNG"), "path": None}] * 2)
    return pa.table({"image": image, "label": pa.array([0, 1])})


def _pictures_of(kind: str) -> Callable[[], list[bytes]]:
    return lambda: [picture(kind, mode, **more) for mode, more in _KINDS[kind]]


_KINDS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "JPEG": (("RGB", {}), ("L", {"progressive": True}), ("CMYK", {})),
    "PNG": (("RGB", {}), ("P", {}), ("I;16", {}), ("LA", {}), ("1", {})),
    "TIFF": (("RGB", {}), ("L", {"compression": "tiff_lzw"}), ("RGB", {"compression": "jpeg"})),
    "GIF": (("P", {}),),
    "WEBP": (("RGB", {}), ("RGBA", {"lossless": True})),
    "BMP": (("RGB", {}), ("P", {})),
    "PPM": (("RGB", {}), ("L", {}), ("1", {})),
}

PICTURE_TARGETS = {
    "pictures": Target(seeds=lambda: [parquet(_pictures())], run=_run_pictures),
    "persons": Target(seeds=lambda: [parquet(_of_persons())], run=_run_persons),
    "rules": Target(
        seeds=lambda: [b"folder:2", "name:ü(p[0-9]+)_".encode(), b"column:who", b"table:a.csv:who"], run=_run_rules
    ),
    "tar": Target(seeds=lambda: [_tar(), _tar(tarfile.GNU_FORMAT, "n" * 120)], run=_run_tar),
    "idx": Target(
        seeds=lambda: [
            *(b"\x00" + _idx(_DIGITS), b"\x01" + _idx(_NUMBERS), b"\x02" + _idx(_DIGITS)),
            b"\x06" + gzip.compress(_idx(_DIGITS)),
        ],
        run=_run_idx,
    ),
    "cifar": Target(seeds=lambda: [b"\x00" + _pickled(_batch()), b"\xff" + _META], run=_run_cifar),
    "cifar-archive": Target(seeds=lambda: [_cifar_tar()], run=_run_cifar_archive),
    "pickle": Target(seeds=lambda: [pickle.dumps(_batch(), protocol=p) for p in (0, 2, 4)], run=_run_pickle),
    **{kind.lower(): Target(seeds=_pictures_of(kind), run=_run_decode) for kind in _KINDS},
    "dicom": Target(seeds=_dicoms, run=_run_dicom),
    "metadata": Target(
        seeds=lambda: [
            b"cfile_name,label,who\na.png,flu,1\nb.png,cold,2\n",
            b'j{"file_name": "a.png", "label": 1}\n{"file_name": "b.png", "label": 0}\n',
        ],
        run=_run_metadata,
    ),
    "facts": Target(seeds=lambda: [as_json({"label": 1, "caption": "a cat"})], run=_run_facts, text="json"),
}
