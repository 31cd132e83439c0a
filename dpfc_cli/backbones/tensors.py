"""Files of weights: read them tensor by tensor, so that memory never holds a file twice.

Files are `.safetensors` or `.npz`. A tensor that is not asked for is not read. Pickles are refused: to open a pickle
runs the code in it. `hub` refuses them by name, and `npz` refuses them inside an archive.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np

from dpfc_cli import npz
from dpfc_cli.errors import Code, UserError
from dpfc_cli.files import check_plain
from dpfc_cli.memory import check_fits

Read = Callable[[], np.ndarray]
"""It reads one tensor."""


def opened(file: Path, stack: ExitStack) -> Iterator[tuple[str, Read]]:
    """The name of every tensor in a file, and a function that reads it.

    Args:
        file: a `.safetensors` or `.npz` file.
        stack: it closes the file.

    Raises:
        UserError: the file is damaged, or holds something else than numbers. Reading a tensor raises it, too.

    """
    from safetensors import SafetensorError, safe_open

    broken = (OSError, SafetensorError, *npz.BROKEN)

    def careful(read: Callable[[str], np.ndarray], name: str) -> np.ndarray:
        try:
            return _plain(read(name), file, name)
        except broken as error:
            raise _damaged(file, error) from error

    try:
        if file.suffix == ".npz":
            arrays = npz.opened(file, stack)
            names, read = list(arrays), lambda name: arrays[name].read()
        else:
            check_plain(file)
            stored = stack.enter_context(safe_open(file, framework="numpy"))
            size = file.stat().st_size

            def read(name: str) -> np.ndarray:
                declared = min(size, 8 * math.prod(stored.get_slice(name).get_shape()))
                check_fits(file, f"'{name}'", declared, copies=2)
                return np.asarray(stored.get_tensor(name))

            names = stored.keys()
    except broken as error:
        raise _damaged(file, error) from error
    for name in names:
        yield name, partial(careful, read, name)


def tensors(files: tuple[Path, ...], stack: ExitStack) -> dict[str, Read]:
    """All tensors of some files by name, not yet read."""
    return {name: read for file in files for name, read in opened(file, stack)}


def check_shape(source: str, name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    """Raise UserError if a tensor has another shape than it must have."""
    if array.shape != expected:
        raise incomplete(source, f"has the tensor '{name}' with the shape {array.shape} instead of {expected}")


def incomplete(source: str, what: str) -> UserError:
    """The error for a checkpoint that lacks a tensor, or has one that cannot be."""
    return UserError(f"'{source}' {what}.", "Get a complete checkpoint of this model.", code="damaged")


def foreign(source: str, name: str, kind: str) -> UserError:
    """The error for a tensor that nothing here takes: features would be computed without it."""
    return UserError(
        f"'{source}' holds a tensor that a {kind} does not have: '{name}'.",
        "Choose the model that the weights belong to. This checkpoint may be of an architecture that dpfc cannot run.",
        code="unsupported",
    )


def unrecognised(source: str, names: Iterable[str], kind: str, known: Sequence[str]) -> UserError:
    """The error for names of tensors that are those of no library."""
    shown = ", ".join(sorted(names)[:4]) or "none"
    return UserError(
        f"'{source}' is not a {kind} that dpfc can read: its tensors have other names ({shown}, …).",
        f"Use a checkpoint with the names of {' or '.join(known)}.",
        code="unsupported",
    )


def _plain(array: np.ndarray, file: Path, name: str) -> np.ndarray:
    if array.dtype == np.dtype("V2"):
        # NumPy's own format stores bfloat16 like this.
        return array.view(ml_dtypes.bfloat16)
    if array.dtype.kind not in "fiu" and array.dtype != ml_dtypes.bfloat16:
        raise UserError(
            f"The tensor '{name}' in '{file.name}' has the type {array.dtype}. Weights are floating-point numbers.",
            "Use the weights as their publisher provides them.",
            code="damaged",
            path=str(file),
        )
    return array


def _damaged(file: Path, error: Exception) -> UserError:
    code: Code = "unreadable" if isinstance(error, OSError) else "damaged"
    return UserError(
        f"'{file}' is not a complete {file.suffix} file: {error}.", "Get the file again.", code=code, path=str(file)
    )
