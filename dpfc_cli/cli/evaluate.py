"""`dpfc evaluate`: how good a head is, beside what it cost."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.folders import features_folder, heads_folder

if TYPE_CHECKING:
    from dpfc_cli.evaluation import ClassFigures, Evaluation
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.training.private_evaluation import PrivateEvaluation

MOST_CLASSES = 20
"""Of more classes than this only the ten worst and the ten best are shown. --json has all."""


@command("evaluate")
def evaluate(
    head: Annotated[
        Path | None,
        typer.Argument(help="The head's file, or hf:OWNER/NAME. Default: the newest private one in ./heads."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="The feature set, by path or name. Default: the one that the head was trained on, or else the newest.",
            metavar="SET",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="The split to score.", metavar="NAME")] = "test",
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="ε to spend on the records of the split, if they are private, too: the figures are then noisy, and "
            "charged to the ledger. Default: exact figures, which protect nothing."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ, with --epsilon. Default: min(1e-5, 1/n).")] = None,
    by: Annotated[
        str | None,
        typer.Option(help="With --epsilon: whose evaluation it is, for the ledger. Default: your account."),
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="With --epsilon: what it is for, for the ledger.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with all figures in full.")] = False,
) -> None:
    """Score a head on a labelled split, and say what its training cost.

    It shows the top-1 and the top-5 accuracy, each with a 95 % interval, and the accuracy per class. Where records have
    several labels, it also shows the mean average precision.

    With --epsilon it protects the records of the split: it shows what a noisy count says, and what was spent.
    """
    from dpfc_cli import evaluation
    from dpfc_cli.heads.head import Head, newest, shown

    path = head or newest(heads_folder())
    if head is None:
        display.say(f"Head: {path} (the newest private one; name another: dpfc evaluate HEAD)")
    loaded = Head.load(path)
    path = Path(shown(loaded.path or path))
    found = _features(features, str(loaded.card["features"]["name"]), epsilon is not None)
    with display.stages("Evaluating", "records") as progress:
        result = evaluation.evaluate(
            loaded, found, split, epsilon=epsilon, delta=delta, by=by, purpose=purpose, progress=progress
        )
    for warning in result.warnings:
        display.warn(warning)
    if not isinstance(result, evaluation.Evaluation):
        _show_released(path, found, result, as_json)
        return
    if as_json:
        display.as_json(_json(path, loaded.card, found, result))
        return
    _show(path, loaded.card, found, result)


def _features(given: str | None, own: str, charged: bool) -> "FeatureSet":
    """The set to score on. own: the name of the one that the head was trained on, which is the default. charged:
    whether the evaluation costs privacy.
    """
    if given is not None:
        return places.feature_set(given)[0]
    from dpfc_cli.features.lookup import set_of_training

    found = set_of_training(own)
    if found is not None:
        display.say(f"Features: {found.folder} (the set of the training, by its name; name another with --features)")
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


def _show_released(path: Path, features: "FeatureSet", result: "PrivateEvaluation", as_json: bool) -> None:
    """What was released, and what was spent for it. Nothing else of the records is shown."""
    spent = result.spent.epsilon(result.delta)
    if as_json:
        display.as_json(
            {
                **{"head": str(path), "features": str(features.folder)},
                **{"figures": result.figures, "sha256": result.sha256, "warnings": result.warnings},
                **{"spent": spent, "fits": result.spent.fitting(result.delta)},
            }
        )
        return
    rows = [("top-1", _released(result.top1, result.interval, result.noise, result.n))]
    if result.top5_interval is not None:
        rows.append(("top-5", _released(result.top5, result.top5_interval, result.top5_noise, result.n)))
    kind = f"{result.unit}s"
    bound = "" if result.spent.exact else " (an upper bound)"
    cost = f"epsilon = {display.epsilon(result.epsilon)} at delta = {result.delta:g} for one {result.unit}"
    total = f"epsilon = {display.epsilon(spent)}{bound} at the same delta, on this split, as far as its ledgers know"
    display.facts(
        f"{path} on the {result.split} split of {features.folder}, with noise",
        [*rows, (f"{kind} (noisy)", f"{result.n:,}"), ("this cost", cost), ("spent so far", total)],
    )
    if result.per_class is None:
        display.say(
            "Figures per class are not released: with this epsilon their noise is larger than what the choice of the "
            "records changes."
        )
        return
    classes, title = list(result.per_class), "Top-1 per class, with noise"
    if len(classes) > MOST_CLASSES:
        classes = sorted(classes, key=lambda each: each.top1 or 0)
        classes, title = classes[:10] + classes[-10:], f"{title}: the ten worst and the ten best"
    display.table(
        title,
        ("class", f"{kind} (noisy)", "top-1", "95 % interval"),
        [(r.name, f"{r.n:,}", *_shown(r.top1, r.interval, r.n)) for r in classes],
    )


def _released(figure: float | None, interval: tuple[float, float], noise: float | None, n: int) -> str:
    shown, ends = _shown(figure, interval, n)
    by_noise = ""
    if noise is not None:
        width = 196 * noise
        by_noise = f"; the noise alone: ± {f'{width:.2g}' if width < 10 else f'{width:.0f}'} %"
    return f"{shown} (95 % interval {ends}{by_noise})"


def _shown(figure: float | None, interval: tuple[float, float], n: int) -> tuple[str, str]:
    n = max(n, 1)
    shown = "–" if figure is None else display.percentage(figure, n, interval)
    return shown, display.interval(interval, n)


def _json(path: Path, card: Mapping[str, Any], features: "FeatureSet", result: "Evaluation") -> dict[str, Any]:
    cost = {name: card[name] for name in ("method", "claim", "epsilon", "delta", "adjacency", "unit")}
    return {"head": str(path), **cost, "features": str(features.folder), **figures_json(result)}


def figures_json(result: "Evaluation") -> dict[str, Any]:
    """The figures of an evaluation, for programs."""
    figures = asdict(result)
    figures["per_class"] = [{"class": each.pop("name"), **each} for each in figures["per_class"]]
    return figures


def _show(path: Path, card: Mapping[str, Any], features: "FeatureSet", result: "Evaluation") -> None:
    from dpfc_cli.trust.statement import brief

    display.facts(
        f"{path} on the {result.split} split of {features.folder}",
        [("method", card["method"]), *figures_rows(result), *brief(card)],
    )
    show_classes(result)


def figures_rows(result: "Evaluation", beside_chance: bool = False) -> list[tuple[str, str]]:
    """The figures of an evaluation, and how many records they are of. beside_chance: and what guesses would reach."""
    figures = [("top-1", result.top1, result.interval), ("top-5", result.top5, result.top5_interval)]
    chance = result.chance if beside_chance else None
    guessed = ("", "") if chance is None else tuple(f", by chance {100 * fraction:.2g} %" for fraction in chance)
    rows = [
        (name, f"{_with_interval(figure, interval, result.n)}{by_chance}")
        for (name, figure, interval), by_chance in zip(figures, guessed, strict=True)
        if interval
    ]
    if result.mean_average_precision is not None:
        rows.append(("mean average precision", display.percentage(result.mean_average_precision, result.n)))
    return [*rows, ("records", f"{result.n:,}")]


def show_classes(result: "Evaluation") -> None:
    """The accuracy per class."""
    # The best class can match only one of several labels, so there the ranking counts.
    several = result.mean_average_precision is not None
    said = "average precision" if several else "top-1"
    rows, title = list(result.per_class), f"{said.capitalize()} per class"
    if len(rows) > MOST_CLASSES:
        rows = sorted((r for r in rows if r.n), key=lambda r: (r.average_precision if several else r.top1) or 0)
        if len(rows) > MOST_CLASSES:
            rows, title = rows[:10] + rows[-10:], f"{title}: the ten worst and the ten best"
    columns = ("class", "records", said) if several else ("class", "records", said, "95 % interval")
    display.table(title, columns, [(r.name, f"{r.n:,}", *_class_figures(r, several)) for r in rows])


def _class_figures(found: "ClassFigures", several: bool) -> tuple[str, ...]:
    """What is shown of a class after its name and its records."""
    if several:
        precision = found.average_precision
        return ("–" if precision is None else display.percentage(precision, found.n),)
    if found.top1 is None or found.interval is None:
        return "–", "–"
    return display.percentage(found.top1, found.n, found.interval), display.interval(found.interval, found.n)


def _with_interval(figure: float | None, interval: tuple[float, float], n: int) -> str:
    assert figure is not None
    return f"{display.percentage(figure, n, interval)} (95 % interval {display.interval(interval, n)})"
