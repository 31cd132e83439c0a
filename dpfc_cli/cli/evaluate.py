"""`dpfc evaluate`: how good heads are, beside what they cost."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import blocks, display, drawn, evaluated, places, stop
from dpfc_cli.cli.app import command
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.folders import features_folder, heads_folder

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import Comparison, Evaluation
    from dpfc_cli.evaluation.private import PrivateEvaluation
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.figures.canvas import Drawing
    from dpfc_cli.heads.head import Head

OUTPUT, PRIVATE = "Output", "Private records"


@command("evaluate")
def evaluate(
    heads: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="HEAD...",
            help="The heads' files, their names in ./heads, or hf:OWNER/NAME. Several are compared, each with the "
            "first. Default: the newest private one in ./heads.",
        ),
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
            "charged to the ledger. Default: exact figures, which protect nothing.",
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ, with --epsilon. Default: min(1e-5, 1/n).", rich_help_panel=PRIVATE)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="With --epsilon: whose evaluation it is, for the ledger. Default: your account.",
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    purpose: Annotated[
        str | None,
        typer.Option(help="With --epsilon: what it is for, for the ledger.", rich_help_panel=PRIVATE),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw a figure, too: FILE ends in .svg, .png or .pdf. One head: its confusions, and whether its "
            "probabilities are right. Several: accuracy against ε.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with all figures in full.", rich_help_panel=OUTPUT)
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: a row for each head.", rich_help_panel=OUTPUT)
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print what is shown as Markdown.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Score heads on a labelled split, and say what their training cost.

    Of one head it shows the top-1 and the top-5 accuracy, each with a 95 % interval, the accuracy per class, what is
    taken for what, and whether the probabilities are right. Where records have several labels, it shows the mean
    average precision. Several heads are shown side by side, with their differences to the first one.

    With --epsilon it protects the records of the split: it shows what a noisy count says, and what was spent.
    """
    from dpfc_cli.evaluation import evaluate as evaluation
    from dpfc_cli.heads.head import Head, newest
    from dpfc_cli.ledger.file import ledger_path

    as_values = {"as_json": as_json, "as_csv": as_csv, "as_markdown": as_markdown}
    _check_one(*(name for name, wanted in as_values.items() if wanted))
    given = heads or [newest(heads_folder())]
    if not heads:
        display.say(f"Head: {given[0]} (the newest private one; name another: dpfc evaluate HEAD)")
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
    with display.stages("Evaluating", "records") as progress:
        if len(loaded) > 1:
            shown = _several(loaded, found, evaluation.compare(loaded, found, split, progress=progress))
        else:
            result = evaluation.evaluate(
                loaded[0], found, split, epsilon=epsilon, delta=delta, by=by, purpose=purpose, progress=progress
            )
            if epsilon is not None:
                stop.stands = f"The evaluation was charged to '{ledger_path(found.folder)}' and stays charged."
            shown = _one(loaded[0], found, result)
    for warning in shown.warnings:
        display.warn(warning)
    if as_json:
        display.as_json(shown.values)
    elif as_csv:
        evaluated.as_csv(shown.rows)
    elif as_markdown:
        blocks.markdown(shown.blocks, shown.warnings)
    else:
        blocks.show(shown.blocks)
    if shown.remark:
        display.say(shown.remark)
    if plot is not None and shown.draw is not None:
        shown.draw().save(plot)
        display.say(f"Figure: {plot}")


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """An evaluation in every form that can be asked for."""

    blocks: list[blocks.Block]
    values: dict[str, Any]
    rows: list[dict[str, Any]]
    warnings: Sequence[str]
    draw: Callable[[], "Drawing"] | None = None
    remark: str = ""


def _one(head: "Head", features: "FeatureSet", result: "Evaluation | PrivateEvaluation") -> _Shown:
    from dpfc_cli.evaluation.exact import Evaluation

    path, card = _path(head), head.card
    rows = [evaluated.row_of(path, card, features, result)]
    where = {"head": str(path), "features": str(features.folder)}
    if not isinstance(result, Evaluation):
        from dpfc_cli.ledger import caps

        left = caps.left(result.spent, result.delta)
        spent = {"spent": result.spent.epsilon(result.delta), "left": None if left is None else left[0]}
        told = {"figures": result.figures, "sha256": result.sha256, "warnings": result.warnings}
        remark = (
            "Figures per class are not released: with this epsilon their noise is larger than what the choice of the "
            "records changes."
        )
        return _Shown(
            blocks=evaluated.released(path, features, result),
            values={**where, **told, **spent},
            rows=rows,
            warnings=result.warnings,
            remark=remark if result.per_class is None else "",
        )
    return _Shown(
        blocks=evaluated.one(path, card, features, result),
        values={**where, **evaluated.cost_of(card), **evaluated.figures_json(result)},
        rows=rows,
        warnings=result.warnings,
        draw=lambda: drawn.one(path, features, result),
    )


def _several(heads: "Sequence[Head]", features: "FeatureSet", found: "Comparison") -> _Shown:
    paths, cards, results = [_path(head) for head in heads], [head.card for head in heads], found.evaluations
    names = evaluated.heads_named(paths)
    each = list(zip(paths, cards, results, (None, *found.differences), strict=True))
    values = [
        {"head": str(path), **evaluated.cost_of(card), **evaluated.figures_json(result)}
        | {"difference": None if difference is None else asdict(difference)}
        for path, card, result, difference in each
    ]
    warnings = []
    for warning in found.warnings:
        about = [name for name, result in zip(names, results, strict=True) if warning in result.warnings]
        warnings.append(warning if len(about) == len(names) else f"{', '.join(about)}: {warning}")
    return _Shown(
        blocks=evaluated.several(paths, cards, features, found),
        values={"features": str(features.folder), "heads": values, "warnings": warnings},
        rows=[evaluated.row_of(path, card, features, result, difference) for path, card, result, difference in each],
        warnings=warnings,
        draw=lambda: drawn.several(cards, names, features, results),
        remark="The best of several heads on the same records looks better than it is. Choose it on other records.",
    )


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


def _check_one(*chosen: str) -> None:
    if len(chosen) > 1:
        raise UserError(
            f"{' and '.join(map(parameter, chosen))} are two ways to print the same.",
            "Give one of them.",
            code="conflict",
            parameter=chosen[0],
        )
