"""Figures of a private evaluation, as a file has them: exact ones are refused, for no noise protects them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, conflict, damaged, parameter, quoted
from dpfc_cli.files import json_in
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_EPSILON
from dpfc_cli.reading import readable
from dpfc_cli.schema import Check, among, each, either, fault, null, number, record, text, whole

_FRACTION = either(null, number(0, 1))
_INTERVAL = each(number(0, 1), least=2)
_CLASS: dict[str, Check] = {"class": text, "n": whole(0), "top1": _FRACTION, "interval": _INTERVAL}
_FIGURES: dict[str, Check] = {
    **dict.fromkeys(("head", "head_sha256", "charge", "features", "split"), text),
    **{"unit": among(["record", "person"]), "n": whole(0)},
    **{"epsilon": number(LEAST_EPSILON, LARGEST_EPSILON), "delta": number(0, 1), "top1": _FRACTION},
    **{"interval": _INTERVAL, "noise": either(null, number(0, 1e308)), "top5": _FRACTION},
    **{
        "top5_interval": either(null, _INTERVAL),
        "top5_noise": either(null, number(0, 1e308)),
        "per_class": either(null, each(record(_CLASS))),
    },
}
_FILE = record({"figures": record(_FIGURES), "sha256": text})


def released_in(path: Path, digest: str) -> Mapping[str, Any]:
    """The released figures in a file, as `PrivateEvaluation.figures` has them, and `sha256`: of the figures. Whoever
    changes them can compute it again: `check_charged` compares it with a ledger.

    UserError: the file is missing or no such output, or its figures were changed, are exact, or not of the head with
    this SHA-256.
    """
    kind = f"the output of 'dpfc evaluate --json' ({parameter('evaluation')})"
    with readable(path, kind, "Write it again.", plain=False):
        found = json_in(path)
    if isinstance(found, dict) and "figures" not in found and "top1" in found:
        raise UserError(
            f"The figures in {quoted(path)} are exact: they protect no record of the split.",
            "Release figures with noise: 'dpfc evaluate --epsilon'. With a large epsilon, for public records, the "
            f"noise is a fraction of a record. Or leave out {parameter('evaluation')} and write an internal report "
            f"({parameter('internal')}): it has exact figures.",
            code="private-records",
        )
    wrong = fault(found, _FILE)
    figures = {} if wrong is not None else found["figures"]
    if wrong is None and hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest() != found["sha256"]:
        wrong = "sha256"
    if wrong is not None:
        raise damaged(
            f"{quoted(path)} is not what 'dpfc evaluate --epsilon E --json' wrote: '{wrong[:80]}' is missing, or was "
            "changed, or makes no sense.",
            "Give what the command wrote.",
            parameter="evaluation",
        )
    if figures["head_sha256"] != digest:
        raise conflict(
            f"The figures in {quoted(path)} are of another head: its SHA-256 begins with "
            f"{figures['head_sha256'][:12]}, and that of this one with {digest[:12]}.",
            "Give the figures of this head.",
            parameter="evaluation",
        )
    return {**figures, "sha256": found["sha256"]}


def check_charged(figures: Mapping[str, Any], book: Ledger) -> None:
    """Compare figures that were loaded with what the ledger says of their charge. UserError: it has other ones."""
    outcome = book.outcome(figures["charge"])
    if outcome is None or outcome.sha256 != figures["sha256"]:
        raise damaged(
            f"The ledger of the training has no such figures as those of {parameter('evaluation')}: they were changed, "
            "or charged to another ledger.",
            f"Give them as 'dpfc evaluate' wrote them. Without {parameter('internal')} they are not compared, and the "
            "report says so.",
            parameter="evaluation",
        )
