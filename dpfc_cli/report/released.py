"""Figures of a private evaluation, as `dpfc evaluate --epsilon E --json` wrote them. They may be shown to anyone."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.files import json_in
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_EPSILON
from dpfc_cli.report.document import Block, Facts, Grid, Words
from dpfc_cli.rounding import accuracy, with_interval
from dpfc_cli.rounding import epsilon as shown_epsilon
from dpfc_cli.schema import Check, among, each, either, fault, null, number, record, text, whole

_FRACTION = either(null, number(0, 1))
_INTERVAL = each(number(0, 1), least=2)
_CLASS: dict[str, Check] = {"class": text, "n": whole(0), "top1": _FRACTION, "interval": _INTERVAL}
_FIGURES: dict[str, Check] = {
    **{"head": text, "head_sha256": text, "split": text, "unit": among(["record", "person"]), "n": whole(0)},
    **{"epsilon": number(LEAST_EPSILON, LARGEST_EPSILON), "delta": number(0, 1), "top1": _FRACTION},
    **{"interval": _INTERVAL, "noise": either(null, number(0, 1e308)), "top5": _FRACTION},
    **{"top5_interval": either(null, _INTERVAL), "per_class": either(null, each(record(_CLASS)))},
}
_FILE = record({"figures": record(_FIGURES), "sha256": text})
MOST_CLASSES = 100
"""Of more classes than this only the ten worst and the ten best are in a report."""


def load(path: Path, digest: str) -> Mapping[str, Any]:
    """The released figures in a file.

    Args:
        path: the file.
        digest: the SHA-256 of the head that they must be of.

    Returns:
        The figures, as `PrivateEvaluation.figures` has them.

    Raises:
        UserError: the file is missing or no such output, its figures were changed, are exact, or are of another head.

    """
    about: dict[str, Any] = {"parameter": "evaluation", "path": str(path)}
    try:
        found = json_in(path)
    except FileNotFoundError as error:
        raise UserError(
            f"There is no file '{path}'.",
            "Write one with 'dpfc evaluate --epsilon', and --json.",
            code="missing",
            **about,
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"'{path}' cannot be read as the output of 'dpfc evaluate --json': {error}.",
            "Write it again.",
            code="damaged",
            **about,
        ) from error
    if isinstance(found, dict) and "figures" not in found and "top1" in found:
        raise UserError(
            f"The figures in '{path}' are exact: they protect no record of the split.",
            f"Release figures with noise ('dpfc evaluate --epsilon'), or leave out {parameter('evaluation')}. An "
            "internal report ('dpfc report --internal') has exact ones.",
            code="private-records",
            **about,
        )
    wrong = fault(found, _FILE)
    if wrong is not None:
        raise UserError(
            f"'{path}' is not the output of 'dpfc evaluate --epsilon E --json': '{wrong[:80]}' is missing or makes no "
            "sense.",
            "Name the file that the command wrote.",
            code="damaged",
            **about,
        )
    figures: Mapping[str, Any] = found["figures"]
    if hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest() != found["sha256"]:
        raise UserError(
            f"The figures in '{path}' are not those that were released: their SHA-256 is another one.",
            "Name the file as the command wrote it.",
            code="damaged",
            **about,
        )
    if figures["head_sha256"] != digest:
        raise UserError(
            f"The figures in '{path}' are of another head: its SHA-256 begins with {figures['head_sha256'][:12]}, and "
            f"that of this one with {digest[:12]}.",
            "Name the figures of this head.",
            code="conflict",
            **about,
        )
    return figures


def blocks(figures: Mapping[str, Any], trained_on: str) -> tuple[Block, ...]:
    """What a report says of released figures. trained_on: the split of the training."""
    unit = f"{figures['unit']}s"
    rows = [("top-1", with_interval(figures["top1"], figures["interval"], figures["n"]))]
    if figures["top5_interval"] is not None:
        rows.append(("top-5", with_interval(figures["top5"], figures["top5_interval"], figures["n"])))
    rows += [
        ("scored on", f"the {figures['split']} split, {figures['n']:,} {unit} (a noisy count)"),
        (
            "cost",
            f"epsilon = {shown_epsilon(figures['epsilon'])} at delta = {figures['delta']:g} for one {figures['unit']} "
            "of that split",
        ),
    ]
    found: list[Block] = [
        Words("These figures were released with noise. The intervals are for the choice of the records and the noise."),
        Facts(tuple(rows)),
    ]
    if figures["split"] == trained_on:
        found.insert(
            1, Words("The head was trained on a split of this name. These figures say how well it fits.", strong=True)
        )
    if figures["per_class"]:
        classes = [(c["class"], c["n"], c["top1"], c["interval"]) for c in figures["per_class"]]
        found.append(by_class(classes, f"{unit} (noisy)"))
    return tuple(found)


def by_class(classes: list[tuple[str, int, float | None, Any]], counted_as: str) -> Grid:
    """A table of (name, records, top-1, interval) per class. counted_as: what the records are called."""
    title = f"Top-1 per class: {counted(len(classes), 'class')}"
    if len(classes) > MOST_CLASSES:
        ordered = sorted((each for each in classes if each[1]), key=lambda each: each[2] or 0)
        classes, title = ordered[:10] + ordered[-10:], f"{title}, the ten worst and the ten best"
    rows = tuple((name, f"{n:,}", *accuracy(figure, ends, n)) for name, n, figure, ends in classes)
    return Grid(("class", counted_as, "top-1", "95 % interval"), rows, title=title)
