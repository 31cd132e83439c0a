"""What official data sets have in common that can be downloaded."""

from pathlib import Path

from dpfc_cli.downloads import Remote
from dpfc_cli.errors import UserError, parameter, quoted

LARGEST = 1 << 30
"""Bytes of the largest file that is read into memory as a whole. The largest official one has 155 MB. This bounds what
a damaged or hostile header can make dpfc allocate."""


def missing(dataset: str, what: str, folder: Path) -> UserError:
    """The error for a folder without the files of a data set that can be downloaded."""
    return UserError(
        f"{quoted(folder)} does not hold {what}.",
        f"Name the folder that holds the files of {dataset} with {parameter('data_dir')}, or leave it out to download "
        "them.",
        code="missing",
    )


def mirrored(dataset: str, folders: tuple[str, ...], *, name: str, size: int, sha256: str) -> Remote:
    """The file of that name of a data set, which all these addresses of folders serve."""
    return Remote(f"{dataset}/{name}", size, sha256, tuple(f"{folder}/{name}" for folder in folders))
