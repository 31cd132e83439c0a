"""`dpfc zero-shot`: what is public about the classes, as a start for trainings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli.backbones import BACKBONES
from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.cli.classes import typed_classes
from dpfc_cli.cli.typed import JSON
from dpfc_cli.options import Option

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.public_starts.zero_shot import ZeroShot

NAMED = 100
"""Of more classes without a vector than this the first are named. --json names all."""
CLASSIFIER, TEXT, SCORE = "From the classifier", "From text", "Score"


@command("zero-shot", when_stopped="If the file is there, it is whole.")
def zero_shot(
    source: Annotated[
        str,
        Option(
            "What the vectors are made of. text: the names of the classes, by the text tower of the backbone "
            "(CLIP, SigLIP). classifier: the classifier that the backbone was trained with (AugReg, DeiT).",
            metavar="SOURCE",
            flags=("--from",),
        ),
    ],
    features: Annotated[
        str | None,
        Option(
            "The feature set that will be trained on, by path or name. It says backbone and classes, and no "
            "record of it is read. Default: the newest one; none with --model.",
            metavar="SET",
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            f"The backbone, for features that do not say it (dpfc import): {', '.join(BACKBONES[1:])}.", metavar="NAME"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            "The weights of the features: a file, a folder, or hf:OWNER/NAME. Default: those that SET names.",
            metavar="CHECKPOINT",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        Option(
            "What to call the classes of SET, in their order, if their own names are codes or numbers: names "
            "between commas, or a file with a name on each line. Default: their own names.",
            metavar="NAMES",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option("The file to be made. Default: SET-SOURCE.safetensors in this folder.", metavar="FILE"),
    ] = None,
    prompts: Annotated[
        Path | None,
        Option(
            "A sentence on each line, with {} in the place of the name, such as 'a photo of a {}.'. The vectors "
            "of all sentences are averaged.",
            TEXT,
            metavar="FILE",
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        Option(
            'Which rows of the classifier a class has: JSON {"cat": [281, 282]}, counted from 0.',
            CLASSIFIER,
            metavar="FILE",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        Option(
            "What the rows stand for, a line for each: names between commas, or a WordNet id (n02084071). A class "
            "has the rows of its name. Default: what the weights say.",
            CLASSIFIER,
            metavar="FILE",
        ),
    ] = None,
    wordnet: Annotated[
        Path | None,
        Option(
            "WordNet's index.noun and data.noun, such as /usr/share/wordnet. A class has all rows below a meaning "
            "of its name.",
            CLASSIFIER,
            metavar="FOLDER",
        ),
    ] = None,
    on: Annotated[
        str | None,
        Option(
            "Score the vectors on this feature set. It reads records, without noise. That costs nothing only if "
            "these records are public.",
            SCORE,
            metavar="SET",
        ),
    ] = None,
    split: Annotated[str, Option("The split of it to score.", SCORE, metavar="NAME")] = "test",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Make class vectors of what is public about the classes, for dpfc train --public-head.

    A class of which nothing is known is named. No private record is read, unless --on names one.
    """
    from dpfc_cli.public_starts.zero_shot import zero_shot as make

    found = None
    if features is not None or model is None:
        found, others = places.feature_set(features)
        if others:
            display.say(f"Features: {found.folder} (the newest of {others + 1} sets; --features names another)")
    scored = None if on is None else places.feature_set(on)[0]
    units = {"Reading the records": "records", "Evaluating": "records", "texts": "texts"}
    with display.stages("Reading the weights", lambda stage: units.get(stage, "B")) as progress:
        made = make(
            found,
            source=source,
            model=model,
            weights=weights,
            classes=typed_classes(classes),
            prompts=prompts,
            rows=rows,
            labels=labels,
            wordnet=wordnet,
            on=scored,
            split=split,
            out=out,
            progress=progress,
        )
    for warning in made.warnings:
        display.warn(warning)
    if as_json:
        display.as_json(_json(made, scored))
    else:
        _show(made, scored)
    if scored is not None:
        display.say(
            "These figures are of raw records, without noise: they cost nothing only if the records are public."
        )
    if not made.made:
        display.say(f"'{made.path}' was there already, with the same bytes.")
    named = "" if found is None else f" --features {places.said(found.folder)}"
    display.say(f"Next: dpfc train --epsilon 1{named} --public-head {places.quoted(made.path)}")


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
        "warnings": list(made.warnings),
        "score": score,
    }


def _show(made: "ZeroShot", on: "FeatureSet | None") -> None:
    """The vectors, and how good they are."""
    from dpfc_cli.report import evaluated
    from dpfc_cli.show.document import Facts, page

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
    display.show(page("Class vectors", Facts(rows), *([] if found is None else [evaluated.classes(found)])))


def _source(origin: Any) -> str:
    """What the vectors were made of."""
    by = f"{origin['model']} ({origin['weights']['id']})"
    if origin["source"] == "text":
        return f"the names of the classes, by the text tower of {by}"
    return f"the classifier of {by}, {origin['classifier']:,} rows"
