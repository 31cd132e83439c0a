"""`export`: a head in the format of another program."""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfc_cli import outputs
from dpfc_cli.errors import check_installed, conflict, parameter, printable, quoted
from dpfc_cli.extensions.exports.beside import source
from dpfc_cli.extensions.exports.request import Exporting, Files, Format, format_named
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import heads_folder
from dpfc_cli.heads.head import PRIVATE, Head, check_heads, encoded, ordered
from dpfc_cli.options import takes
from dpfc_cli.privacy.chain import arrays, to_json, values
from dpfc_cli.records.statement import brief
from dpfc_cli.show.document import Told
from dpfc_cli.version import __version__

if TYPE_CHECKING:
    from dpfc_cli.extensions.exports.beside.dpfc_head_sklearn import HeadClassifier


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
    head, path, format = wanted.head, Path(wanted.out), format_named(wanted.to)
    check_heads(head)
    outputs.check(path, (format.ending,))
    if format.ending == PRIVATE and path.parent.resolve() == heads_folder().resolve():
        raise conflict(
            f"{quoted(path)} would lie among the heads, and it would look like one.",
            f"Choose another folder: {parameter('out')}.",
        )
    if wanted.with_backbone and not format.backbone:
        raise conflict(f"The format {wanted.to} holds a head alone.", f"Leave out {parameter('with_backbone')}.")
    texts, written = notes(head, wanted.to.lower()), []
    for name, parts in format.files(wanted, texts).items():
        written.append(_named(path, name))
        outputs.write(written[-1], parts)
    return Exported(path=path, files=tuple(written), notes=texts)


def _named(path: Path, name: str) -> Path:
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
        "card": head.card.json,
    }


# Heads as arrays. No pickle is needed to read them, and torch is not imported.


def npz(wanted: Exporting, notes: dict[str, str]) -> Files:
    """One archive: `weight`, `bias`, an array for each step of the chain that has one, and the texts."""
    head = wanted.head
    held = {f"chain.{i}": value for i, value in enumerate(arrays(head.chain))}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, weight=head.weight, bias=head.bias, **held, **notes)
    return {"": [file.getvalue()]}


def sklearn(wanted: Exporting, notes: dict[str, str]) -> Files:
    """The same archive, and before it the module that makes a classifier of it."""
    module = "dpfc_head_sklearn"
    return {f"{module}.py": [source(module)], **npz(wanted, notes)}


def torch(wanted: Exporting, notes: dict[str, str]) -> Files:
    """The module, and a state dict in safetensors: `weight` (m × d, as torch.nn.Linear has it), `bias` (m), and a
    tensor for each step of the chain, such as `step0_clip`.
    """
    module, head = "dpfc_head_torch", wanted.head
    kinds = [step["step"] for step in to_json(head.chain)]
    digits = len(str(len(kinds)))
    steps = {
        f"step{i:0{digits}}_{kind}": np.asarray(value, np.float64)
        for i, (kind, value) in enumerate(zip(kinds, values(head.chain), strict=True))
    }
    tensors = {"weight": head.weight.T, "bias": head.bias, **steps}
    # torch's linear layers take one type of numbers.
    state = {each: np.ascontiguousarray(value, np.float64) for each, value in tensors.items()}
    return {f"{module}.py": [source(module)], "": [ordered(state, dict(notes))]}


NPZ = Format(ending=".npz", files=npz)
SKLEARN = Format(ending=".npz", files=sklearn)
TORCH = Format(ending=PRIVATE, files=torch)


def to_sklearn(head: Head) -> "HeadClassifier":
    """A head as a scikit-learn classifier.

    It has `predict`, `predict_proba`, `decision_function` and `classes_`. `fit` changes nothing. Columns are in the
    sorted order of the names of the classes, or of 0 … m − 1 where these are counted. Probabilities are not calibrated.

    Args:
        head: the head.

    Returns:
        The classifier. It holds nothing of the head but what its file holds.

    Raises:
        UserError: scikit-learn is not installed.

    Examples:
        >>> classifier = to_sklearn(Head.load("heads/eps1.safetensors"))
        >>> classifier.score(x, names)

    """
    check_heads(head)
    check_installed("sklearn", "sklearn", "For this")
    from dpfc_cli.extensions.exports.beside.dpfc_head_sklearn import HeadClassifier

    kinds = [str(step["step"]) for step in to_json(head.chain)]
    chain = list(zip(kinds, values(head.chain), strict=True))
    made: HeadClassifier = HeadClassifier(  # type: ignore[no-untyped-call]
        chain, head.weight, head.bias, list(head.classes), head.several_labels, head.card.values()
    )
    return made
