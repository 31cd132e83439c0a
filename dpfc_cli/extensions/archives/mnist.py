"""MNIST and Fashion-MNIST, from their official files: packed IDX, a header and then the bytes."""

import gzip

import numpy as np

from dpfc_cli.annotations.classes import coded
from dpfc_cli.downloads import Remote
from dpfc_cli.extensions.archives.official import mirrored, official
from dpfc_cli.images.pictures import Held
from dpfc_cli.images.sets import DataSet, ImageSet, Listed, Request, entry_of, image_set

TEN_DIGITS = tuple("0123456789")
"""The names of the classes of MNIST."""
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
"""The names of the classes of Fashion-MNIST."""

NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Images and labels of each split."""
SIDE = 28


def open_idx(dataset: str, classes: tuple[str, ...], remotes: tuple[Remote, ...], request: Request) -> ImageSet:
    """Open a data set of these files, in the order of `NAMES`. UserError: one is not there, or is another one."""
    contents, found = (gzip.decompress(official(remote, request.place)) for remote in remotes), dict[str, Listed]()
    for split, names in NAMES.items():
        images, labels = files = next(contents), next(contents)
        found[split] = Listed(
            labels=coded(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)),
            pictures=Held(np.frombuffer(images, np.uint8, offset=16).reshape(-1, SIDE, SIDE, 1)),
            entries=[entry_of(*each) for each in zip(names, files, strict=True)],
            classes=classes,
        )
    return image_set(dataset, found, request, classes=classes)


def _data_set(name: str, classes: tuple[str, ...], folders: tuple[str, ...], *files: tuple[int, str]) -> DataSet:
    """The entry of a data set with MNIST's file names. folders: addresses that serve all files, packed. files: size and
    SHA-256 of each, in the order of `NAMES`.
    """
    packed = [f"{file}.gz" for split in NAMES.values() for file in split]
    remotes = tuple(
        mirrored(name, folders, name=file, size=size, sha256=sha256)
        for file, (size, sha256) in zip(packed, files, strict=True)
    )
    return DataSet(
        name=name,
        open=lambda request: open_idx(name, classes, remotes, request),
        location="data_dir",
        pixels=True,
        remotes=remotes,
    )


# The publisher's own address comes first if it is served over https.
MNIST = _data_set(
    "mnist",
    TEN_DIGITS,
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
FASHION_MNIST = _data_set(
    "fashion-mnist",
    GARMENTS,
    (
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    ),
    (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
