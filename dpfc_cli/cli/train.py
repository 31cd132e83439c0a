"""`dpfc train`: a feature set and a budget in, a head and a statement out."""

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli import outputs, rounding
from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import feature_set, head_named, tell_ledger, with_sets
from dpfc_cli.errors import UserError, conflict, counted, parameter
from dpfc_cli.folders import features_folder, heads_folder
from dpfc_cli.options import Option, with_hooks
from dpfc_cli.show.document import Document, Rows, Section
from dpfc_cli.structs import Values, encoded
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import RUN, VARIED, Request, added_hooks

if TYPE_CHECKING:
    from dpfc_cli.training.check import Checked
    from dpfc_cli.training.run import Trained


@command(
    "train",
    Request,
    *added_hooks(),
    panel="Train a classifier",
    when_stopped="This run charged nothing and wrote no head.",
    computes=True,
    several=VARIED,
)
def train(
    features: Annotated[
        str | None, Option("Feature set, by path or name. Default: the newest one.", metavar="SET")
    ] = None,
    dry_run: Annotated[
        bool, Option("Do everything but the training: show guarantee and cost, charge nothing.", RUN)
    ] = False,
    yes: Annotated[
        bool,
        Option(
            "Charge without a question: the newest of several sets, and what ends a total for persons.",
            RUN,
            flags=("--yes", "-y"),
        ),
    ] = False,
    score: Annotated[
        bool, Option("Score on the test split, too, as 'dpfc evaluate' does: exact figures, not protected.", RUN)
    ] = False,
    plot: Annotated[
        Path | None,
        Option("The same, and draw accuracy against ε: FILE ends in .svg, .png or .pdf.", RUN, metavar="FILE"),
    ] = None,
    full: Full = False,
    as_json: Annotated[bool, Option("Print one JSON object.", RUN, flags=("--json",))] = False,
    **asked: Any,
) -> None:
    """Train a classifier on a feature set with differential privacy, and charge it to the set's ledger.

    State the privacy once, as --epsilon, --noise-multiplier or --non-private. A charge cannot be taken back.

    Several values of --epsilon, --method and --seed are several trainings, each with each. They are charged together
    or not at all. After a stop the same command goes on with those that have no head.
    """
    from dpfc_cli.cli import trainings
    from dpfc_cli.features.lookup import finished
    from dpfc_cli.ledger.standing import loses
    from dpfc_cli.training.many import plan_many, row_of, run_many
    from dpfc_cli.training.run import run
    from dpfc_cli.training.summing import summing_on
    from dpfc_cli.training.train import plan, refused_again

    values = {name: asked.pop(name) for name in VARIED}
    several = any(len(each) > 1 for each in values.values())
    asked |= {} if several else {name: each[0] for name, each in values.items() if each}
    found = feature_set(features)
    if plot is not None and not several:
        what = f"{parameter('plot')} draws the accuracies of several trainings."
        raise conflict(what, "Of one head 'dpfc evaluate --plot' draws more.")
    if score or plot is not None:
        found.split("test")
    draw = None if plot is None else outputs.writer("picture", plot, "plot")
    sets = len(finished(features_folder())) if features is None else 1
    with summing_on(asked["on"], display.say) as summing:
        tell_ledger(found.folder)
        observer = Shown(sets, yes)
        for kind in added_hooks():
            asked = with_sets(asked, kind)
        asked = with_hooks(asked, added_hooks()) | {"summing": summing}
        if several:
            many = plan_many(found, values, asked, observer)
            if not dry_run:
                observer.several = True
                account = many.book.account_of(found.manifest.id)
                observer.loses = any(loses(account, each) for each in many.charges)
                stop.stands = "'dpfc budget' says what is charged."
                rows = run_many(many, observer)
                stop.stands = "All trainings are charged and have their heads."
        else:
            checked = plan(Request(found, **asked, observer=observer), observer)
        if not (several or dry_run):
            observer.loses = checked.unfinished is None and loses(checked.account, checked.charge) is not None
            stop.stands = "'dpfc budget' says whether the training is charged."
            start = time.monotonic()
            trained = run(checked, observer)
            rows = [row_of(checked.calibrated, trained.path, trained.sha256, time.monotonic() - start)]
            stop.stands = trained.charged.stands
    if dry_run:
        if (refused := many.refused if several else refused_again(checked)) is not None:
            observer.warn(f"{refused.what} That needs --again.")
        if several:
            display.show(trainings.document(many, many.rows, dry_run=True), full)
        else:
            _show_plan(checked, as_json, full)
        return
    if as_json and (score or plot is not None):
        observer.warn("the accuracy on the test split is exact, and not protected.")
    scores, picture = trainings.scored(rows, found) if score or plot is not None else ((), None)
    if several:
        display.show(trainings.document(many, rows, scores, dry_run=False), full)
    else:
        _show_head(trained, trainings.values(rows, scores)[0], as_json, full, features)
    if plot is not None and draw is not None:
        # Exact figures say something about the records.
        outputs.replace(plot, draw(picture), 0o600, "plot")
        display.say(f"Figure: {plot}")


