"""What official data sets have in common that can be downloaded. Their own files are read, by their SHA-256, and no
others: nothing else that passes for public reaches a reader of them.
"""

import hashlib
from pathlib import Path

from dpfc_cli.downloads import Remote
from dpfc_cli.errors import UserError, parameter, quoted
from dpfc_cli.files import check_plain
from dpfc_cli.reading import readable

AGAIN = f"Fetch the data set again, or leave out {parameter('data_dir')} to download it."


def mirrored(dataset: str, folders: tuple[str, ...], *, name: str, size: int, sha256: str) -> Remote:
    """The file of that name of a data set, which all these addresses of folders serve."""
    return Remote(f"{dataset}/{name}", size, sha256, tuple(f"{folder}/{name}" for folder in folders))


def official(remote: Remote, folder: Path) -> bytes:
    """The bytes of a file that lies in this folder, or at this path. UserError: it is not there, or is another one."""
    name = Path(remote.name).name
    place = folder / name if folder.is_dir() else folder
    if not place.exists():
        raise UserError(
            f"{quoted(folder)} does not hold '{name}'.",
            f"Name the folder that holds it with {parameter('data_dir')}, or leave it out to download the data set.",
            code="missing",
        )
    with readable(place, "an official file", AGAIN):
        check_plain(place)
        with place.open("rb") as file:
            data = file.read((remote.size or 0) + 1)
        if hashlib.sha256(data).hexdigest() != remote.sha256:
            raise ValueError("it is not the file that its publisher serves, by its SHA-256")
        return data
