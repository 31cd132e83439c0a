"""ImageNet (ILSVRC 2012), as class folders or as the archives of image-net.org.

    DIR/train/n01440764/*.JPEG and DIR/val/n01440764/*.JPEG
    DIR/ILSVRC2012_img_train.tar, and DIR/ILSVRC2012_img_val.tar with DIR/ILSVRC2012_devkit_t12.tar.gz (or unpacked)

The archives are read in place. Labels are WordNet ids, and the operator asserts which there are: a folder of pictures
may be anybody's. The development kit numbers them in an order that its `meta.mat` states. Both layouts give the same
records in the same order, and the same listing. The validation images are the test split.
"""

import gzip
import io
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dpfc_cli.annotations.classes import coded
from dpfc_cli.errors import missing, parameter, quoted, secret
from dpfc_cli.extensions.archives.tars import UNPACKING, Header, Member, members, nested, ranges
from dpfc_cli.images.folder import open_folder
from dpfc_cli.images.pictures import read_file
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, Listed, Request, image_set
from dpfc_cli.memory import proved
from dpfc_cli.reading import readable

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
KIT = "ILSVRC2012_devkit_t12"
TRUTH, META = "data/ILSVRC2012_validation_ground_truth.txt", "data/meta.mat"
LARGEST = 64 << 20
"""Bytes of the largest file of the development kit that is read."""
EXPANDED = 16
"""How many times as much memory as its own bytes the table of the kit may take."""
AGAIN = "Fetch it again from image-net.org."
OBTAIN = "Get ImageNet from image-net.org, where you need an account."


def open_imagenet(request: Request) -> ImageSet:
    """Open ImageNet from class folders or archives. Raises UserError if there are neither, they are damaged, or a class
    is none that is asserted.
    """
    folder = request.place
    archive = folder / TRAIN
    if not archive.is_file():
        if (folder / "train").is_dir():
            return replace(open_folder(request), name="imagenet")
        raise missing(
            f"{quoted(folder)} holds neither '{TRAIN}' nor 'train/' with a folder for each class.",
            f"{OBTAIN} Then name the folder that holds it: {parameter('data_dir')}.",
        )
    found: dict[str, list[Member]] = {}
    with readable(archive, "the archive of ImageNet", AGAIN):
        for name, pictures in nested(archive):
            wnid = name.removesuffix(".tar")
            if wnid in found:
                raise ValueError(f"it holds {secret(name)} twice")
            found[wnid] = pictures
            if request.progress is not None:
                request.progress("Listing", len(found), None)
        if not found:
            raise ValueError("it holds no archives of classes")
    classes = tuple(sorted(found))
    train = [(label, picture) for label, wnid in enumerate(classes) for picture in found[wnid]]
    splits = {"train": _listed(archive, train, classes)}
    if (folder / VAL).is_file():
        with readable(folder, "the validation images of ImageNet", AGAIN, *UNPACKING, plain=False):
            splits["test"] = _listed(folder / VAL, _validation(folder, classes), classes)
    return image_set("imagenet", splits, request, also=classes)


def _listed(archive: Path, labelled: Iterable[tuple[int, Member]], classes: tuple[str, ...]) -> Listed:
    ordered = sorted(labelled, key=lambda found: (found[0], found[1].name))
    return Listed(
        labels=coded([classes[label] for label, _ in ordered]),
        pictures=ranges(ordered, tuple((archive, f"{wnid}/") for wnid in classes)),
        entries=(Entry(f"{classes[label]}/{member.name}", member.size, "") for label, member in ordered),
        classes=classes,
    )


def _validation(folder: Path, classes: tuple[str, ...]) -> list[tuple[int, Member]]:
    """The validation images with their classes. Line i of the ground truth is the class of the i-th name, sorted.
    ValueError if they do not fit together.
    """
    pictures = sorted(members(folder / VAL), key=lambda member: member.name)
    truth, meta = _kit(folder)
    wnids, number = _wnids(meta), {wnid: label for label, wnid in enumerate(classes)}
    labels = [number.get(wnids.get(int(line), ""), -1) for line in truth.split()]
    if -1 in labels or len(labels) != len(pictures):
        raise ValueError(
            f"there are {len(pictures)} images, and the ground truth has {len(labels)} lines or names other classes"
        )
    return list(zip(labels, pictures, strict=True))


def _kit(folder: Path) -> tuple[bytes, bytes]:
    packed = folder / f"{KIT}.tar.gz"
    for place in (folder / KIT, folder):
        if (place / TRUTH).is_file() and (place / META).is_file():
            return read_file(place / TRUTH), read_file(place / META)
    if not packed.is_file():
        raise ValueError(
            f"there is no '{KIT}.tar.gz', which states their classes. Without it, move '{VAL}' elsewhere to extract "
            "the training images alone"
        )
    with gzip.open(packed) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as archive:
        return _contents(archive, TRUTH), _contents(archive, META)


def _contents(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(f"{KIT}/{name}")
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None or member.size > LARGEST:
        raise ValueError(f"'{member.name}' is not a file, or too large")
    return stream.read()


def _wnids(meta: bytes) -> dict[int, str]:
    """The WordNet id of each of ILSVRC's numbers. In the hierarchy the classes are the nodes without children."""
    from scipy.io import loadmat

    # The reader may raise any exception if the file is damaged, and MemoryError for what it declares.
    with proved(EXPANDED * len(meta)):
        try:
            synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
            leaves = synsets[synsets["num_children"] == 0]
            return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
        except Exception as error:
            raise ValueError(f"'{META}' of the development kit: {str(error) or type(error).__name__}") from error


IMAGENET = DataSet(
    name="imagenet",
    open=open_imagenet,
    location="data_dir",
    obtain=OBTAIN,
)
