"""A head: one safetensors file with its preprocessing chain, its weights and its card.

The card says how the head was made and what it cost in privacy. Everything in the file is public, or came through
`oracle.release`.
"""

import hashlib
import itertools
import json
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.privacy.chain import Chain, arrays, from_json, run, to_json

FORMAT = "dpfc-head-1"
PRIVATE = ".safetensors"
NONPRIVATE = ".nonprivate.safetensors"
RESEARCH = ".research.safetensors"
_CARD = {
    *("method", "options", "claim", "epsilon", "delta", "mu", "eta", "accounting", "adjacency", "unit"),
    *("facts", "plan", "classes", "features", "versions"),
}


@dataclass(frozen=True)
class Head:
    """chain: what is done to a feature vector; weight: d × m; bias: m. Scores are chain(x)·weight + bias."""

    chain: Chain
    weight: np.ndarray
    bias: np.ndarray
    card: dict[str, Any]

    def scores(self, x: np.ndarray) -> np.ndarray:
        """B × d features to B × m scores, float64."""
        return np.asarray(run(self.chain, x.astype(np.float32), np) @ self.weight + self.bias)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.card["classes"])


def reserve(path: Path) -> Path:
    """Before any budget is spent: an empty temporary file where the head will be. UserError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise _unwritable(path, error) from error
    return temporary


def save(head: Head, path: Path, temporary: Path) -> Path:
    """Write the whole file or nothing, into the reserved temporary file and then under its name: returns that name.

    A head is never overwritten, for it was paid for: a name taken meanwhile gets a number, and where the place fails (a
    full disk) it is saved in a temporary folder instead.
    """
    from safetensors.numpy import save as to_bytes

    chain = json.dumps(to_json(head.chain))
    metadata = {"format": FORMAT, "card": json.dumps(head.card), "chain": chain}
    tensors = {"weight": head.weight, "bias": head.bias}
    tensors |= {f"chain.{i}": value for i, value in enumerate(arrays(head.chain))}
    data = to_bytes({name: np.ascontiguousarray(value) for name, value in tensors.items()}, metadata)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        published = _publish(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return published
    except OSError as error:
        # The budget is spent: rather somewhere else than nowhere.
        try:
            rescued = Path(tempfile.mkdtemp(prefix="dpfc-")) / path.name
            rescued.write_bytes(data)
            return rescued
        except OSError:
            raise _unwritable(path, error) from error


def _publish(temporary: Path, path: Path) -> Path:
    suffix = next(s for s in (NONPRIVATE, RESEARCH, PRIVATE) if path.name.endswith(s))
    stem = path.name.removesuffix(suffix)
    for i in itertools.count(2):
        try:
            os.link(temporary, path)
        except FileExistsError:
            path = path.with_name(f"{stem}-{i}{suffix}")
            continue
        except OSError:
            # A file system without hard links: the check is then not atomic.
            if path.exists():
                path = path.with_name(f"{stem}-{i}{suffix}")
                continue
            os.replace(temporary, path)
        break
    return path


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"The head cannot be written to '{path}': {error.strerror or error}.", "Choose a writable place with --out."
    )


def load(path: Path) -> Head:
    """Read a head. UserError when the file is not one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r}, not {FORMAT!r}")
            weight = file.get_tensor("weight")
            held = [file.get_tensor(f"chain.{i}") for i in range(sum(k.startswith("chain.") for k in file.keys()))]  # noqa: SIM118
            head = Head(
                from_json(json.loads(metadata["chain"]), held, len(weight)),
                weight,
                file.get_tensor("bias"),
                json.loads(metadata["card"]),
            )
        if (
            head.weight.ndim != 2
            or head.bias.shape != (head.weight.shape[1],)
            or len(head.classes) != head.weight.shape[1]
        ):
            raise ValueError("its weight, bias and classes do not fit together")
        if (
            not set(head.card) >= _CARD
            or not {"name", "split", "fingerprint"} <= set(head.card["features"])
            or not {"n", "m", "k", "origin"} <= set(head.card["facts"])
        ):
            raise ValueError("its card is not whole")
    except FileNotFoundError as error:
        raise UserError(
            f"There is no head '{path}'.", "Train one with 'dpfc train', or name the file of one."
        ) from error
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"'{path}' cannot be read as a head: {error}.", "Name a file made by 'dpfc train'.") from error
    return head


def digest(path: Path) -> str:
    """SHA-256 of a head's file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def newest(folder: Path) -> Path:
    """The newest private head in a folder; non-private and research heads are never chosen unasked."""
    others = (NONPRIVATE, RESEARCH)
    found = [p for p in folder.glob(f"*{PRIVATE}") if not p.name.endswith(others)] if folder.is_dir() else []
    if not found:
        raise UserError(
            f"No private head found in '{folder}'.",
            "Train one with 'dpfc train --epsilon 1', or name one with --head.",
        )
    return max(found, key=lambda p: p.stat().st_mtime_ns)
