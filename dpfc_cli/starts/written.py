"""The file of class vectors: where it goes, and how it gets its name."""

from contextlib import suppress
from pathlib import Path

from dpfc_cli.errors import UserError, check_new_name, parameter, printable
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import make, temporary_beside

SUFFIX = ".safetensors"


def place_of(out: Path | str | None, features: FeatureSet | None, model: str, source: str) -> Path:
    """Where the file is to be. UserError where it cannot be."""
    stem = printable(model if features is None else features.name)
    path = Path(f"{stem}-{source}{SUFFIX}" if out is None else out)
    if path.suffix != SUFFIX:
        raise UserError(
            f"The file of class vectors '{path}' must end in {SUFFIX}.",
            f"Give it another name: {parameter('out')}.",
            parameter="out",
            path=str(path),
        )
    check_new_name(path.name)
    temporary = temporary_beside(path)
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def published(data: bytes, path: Path) -> bool:
    """Write the file, whole or not at all: whether it was written now. UserError where another file has its name."""
    try:
        found = make(path, data)
    except OSError as error:
        raise _unwritable(path, error) from error
    if found == "other":
        raise UserError(
            f"There is another file '{path}' already.",
            f"Delete it, or give the new one another name: {parameter('out')}.",
            code="exists",
            parameter="out",
            path=str(path),
        )
    return found == "made"


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"The file '{path}' cannot be written: {error.strerror or error}.",
        f"Choose a writable place: {parameter('out')}.",
        code="unwritable",
        parameter="out",
        path=str(path),
    )
