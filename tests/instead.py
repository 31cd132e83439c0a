"""What tests put in the place of something of dpfc, each in one place. The patch of the test puts it back."""

import io
import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dpfc_cli import threads
from dpfc_cli.privacy import curator, forms, passes, poisson, sums
from dpfc_cli.privacy.noise import Bits
from dpfc_cli.training import charged


def block_rows(patch: pytest.MonkeyPatch, rows: int | Callable[..., int]) -> None:
    """A pass reads so many records at a time."""
    patch.setattr(passes, "block_rows", rows if callable(rows) else lambda facts: rows)


def piece_bytes(patch: pytest.MonkeyPatch, size: int) -> None:
    """An answer that takes more bytes is made in pieces of that size."""
    patch.setattr(forms, "PIECE_BYTES", size)


def cores(patch: pytest.MonkeyPatch, count: int) -> None:
    """The machine has so many."""
    patch.setattr(threads, "cores", lambda: count)


def free_disk(patch: pytest.MonkeyPatch, size: int) -> None:
    """So many bytes are free on every disk."""
    patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=size))


def extras(patch: pytest.MonkeyPatch) -> None:
    """No extra is installed."""
    patch.setattr("dpfc_cli.errors.find_spec", lambda name: None)


def block_bytes(patch: pytest.MonkeyPatch, size: int) -> None:
    """Hessians are released in blocks of that size."""
    patch.setattr("dpfc_cli.methods.linear.BLOCK_BYTES", size)


def losses(patch: pytest.MonkeyPatch, fine: float, coarse: float) -> None:
    """ε of samples is computed in such steps, and the search for it in coarse ones."""
    patch.setattr(poisson, "FINE", fine)
    patch.setattr(poisson, "COARSE", coarse)


def draw_noise(patch: pytest.MonkeyPatch, draw: Callable[..., Any]) -> None:
    """The curator draws its noise so."""
    patch.setattr(curator, "draw_noise", draw)


def release(patch: pytest.MonkeyPatch, answer: Callable[..., np.ndarray]) -> None:
    """The curator answers a query so."""
    patch.setattr(curator.Curator, "release", answer)


def exact_sum(patch: pytest.MonkeyPatch, summed: Callable[..., np.ndarray]) -> None:
    """The curator sums so."""
    patch.setattr(sums, "exact_sum", summed)


def total(patch: pytest.MonkeyPatch, summed: Callable[..., np.ndarray]) -> None:
    """The curator sums so, whoever sums for it."""
    patch.setattr(curator._Passes, "_sum", summed)


def bits(patch: pytest.MonkeyPatch, made: Callable[[], Bits]) -> None:
    """A charge pays for these bits, in the place of the system's."""
    patch.setattr(charged, "SystemBits", made)


def settle(patch: pytest.MonkeyPatch, end: Callable[..., Any] = lambda charge: None) -> None:
    """A charge ends so. By default nothing is written down, as if the process were killed."""
    patch.setattr(charged.Charged, "settle", end)


def backbone(patch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    """Every model is loaded so."""
    patch.setattr("dpfc_cli.backbones.load", load)


def converted(patch: pytest.MonkeyPatch, convert: Callable[..., Any]) -> None:
    """`dpfc budget --sigma` does so: a command that has failed."""
    patch.setattr("dpfc_cli.cli.budget._converted", convert)


def terminal(patch: pytest.MonkeyPatch, width: int = 90, **looks: Any) -> None:
    """What is shown goes to a terminal without colours, of so many columns."""
    for name in ("out", "err"):
        console = Console(force_terminal=True, color_system=None, width=width, stderr=name == "err", **looks)
        patch.setattr(f"dpfc_cli.cli.display.{name}", console)


def synced(patch: pytest.MonkeyPatch, fsync: Callable[[int], Any]) -> None:
    """The system writes to its disk so."""
    patch.setattr(os, "fsync", fsync)


def on_host(patch: pytest.MonkeyPatch, host: bool) -> None:
    """Products are made by the processor, or by a device."""
    patch.setattr("dpfc_cli.kernels.products.on_host", lambda: host)


def stdin(patch: pytest.MonkeyPatch, text: str) -> None:
    """Somebody types this."""
    patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