class Shown(Observer):
    """Shows on stderr what a training says. It asks before the charge where the same was charged before, where the set
    was chosen for the user out of several, where the charge ends a total for persons (loses), and before several
    trainings.
    """

    loses = False
    several = False

    def __init__(self, sets: int = 1, yes: bool = False) -> None:
        self._sets, self._yes = sets, yes

    def warn(self, text: str) -> None:
        display.warn(text)

    def say(self, text: str) -> None:
        display.say(text)

    def confirm(self, charge: str, refused: UserError | None) -> bool:
        """Ask where there is a reason. UserError if nobody can be asked."""
        stop.check()
        why = []
        if self.loses and not self._yes:
            why.append(("There will be no total for one person any more.", "Make the set again with --group-by."))
        if self._sets > 1 and not self._yes:
            why.append((f"It is the newest of {self._sets} sets.", "Name the set: --features."))
        asks = self.several and not self._yes and display.can_ask()
        if refused is None and not (why or asks):
            return True
        if refused is not None and (self._yes or not display.can_ask()):
            return False
        if not display.can_ask():
            raise conflict(
                f"Nothing was charged. {why[0][0]}", f"{why[0][1]} Or give --yes, to charge it all the same."
            )
        said = [] if refused is None else [refused.what]
        return display.confirmed(" ".join([*said, f"Charge {charge}?", *(each for each, _ in why)]))


def _show_plan(checked: "Checked", as_json: bool, full: bool) -> None:
    from dpfc_cli.ledger import caps
    from dpfc_cli.records import statement
    from dpfc_cli.report import account as shown

    calibrated = checked.calibrated
    claimed, stated = calibrated.claimed, calibrated.stated
    options = calibrated.method.in_force(calibrated.options, calibrated.mechanism is not None)
    after = checked.after
    if as_json:
        left = caps.left(after, claimed.delta, checked.charge) if claimed else None
        display.as_json(
            {
                "dry_run": True,
                "features": str(checked.features.folder),
                "head": str(checked.path),
                "method": calibrated.method.name,
                "options": options,
                "claim": calibrated.claim,
                "epsilon": claimed.epsilon if claimed else None,
                "delta": claimed.delta if claimed else None,
                "releases": encoded(stated.plan),
                "spent": checked.account.epsilon(claimed.delta) if claimed else None,
                "spent_with_this": after.epsilon(claimed.delta) if claimed else None,
                "left_after": None if left is None else left[0],
            }
        )
        return
    rows = [("features", str(checked.features.folder)), ("head", str(checked.path))]
    rows += statement.method_rows(calibrated.method.name, options)
    if claimed is None:
        rows += statement.unprotected(calibrated.claim)
    else:
        rows.append(("guarantee", rounding.cost(claimed.epsilon, claimed.delta)))
        rows.append(("spent before", checked.account.summed(claimed.delta)))
        rows.append(("spent with this", after.summed(claimed.delta)))
        said = shown.left(after, claimed.delta, checked.charge)
        rows += [] if said is None else [("then", said)]
    plan = statement.released(stated)
    sections = [Section("", [Rows(rows)]), *(replace(each, title="What would be released") for each in plan)]
    display.show(Document(title="Nothing was charged. This training would be", sections=sections), full)


def _show_head(trained: "Trained", flat: Values, as_json: bool, full: bool, features: str | None) -> None:
    from dpfc_cli.ledger.file import read
    from dpfc_cli.records import statement
    from dpfc_cli.report import account as shown

    card, claimed = trained.head.card, trained.checked.calibrated.claimed
    spent = trained.spent
    rows = []
    if claimed is not None:
        said = [f"{counted(len(spent.private), 'private charge')}: {spent.summed(claimed.delta)}"]
        left = shown.left(spent, claimed.delta, trained.charged.charge)
        said += [] if left is None else [left]
        rows.append(("spent so far", "; ".join(said)))
    if flat["accuracy"] is not None:
        rows.append(("accuracy", f"{100 * flat['accuracy']:.1f} % on the test split: exact, not protected"))
    document = statement.document(card, trained.sha256, named=str(trained.path), more=rows)
    if as_json:
        total = None if claimed is None else shown.values(spent, read(spent.ledger), (claimed.delta,))
        epsilon = None if claimed is None else spent.epsilon(claimed.delta)
        more = {"schema": "dpfc/train/1", "spent": total, "spent_epsilon": epsilon}
        display.as_json({**document.values, **flat, **more})
        return
    # The same command again would be another training.
    display.show(document if full else document.short)
    if not full:
        display.say(f"The whole statement: dpfc statement {head_named(trained.path)}")
    if "test" not in trained.checked.features.splits:
        return
    line = [] if claimed is not None and trained.path.parent == heads_folder() else [str(trained.path)]
    line += [] if features is None else ["--features", features]
    display.say(f"Next: {shlex.join(['dpfc', 'evaluate', *line])}")
