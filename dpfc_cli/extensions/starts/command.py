"""`dpfc zero-shot`: what is public about the classes, as a start for trainings."""

import shlex
from typing import TYPE_CHECKING, Any

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import feature_set, set_named, with_sets
from dpfc_cli.extensions.starts.request import ClassVectors

if TYPE_CHECKING:
    from dpfc_cli.extensions.starts.zero_shot import ZeroShot
    from dpfc_cli.features.reader import FeatureSet

NAMED = 100
"""Of more classes without a vector than this the first are named. --json names all."""


@command(
    "zero-shot",
    ClassVectors,
    panel="Before a training",
    when_stopped="If the file is there, it is whole.",
    computes=True,
)
def zero_shot(**asked: Any) -> None:
    """Make class vectors of what is public about the classes, for dpfc train --public-head.

    A class of which nothing is known is named. No private record is read, unless --on names one. Without --features and
    --model, the newest feature set is taken.
    """
    from dpfc_cli.extensions.starts.zero_shot import zero_shot as make

    asked = with_sets(asked, ClassVectors)
    if asked["features"] is None and asked["model"] is None:
        asked["features"] = feature_set(None)
    found, scored = asked["features"], asked["on"]
    made = make(**asked)
    for warning in made.warnings:
        display.warn(warning)
    _show(made, scored)
    if scored is not None:
        display.say(
            "These figures are of raw records, without noise: they cost nothing only if the records are public."
        )
    if not made.made:
        display.say(f"'{made.path}' was there already, with the same bytes.")
    named = "" if found is None else f" --features {set_named(found.folder)}"
    display.say(f"Next: dpfc train --epsilon 1{named} --public-head {shlex.quote(str(made.path))}")


def _json(made: "ZeroShot", on: "FeatureSet | None") -> dict[str, Any]:
    score = None
    if made.evaluation is not None:
        assert on is not None
        from dpfc_cli.report import evaluated

        top1, top5 = made.evaluation.chance or (None, None)
        score = {
            "features": str(on.folder),
            **evaluated.figures_json(made.evaluation),
            "chance": top1,
            "chance_top5": top5,
        }
    return {
        "path": str(made.path),
        "made": made.made,
        "classes": list(made.known),
        "without": list(made.without),
        "dim": made.vectors.shape[1],
        "origin": made.origin,
        "score": score,
    }


def _show(made: "ZeroShot", on: "FeatureSet | None") -> None:
    from dpfc_cli.report import evaluated
    from dpfc_cli.show.document import Rows, page

    known, without, origin = len(made.known), made.without, made.origin
    said = f"{known:,} of {len(made.classes):,}"
    rows = [("file", str(made.path)), ("made of", _source(origin)), ("classes with a vector", said)]
    if without:
        more = f" and {len(without) - NAMED:,} more" if len(without) > NAMED else ""
        rows.append(("without", ", ".join(without[:NAMED]) + more))
    found = made.evaluation
    if on is not None and found is not None:
        rows.append(("scored on", f"the {found.split} split of {on.folder}"))
        rows += [*evaluated.figures_rows(found), ("records", f"{found.n:,}")]
    blocks = [Rows(rows), *([] if found is None else [evaluated.classes(found)])]
    display.show(page("Class vectors", *blocks, values=_json(made, on)))


def _source(origin: Any) -> str:
    by = f"{origin['model']} ({origin['weights']['id']})"
    if origin["source"] == "text":
        return f"the names of the classes, by the text tower of {by}"
    return f"the classifier of {by}, {origin['classifier']:,} rows"
