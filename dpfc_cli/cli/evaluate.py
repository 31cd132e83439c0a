"""`dpfc evaluate`: how good heads are, beside what they cost."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpfc_cli.cli import display, drawn, places, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.folders import features_folder, heads_folder
from dpfc_cli.options import Option

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.figures.canvas import Drawing
    from dpfc_cli.heads.head import Head

OUTPUT, PRIVATE = "Output", "Private records"


@command("evaluate")
def evaluate(
    heads: Annotated[
        list[Path] | None,
        Option(
            "The heads' files, their names in ./heads, or hf:OWNER/NAME. Several are compared, each with the "
            "first. Default: the newest private one in ./heads.",
            argument=True,
            metavar="HEAD...",
        ),
    ] = None,
    features: Annotated[
        str | None,
        Option(
            "The feature set, by path or name. Default: the one that the head was trained on, or else the newest.",
            metavar="SET",
        ),
    ] = None,
    split: Annotated[str, Option("The split to score.", metavar="NAME")] = "test",
    epsilon: Annotated[
        float | None,
        Option(
            "ε to spend on the records of the split, if they are private, too: the figures are then noisy, and "
            "charged to the ledger. Default: exact figures, which protect nothing.",
            PRIVATE,
        ),
    ] = None,
    delta: Annotated[float | None, Option("δ, with --epsilon. Default: min(1e-5, 1/n).", PRIVATE)] = None,
    by: Annotated[
        str | None,
        Option("With --epsilon: whose evaluation it is, for the ledger. Default: your account.", PRIVATE),
    ] = None,
    purpose: Annotated[
        str | None,
        Option("With --epsilon: what it is for, for the ledger.", PRIVATE),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(
            "Draw a figure, too: FILE ends in .svg, .png or .pdf. One head: its confusions, and whether its "
            "probabilities are right. Several: accuracy against ε.",
            OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    full: Full = False,
    calibration: Annotated[
        bool,
        Option("Show whether the probabilities are right, too.", OUTPUT),
    ] = False,
    as_json: Annotated[
        bool, Option("Print one JSON object, with all figures in full.", OUTPUT, flags=("--json",))
    ] = False,
    as_csv: Annotated[bool, Option("Print CSV: a row for each head.", OUTPUT, flags=("--csv",))] = False,
    as_markdown: Annotated[bool, Option("Print what is shown as Markdown.", OUTPUT, flags=("--markdown",))] = False,
) -> None:
    """Score heads on a labelled split, and say what their training cost.

    Of one head it shows the top-1 and the top-5 accuracy, each with a 95 % interval, the accuracy per class, what is
    taken for what, and whether the probabilities are right. Where records have several labels, it shows the mean
    average precision. Several heads are shown side by side, with their differences to the first one.

    With --epsilon it protects the records of the split: it shows what a noisy count says, and what was spent.
    """
    from dpfc_cli.evaluation import evaluate as evaluation
    from dpfc_cli.evaluation.exact import Evaluation
    from dpfc_cli.heads.head import Head, newest
    from dpfc_cli.ledger.file import ledger_path
    from dpfc_cli.report import evaluated
    from dpfc_cli.show.markdown import markdown

    as_values = {"as_json": as_json, "as_csv": as_csv, "as_markdown": as_markdown}
    _check_one(*(name for name, wanted in as_values.items() if wanted))
    given = heads or [newest(heads_folder())]
    if not heads:
        display.say(f"Head: {given[0]} (the newest private one)")
    loaded = [Head.load(path) for path in given]
    if len(loaded) > 1 and epsilon is not None:
        raise UserError(
            f"{parameter('epsilon')} is spent on one head at a time: each evaluation costs it anew.",
            "Evaluate the heads one by one, or name one.",
            code="conflict",
            parameter="epsilon",
        )
    found = _features(features, str(loaded[0].card["features"]["name"]), epsilon is not None)
    if plot is not None:
        drawn.check(plot, found, split, [head.card for head in loaded], epsilon is not None)
    draw: Callable[[], Drawing] | None = None
    paths, cards = [_path(head) for head in loaded], [head.card for head in loaded]
    with display.stages("Evaluating", "records") as progress:
        if len(loaded) > 1:
            compared = evaluation.compare(loaded, found, split, progress=progress)
            gains = (None, *compared.differences)
            rows = [
                evaluated.row_of(*each[:2], found, *each[2:])
                for each in zip(paths, cards, compared.evaluations, gains, strict=True)
            ]
            document = evaluated.several(paths, cards, found, compared)
            draw = partial(drawn.several, cards, evaluated.heads_named(paths), found, compared.evaluations)
        else:
            result = evaluation.evaluate(
                loaded[0], found, split, epsilon=epsilon, delta=delta, by=by, purpose=purpose, progress=progress
            )
            rows = [evaluated.row_of(paths[0], cards[0], found, result)]
            if isinstance(result, Evaluation):
                document = evaluated.one(paths[0], cards[0], found, result, calibration)
                draw = None if plot is None else partial(drawn.one, plot, found, result)
            else:
                stop.stands = f"The evaluation was charged to '{ledger_path(found.folder)}' and stays charged."
                document = evaluated.private(paths[0], found, result)
    if as_json or as_csv:
        for warning in document.values["warnings"]:
            display.warn(warning)
    if as_json:
        display.as_json(document.values)
    elif as_csv:
        evaluated.as_csv(rows)
    elif as_markdown:
        sys.stdout.write(markdown(document))
    else:
        display.show(document if full else document.short)
        if document != document.short and not full:
            display.say("All classes, confusions, probabilities: --full")
    if plot is not None and draw is not None:
        draw().save(plot)
        display.say(f"Figure: {plot}")


def _path(head: "Head") -> Path:
    from dpfc_cli.heads.head import shown

    assert head.path is not None
    return Path(shown(head.path))


def _features(given: str | None, own: str, charged: bool) -> "FeatureSet":
    """The set to score on. own: the name of the one that the (first) head was trained on, which is the default.
    charged: whether the evaluation costs privacy.
    """
    if given is not None:
        return places.feature_set(given)[0]
    from dpfc_cli.features.lookup import set_of_training

    found = set_of_training(own)
    if found is not None:
        display.say(f"Features: {found.folder} (the set of the training, by its name)")
        return found
    if charged:
        raise UserError(
            f"The head was trained on '{own}', which is not in '{features_folder()}'. So it is not known on which set "
            f"{parameter('epsilon')} is to be spent.",
            f"Name the set: {parameter('features')}.",
            code="missing",
            parameter="features",
        )
    found, _ = places.feature_set(None)
    display.say(
        f"Features: {found.folder} (the newest set. The head was trained on '{own}', which is not in "
        f"'{features_folder()}'; name another with --features)"
    )
    return found


def _check_one(*chosen: str) -> None:
    if len(chosen) > 1:
        raise UserError(
            f"{' and '.join(map(parameter, chosen))} are two ways to print the same.",
            "Give one of them.",
            code="conflict",
            parameter=chosen[0],
        )
