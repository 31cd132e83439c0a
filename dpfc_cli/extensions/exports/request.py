"""What is wanted of an export."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpfc_cli.options import Options, option, progress_option, said
from dpfc_cli.progress import Progress

if TYPE_CHECKING:
    from dpfc_cli.heads.head import Head

Format = Literal["onnx", "torch", "sklearn", "npz"]


@dataclass(frozen=True, kw_only=True)
class Exporting(Options):
    """An export as it is asked for."""

    head: "Head" = field(kw_only=False, metadata=said("The head, as Head.load or a training gives it.", typed=False))
    to: Format = field(kw_only=False, metadata=said("The format.", metavar="FORMAT", flags=("--to", "--format")))
    out: Path | str = field(
        kw_only=False,
        metadata=said(
            "The file, ending in .onnx, .safetensors (torch) or .npz (sklearn, npz). It is never overwritten.",
            metavar="FILE",
        ),
    )
    with_backbone: bool = option("With onnx: backbone and head in one graph, from pixels to scores.", default=False)
    weights: str | None = option(
        "With ‹with_backbone›: the backbone's weights, a file, a folder or hf:OWNER/NAME. Default: as the card says.",
        metavar="CHECKPOINT",
    )
    progress: Progress | None = progress_option("bytes of the weights")
