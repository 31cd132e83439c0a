"""`export`: a head in the format of another program."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli import outputs
from dpfc_cli.errors import check_installed, conflict, parameter, printable, quoted
from dpfc_cli.exports import arrays, onnx
from dpfc_cli.exports.request import Exporting, Format
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import heads_folder
from dpfc_cli.heads.head import Head, check_heads, encoded
from dpfc_cli.options import takes
from dpfc_cli.privacy.chain import to_json
from dpfc_cli.show.document import Told
from dpfc_cli.trust.statement import brief
from dpfc_cli.version import __version__

TARGETS: dict[Format, str] = {"onnx": ".onnx", "torch": ".safetensors", "sklearn": ".npz", "npz": ".npz"}
"""The formats by name, and how the names of their files end."""
_ARRAYS = {"torch": arrays.torch, "sklearn": arrays.sklearn, "npz": arrays.npz}


@dataclass(frozen=True, kw_only=True, repr=False)
class Exported(Told):
    """What was written.

    Attributes:
        path: the file that was named.
        files: all files, in the order in which they were written. A module that was there already is among them.
        notes: what the file says of the head, as texts by name.

    """

    path: Path
    files: tuple[Path, ...]
    notes: dict[str, str]

    def told(self) -> dict[str, str]:
        return {"files": ", ".join(printable(str(path)) for path in self.files), "claim": self.notes["claim"]}


@takes(Exporting)
def export(wanted: Exporting) -> Exported:
    """Write a head in the format of another program. The card goes with it.

    Returns:
        The files, and what they say of the head.

    Raises:
        UserError: the format is unknown or cannot hold a backbone, a package is not
            installed, the weights are others, or there is another file, or it cannot be written.

    Examples:
        >>> export(Head.load("heads/eps1.safetensors"), "onnx", "eps1.onnx")

    """
    head, to, path = wanted.head, wanted.to, Path(wanted.out)
    check_heads(head)
    _check_place(path, TARGETS[to])
    if wanted.weights is not None and not wanted.with_backbone:
        raise conflict(
            f"{parameter('weights')} has no meaning without {parameter('with_backbone')}: a head has no other weights.",
            "Leave it out.",
        )
    if wanted.with_backbone and to != "onnx":
        raise conflict(
            f"The format {to} holds a head alone.", f"Leave out {parameter('with_backbone')}, or choose onnx."
        )
    texts = notes(head, to)
    if to == "onnx":
        check_installed("onnx", "export", "To write onnx")
        network = onnx.rebuilt(head, wanted.weights, wanted.progress) if wanted.with_backbone else None
        made = onnx.files(head, texts, network, path.name)
    else:
        made = _ARRAYS[to](head, texts)
    written = []
    for name, parts in made.items():
        written.append(_named(path, name))
        outputs.write(written[-1], parts)
    return Exported(path=path, files=tuple(written), notes=texts)


def _check_place(path: Path, suffix: str) -> None:
    outputs.check(path, (suffix,))
    if suffix == TARGETS["torch"] and path.parent.resolve() == heads_folder().resolve():
        raise conflict(
            f"{quoted(path)} would lie among the heads, and it would look like one.",
            f"Choose another folder: {parameter('out')}.",
        )


def _named(path: Path, name: str) -> Path:
    """The place of a file, as `Files` names it."""
    return path.with_name(path.name + name) if not name or name.startswith(".") else path.with_name(name)


_TOGETHER = "the softmax of the scores; they are not calibrated"
_EACH = "the logistic function of each score, because records may have several labels; they are not calibrated"


def notes(head: Head, target: str) -> dict[str, str]:
    """What is said of a head.

    The card is there in full, as JSON. `claim` says in a sentence what is claimed, or that nothing is.
    """
    digest = hashlib.sha256(encoded(head)).hexdigest() if head.path is None else sha256_of(head.path)
    return {
        "format": f"dpfc-export-{target}-1",
        "made_by": f"dpfc {__version__}",
        "claim": "; ".join(f"{name}: {said}" for name, said in brief(head.card)),
        "head_sha256": digest,
        "chain": json.dumps(to_json(head.chain)),
        "scores": "chain(x)·weight + bias; the largest score names the class",
        "probabilities": _EACH if head.several_labels else _TOGETHER,
        "card": json.dumps(head.card),
    }
