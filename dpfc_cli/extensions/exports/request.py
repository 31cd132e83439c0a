"""What is wanted of an export, and what a format of exports is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli import points
from dpfc_cli.errors import parameter, unknown
from dpfc_cli.options import Options, listed, option, progress_option, said
from dpfc_cli.progress import Progress

if TYPE_CHECKING:
    from dpfc_cli.heads.head import Head

GROUP = "dpfc.exports"
"""The group of entry points that has the formats."""
Files = Mapping[str, Iterable[bytes]]
"""The bytes of each file, in parts. "" stands for the file that the user named. Another text stands for one beside it:
an ending that is added to the user's name (".data"), or a whole name. The user's file is the last one."""
FORMATS = tuple(points.added(GROUP))


@dataclass(frozen=True, kw_only=True)
class Exporting(Options):
    """An export as it is asked for."""

    head: "Head" = field(kw_only=False, metadata=said("The head, as Head.load or a training gives it.", typed=False))
    to: str = field(
        kw_only=False,
        metadata=said(f"The format: {listed(FORMATS)}.", metavar="FORMAT", flags=("--to", "--format"), choices=FORMATS),
    )
    out: Path | str = field(
        kw_only=False,
        metadata=said(
            "The file, ending in .onnx, .safetensors (torch) or .npz (sklearn, npz). It is never overwritten.",
            metavar="FILE",
        ),
    )
    with_backbone: bool = option("With onnx: backbone and head in one graph, from pixels to scores.", default=False)
    progress: Progress | None = progress_option("bytes of the weights")


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of exports.

    Attributes:
        ending: how the name of its file ends, such as ".onnx".
        files: from what is wanted, and what is said of the head (texts by name), to the files. It may add texts. It
            raises UserError if it lacks a package.
        backbone: whether it can hold the backbone of the head.

    """

    ending: str
    files: Callable[[Exporting, dict[str, str]], Files]
    backbone: bool = False


def format_named(name: str) -> Format:
    """The format with that name, in upper or lower case. UserError: there is none, or its package cannot be used."""
    known = {each.lower(): each for each in points.added(GROUP)}
    if name.lower() not in known:
        raise unknown(parameter("to"), name, tuple(known))
    found: Format = points.load(GROUP, known[name.lower()], Format)
    return found
