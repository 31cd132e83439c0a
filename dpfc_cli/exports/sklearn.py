"""scikit-learn: an archive as of `npz`, and beside it the module that makes a classifier of it."""

from typing import TYPE_CHECKING

from dpfc_cli.errors import check_installed
from dpfc_cli.exports import npz
from dpfc_cli.exports.beside import source
from dpfc_cli.exports.network import Network
from dpfc_cli.exports.target import Files, Target, check_head
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.chain import to_json, values

if TYPE_CHECKING:
    from dpfc_cli.exports.beside.dpfc_head_sklearn import HeadClassifier


def to_sklearn(head: Head) -> "HeadClassifier":
    """A head as a scikit-learn classifier.

    It has `predict`, `predict_proba`, `decision_function` and `classes_`. `fit` changes nothing. Columns are in the
    sorted order of the names of the classes. Probabilities are not calibrated.

    Args:
        head: the head.

    Returns:
        The classifier. It holds nothing of the head but what its file holds.

    Raises:
        UserError: the card of the head contradicts itself, or scikit-learn is not installed.

    Examples:
        >>> classifier = to_sklearn(Head.load("heads/eps1.safetensors"))
        >>> classifier.score(x, names)

    """
    check_head(head)
    check_installed("sklearn", "sklearn", "For this")
    from dpfc_cli.exports.beside.dpfc_head_sklearn import HeadClassifier

    kinds = [str(step["step"]) for step in to_json(head.chain)]
    chain = list(zip(kinds, values(head.chain), strict=True))
    several, card = head.several_labels, dict(head.card)
    made: HeadClassifier = HeadClassifier(  # type: ignore[no-untyped-call]
        chain, head.weight, head.bias, list(head.classes), several, card
    )
    return made


def files(head: Head, notes: dict[str, str], network: Network | None, name: str) -> Files:
    """The module, and the archive."""
    module = "dpfc_head_sklearn"
    return {f"{module}.py": [source(module)], **npz.files(head, notes, network, name)}


TARGET = Target(name="sklearn", suffix=".npz", files=files)
