"""`dpfc evaluate`: how good heads are, beside what they cost."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import feature_set, head_or_newest, one_of, tell_ledger
from dpfc_cli.errors import UserError, conflict, missing, parameter
from dpfc_cli.evaluation.request import PRIVATE, PrivateScoring
from dpfc_cli.folders import features_folder
from dpfc_cli.options import Option, Value
from dpfc_cli.progress import show

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import Evaluation
    from dpfc_cli.evaluation.private import PrivateEvaluation
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.records.card import Card
    from dpfc_cli.records.figures import Figures

OUTPUT = "Output"


@command("evaluate", PrivateScoring, panel="Train a classifier", computes=True)
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
    released: Annotated[
        bool, Option("Show what evaluations with ‹epsilon› have released before. It costs nothing.", PRIVATE)
    ] = False,
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
    **asked: Value,
) -> None:
    """Score heads on a labelled split, and say what their training cost.

    Of one head it shows the top-1 and the top-5 accuracy, the balanced accuracy and the area under the ROC curve
    (AUROC), each with a 95 % interval; per class the accuracy and what it is taken for; and whether the probabilities
    are right. Where records have several labels, it shows the mean average precision. Several heads are shown side by
    side, with their differences to the first one.

    With --epsilon it protects the records of the split: it shows what noisy counts say, and what was spent. The ledger
    keeps these figures, and --released shows them again.
    """
    from dpfc_cli import outputs
    from dpfc_cli.evaluation import evaluate as evaluation
    from dpfc_cli.heads.head import Head, shown
    from dpfc_cli.report import account, evaluated, picture
    from dpfc_cli.show.markdown import markdown

    one_of(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    for name, other in {"epsilon": epsilon, "plot": plot, "as_csv": as_csv, "heads": len(heads or []) > 1}.items():
        one_of(released=released, **{name: other})
    _check_options(heads or [], epsilon, asked)
    given, split = None if features is None else feature_set(features), asked["split"]
    loaded = [Head.load(path) for path in heads or [head_or_newest(None, given)]]
    found = given or _features(loaded[0].card.features.name, epsilon is not None)
    paths, cards = [Path(shown(head.file)) for head in loaded], [head.card for head in loaded]
    draw = None if plot is None else outputs.writer("picture", plot, "plot")
    if draw is not None:
        _check_plot(found, split, cards, epsilon is not None)
    results: Sequence[Evaluation] = ()
    if released:
        document = evaluated.kept(paths[0], found, account.released(loaded[0], found))
    elif epsilon is not None:
        noisy = _released(PrivateScoring(loaded[0], found, **asked, epsilon=epsilon))
        document = evaluated.private(paths[0], cards[0], found, noisy)
    elif len(loaded) > 1:
        compared = evaluation.compare(loaded, found, split, threshold=asked["threshold"])
        results, document = compared.evaluations, evaluated.several(paths, cards, found, compared)
    else:
        before: Sequence[Figures] = ()
        with suppress(UserError):
            before = account.released(loaded[0], found)
        more = {name: asked[name] for name in ("threshold", "subgroups")}
        exact = evaluation.evaluate(loaded[0], found, split, **more)
        results, document = [exact], evaluated.one(paths[0], cards[0], found, exact, before)
    if as_csv:
        for warning in document.values["warnings"]:
            display.warn(warning)
        display.as_csv(evaluated.COLUMNS, evaluated.rows(document.values))
    elif as_markdown:
        sys.stdout.write(markdown(document))
    else:
        display.show(document, full)
    if plot is not None and draw is not None:
        # Exact figures say something about the records.
        outputs.replace(plot, draw(picture.of_heads(paths, cards, found, results)), 0o600, "plot")
        display.say(f"Figure: {plot}")


def _released(wanted: PrivateScoring) -> "PrivateEvaluation":
    """The figures with noise, after somebody at a terminal was asked."""
    # They load JAX, and nothing else here needs that.
    from dpfc_cli.evaluation import evaluate as evaluation
    from dpfc_cli.evaluation import private
    from dpfc_cli.ledger.file import ledger_path
    from dpfc_cli.training.summing import summing_on

    features = wanted.features
    tell_ledger(features.folder)

    def confirmed(charge: str, refused: UserError | None) -> bool:
        if wanted.again or not display.can_ask():
            return refused is None
        said = "" if refused is None else f"{refused.what} "
        return display.confirmed(f"{said}{ready.sure} Charge {charge}?")

    with summing_on(wanted.on, display.say) as summing:
        ready = evaluation.prepared(wanted, display.warn, summing)
        found = private.release(ready, show, confirmed)
    stop.stands = f"The evaluation was charged to '{ledger_path(features.folder)}' and stays charged."
    return found


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


def _check_options(heads: Sequence[Path], epsilon: float | None, asked: Mapping[str, Value]) -> None:
    """UserError for options that do not go together."""
    usual = {"delta": None, "by": None, "purpose": None, "figures": "accuracy", "on": None}
    idle = next((name for name, value in usual.items() if asked[name] != value), None)
    if epsilon is None and idle is not None:
        raise conflict(
            f"{parameter(idle)} has no meaning without {parameter('epsilon')}: exact figures spend nothing.",
            f"Give {parameter('epsilon')}, or leave it out.",
        )
    if asked["subgroups"] is not None and len(heads) > 1:
        what = f"{parameter('subgroups')} is for one head at a time."
        raise conflict(what, "Evaluate the heads one by one, or name one.")
    if epsilon is not None and len(heads) > 1:
        what = f"{parameter('epsilon')} is spent on one head at a time: each evaluation costs it anew."
        raise conflict(what, "Evaluate the heads one by one, or name one.")


def _check_plot(features: "FeatureSet", split: str, cards: Sequence["Card"], noisy: bool) -> None:
    """Refuse a figure that must not be drawn, before any record is read. noisy: figures are released with noise."""
    why = None
    if noisy:
        why = f"with {parameter('epsilon')} neither confusions nor probabilities are released"
    elif any(card.features.split == split for card in cards):
        why = f"a head was trained on a split of this name, '{split}', and a figure would show more than its accuracy"
    elif len(cards) == 1 and features.manifest.labels_per_record > 1:
        why = "confusions and the reliability of one head are known for records with one label"
    if why is not None:
        raise conflict(f"There is nothing to draw: {why}.", f"Leave out {parameter('plot')}.")
