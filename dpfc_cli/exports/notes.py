"""What every export says of its head, as texts by name."""

import hashlib
import json

from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.privacy.chain import to_json
from dpfc_cli.trust.statement import brief
from dpfc_cli.version import __version__

_TOGETHER = "the softmax of the scores; they are not calibrated"
_EACH = "the logistic function of each score, because records may have several labels; they are not calibrated"


def notes(head: Head, target: str) -> dict[str, str]:
    """What is said of a head.

    The card is there in full, as JSON. `claim` says in a sentence what is claimed, or that nothing is.

    Args:
        head: the head.
        target: the name of the format.

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
