"""`dpfc evaluate`: how good heads are, beside what they cost."""

import itertools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import feature_set, head_or_newest, tell_ledger
from dpfc_cli.errors import UserError, conflict, missing, parameter
from dpfc_cli.evaluation.request import PRIVATE, PrivateScoring
from dpfc_cli.folders import features_folder
from dpfc_cli.options import Option
from dpfc_cli.progress import show

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import Evaluation
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.figures.canvas import Drawing
    from dpfc_cli.heads.head import Head

OUTPUT = "Output"


@command("evaluate", PrivateScoring, panel="Train a classifier")
def evaluate(
    heads: Annotated[
        list[Path] | None,
        Option(
            "The heads' files, their names in ./heads, or hf:OWNER/NAME. Several are compared, each with the "
            "first. Default: the newest private one in ./heads.",
            argument=True,
            metavar="HEAD",
        ),
    ] = None,
    features: Annotated[
        str | None,
        Option(
            "The feature set, by path or name. Default: the one that the head was trained on, or else the newest.",
            metavar="SET",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option(
            "ε to spend on the records of the split, if they are private, too: the figures are then noisy, and "
            "charged to the ledger. Default: exact figures, which protect nothing.",
            PRIVATE,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(
            "Draw a figure, too: FILE ends in .svg, .png or .pdf. One head: its confusions, and whether its "
            "probabilities are right. Several: accuracy against ε; those that differ in their seed alone are one "
            "curve.",
            OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    full: Full = False,
    as_json: Annotated[
        bool, Option("Print one JSON object, with all figures in full.", OUTPUT, flags=("--json",))
    ] = False,
    as_csv: Annotated[bool, Option("Print CSV: a row for each head.", OUTPUT, flags=("--csv",))] = False,
    as_markdown: Annotated[bool, Option("Print what is shown as Markdown.", OUTPUT, flags=("--markdown",))] = False,
    **asked: Any,
) -> None:
    """Score heads on a labelled split, and say what their training cost.

    Of one head it shows the top-1 and the top-5 accuracy, each with a 95 % interval, the accuracy per class, what is
    taken for what, and whether the probabilities are right. Where records have several labels, it shows the mean
    average precision. Several heads are shown side by side, with their differences to the first one.

    With --epsilon it protects the records of the split: it shows what a noisy count says, and what was spent.
    """
    from dpfc_cli.evaluation import evaluate as evaluation
    from dpfc_cli.heads.head import Head
    from dpfc_cli.ledger.file import ledger_path
    from dpfc_cli.report import evaluated
    from dpfc_cli.show.markdown import markdown

    as_values = {"as_json": as_json, "as_csv": as_csv, "as_markdown": as_markdown}
    _check_options([name for name, wanted in as_values.items() if wanted], heads or [], epsilon, asked)
    given = None if features is None else feature_set(features)
    loaded = [Head.load(path) for path in heads or [head_or_newest(None, given)]]
    found = given or _features(str(loaded[0].card["features"]["name"]), epsilon is not None)
    scored, split = {"features": found, "split": asked["split"]}, asked["split"]
    if plot is not None:
        _check_plot(plot, found, split, [head.card for head in loaded], epsilon is not None)
    draw: Callable[[], Drawing] | None = None
    paths, cards = [_path(head) for head in loaded], [head.card for head in loaded]
    ready = None
    if epsilon is not None:
        tell_ledger(found.folder)
        ready = evaluation.prepared(PrivateScoring(loaded[0], found, **asked, epsilon=epsilon), display.warn)
        if not asked["again"] and display.can_ask():
            from dpfc_cli.training.charge import charged_again, question

            refused = charged_again(ready.book, ready.charge, found.name)
            after = ready.book.with_facts(ready.charge).account_of(found.manifest.id)
            cost = question(ready.charge, found.name, after)
            said = "" if refused is None else f"{refused.what} "
            if not display.confirmed(f"{said}{ready.sure} Charge {cost}?"):
                raise refused or UserError("Nothing was charged.", "No figure was released.", code="declined")
            ready = replace(ready, wanted=replace(ready.wanted, again=refused is not None))
    if len(loaded) > 1:
        compared = evaluation.compare(loaded, **scored)
        document = evaluated.several(paths, cards, found, compared)
        names, groups = evaluated.heads_named(paths), evaluated.but_for_the_seed(cards)
        draw = partial(_drawn_several, cards, names, groups, found, compared.evaluations)
    elif ready is None:
        exact = evaluation.evaluate(loaded[0], **scored)
        document = evaluated.one(paths[0], cards[0], found, exact)
        draw = partial(_drawn_one, paths[0], found, exact)
    else:
        # It loads JAX, and nothing else here needs that.
        from dpfc_cli.evaluation import private

        noisy = private.release(ready, show)
        stop.stands = f"The evaluation was charged to '{ledger_path(found.folder)}' and stays charged."
        document = evaluated.private(paths[0], cards[0], found, noisy)
    if as_csv:
        for warning in document.values["warnings"]:
            display.warn(warning)
    if as_json:
        display.as_json(document.values)
    elif as_csv:
        display.as_csv(evaluated.COLUMNS, evaluated.rows(document.values))
    elif as_markdown:
        sys.stdout.write(markdown(document))
    else:
        display.show(document, full)
    if plot is not None and draw is not None:
        # Exact figures say something about the records.
        draw().save(plot, 0o600)
        display.say(f"Figure: {plot}")


def _path(head: "Head") -> Path:
    from dpfc_cli.heads.head import shown

    return Path(shown(head.file))


def _features(own: str, charged: bool) -> "FeatureSet":
    """The set to score on, if none was named. own: the name of the one that the (first) head was trained on. charged:
    whether the evaluation costs privacy.
    """
    from dpfc_cli.features.lookup import open_features, set_of_training

    found = set_of_training(own)
    if found is not None:
        return found
    if charged:
        raise missing(
            f"The head was trained on '{own}', which is not in '{features_folder()}'. So it is not known on which set "
            f"{parameter('epsilon')} is to be spent.",
            f"Name the set: {parameter('features')}.",
            parameter="features",
        )
    found = open_features(None)
    display.say(
        f"Features: {found.folder} (the newest set. The head was trained on '{own}', which is not in "
        f"'{features_folder()}'; name another with --features)"
    )
    return found


def _check_options(ways: Sequence[str], heads: Sequence[Path], epsilon: float | None, asked: Mapping[str, Any]) -> None:
    """UserError for options that do not go together. ways: to print."""
    if len(ways) > 1:
        what = f"{parameter(ways[0])} and {parameter(ways[1])} are two ways to print the same."
        raise conflict(what, "Give one of them.")
    idle = next((name for name in ("delta", "by", "purpose") if asked[name] is not None), None)
    if epsilon is None and idle is not None:
        raise conflict(
            f"{parameter(idle)} has no meaning without {parameter('epsilon')}: exact figures spend nothing.",
            f"Give {parameter('epsilon')}, or leave it out.",
        )
    if epsilon is not None and len(heads) > 1:
        what = f"{parameter('epsilon')} is spent on one head at a time: each evaluation costs it anew."
        raise conflict(what, "Evaluate the heads one by one, or name one.")


def _check_plot(
    plot: Path, features: "FeatureSet", split: str, cards: Sequence[Mapping[str, Any]], noisy: bool
) -> None:
    """Refuse a figure that cannot be drawn, or must not be, before any record is read. noisy: whether the figures are
    released with noise.
    """
    from dpfc_cli.figures import canvas

    canvas.check(plot)
    why = None
    if noisy:
        why = f"with {parameter('epsilon')} neither confusions nor probabilities are released"
    elif any(card["features"]["split"] == split for card in cards):
        why = f"a head was trained on a split of this name, '{split}', and a figure would show more than its accuracy"
    elif len(cards) == 1 and features.manifest.labels_per_record > 1:
        why = "confusions and the reliability of one head are known for records with one label"
    if why is not None:
        raise conflict(f"There is nothing to draw: {why}.", f"Leave out {parameter('plot')}.")


def _drawn_one(path: Path, features: "FeatureSet", found: "Evaluation") -> "Drawing":
    """What one head confuses, and whether its probabilities are right."""
    from dpfc_cli.figures import canvas, confusion, reliability

    assert found.confusions is not None
    assert found.calibration is not None
    names = [each.name for each in found.per_class]
    numbers = {name: i for i, name in enumerate(names)}
    cells = [(numbers[each.label], numbers[each.predicted], each.n) for each in found.confusions]
    error, chance = (100 * each for each in (found.calibration.error, found.calibration.by_chance))
    return canvas.draw(
        confusion.panel(names, cells),
        reliability.panel(found.calibration.bins, title=f"Reliability (error {error:.1f} %, by chance {chance:.1f} %)"),
        title=_title(canvas.shortened(path.name), features, found),
    )


def _drawn_several(
    cards: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    groups: Sequence[Sequence[int]],
    features: "FeatureSet",
    found: Sequence["Evaluation"],
) -> "Drawing":
    """Accuracy against ε: a line for each method, and a level for each head without a guarantee. Heads that differ in
    their seed alone are one point (groups: their places).
    """
    from dpfc_cli.figures import accuracy, canvas

    epsilons = [card.get("seeded", card)["epsilon"] for card in cards]
    lines: dict[tuple[str, bool, int], dict[float, Sequence[int]]] = {}
    for held in groups:
        method, seeded, epsilon = cards[held[0]]["method"], "seeded" in cards[held[0]], epsilons[held[0]]
        if epsilon is not None:
            # Other heads of one method at one ε are of several lines.
            run = next(run for run in itertools.count() if epsilon not in lines.get((method, seeded, run), {}))
            lines.setdefault((method, seeded, run), {})[epsilon] = held
    series, several = [], False
    for (kind, seeded, run), points in lines.items():
        seeds = {cards[i]["seeded"]["seed"] for held in points.values() for i in held} if seeded else set()
        several |= len(seeds) > 1
        told = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {min(seeds, default='')}"
        label = f"{kind} ({told}, no guarantee)" if seeded else kind
        scores = [[found[i].top1 for i in held] for held in points.values()]
        ends = [
            (min(each), max(each)) if len(seeds) > 1 else found[held[0]].interval
            for each, held in zip(scores, points.values(), strict=True)
        ]
        series.append(
            accuracy.Series(
                label if not run else f"{label}, {run + 1}",
                list(points),
                [statistics.mean(each) for each in scores],
                [low for low, _ in ends],
                [high for _, high in ends],
                dashed=seeded,
            )
        )
    levels = [
        accuracy.Level(f"{name}: no guarantee", each.top1, *each.interval)
        for name, epsilon, each in zip(names, epsilons, found, strict=True)
        if epsilon is None
    ]
    measure = "top-1 accuracy (mean and range of seeds)" if several else "top-1 accuracy"
    return canvas.draw(accuracy.panel(series, levels, measure=measure), title=_title("Accuracy", features, found[0]))


def _title(what: str, features: "FeatureSet", found: "Evaluation") -> str:
    from dpfc_cli.figures import canvas

    return f"{what} on the {found.split} split of {canvas.shortened(features.name)} ({found.n:,} records)"
