"""Figures of a private evaluation, as `dpfc evaluate --epsilon E --json` wrote them. They may be shown to anyone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.files import json_in
from dpfc_cli.report.document import Block, Facts, Grid, Words
from dpfc_cli.rounding import accuracy, cost, with_interval
from dpfc_cli.sources.reading import reading_code, remedy_for
from dpfc_cli.trust.released import checked

MOST_CLASSES = 100
"""Of more classes than this only the ten worst and the ten best are in a report."""


def load(path: Path, digest: str) -> Mapping[str, Any]:
    """The released figures in a file, see `trust.released`.

    Args:
        path: the file.
        digest: the SHA-256 of the head that they must be of.

    Raises:
        UserError: the file is missing or no such output, its figures were changed, are exact, or are of another head.

    """
    about: dict[str, Any] = {"parameter": "evaluation.evaluate", "path": str(path)}
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
            remedy_for(error, "Write it again."),
            code=reading_code(error),
            **about,
        ) from error
    remedy = (
        f"Or leave out {parameter('evaluation')} and write an internal report ({parameter('internal')}): it has exact "
        "figures."
    )
    return checked(found, digest, f"'{path}'", remedy, about)


def blocks(figures: Mapping[str, Any], trained_on: str) -> tuple[Block, ...]:
    """What a report says of released figures. trained_on: the split of the training."""
    unit = f"{figures['unit']}s"
    rows = [("top-1", with_interval(figures["top1"], figures["interval"], figures["n"]))]
    if figures["top5_interval"] is not None:
        rows.append(("top-5", with_interval(figures["top5"], figures["top5_interval"], figures["n"])))
    rows += [
        (
            "scored on",
            f"the {figures['split']} split of '{figures['features']}', {figures['n']:,} {unit} (a noisy count)",
        ),
        (
            "cost",
            f"{cost(figures['epsilon'], figures['delta'])} for one {figures['unit']} of that split",
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
