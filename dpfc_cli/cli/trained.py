"""What is shown of a training: what it would be, what it made, and what its records have cost."""

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from dpfc_cli import rounding
from dpfc_cli.cli import display, places
from dpfc_cli.errors import counted
from dpfc_cli.show.document import Document, Facts, Section

if TYPE_CHECKING:
    from dpfc_cli.training.check import Checked
    from dpfc_cli.training.run import Trained


def show_so_far(checked: "Checked") -> None:
    """What these people have spent before this training, and what that will make it."""
    from dpfc_cli.report import account as shown
    from dpfc_cli.training.train import account_with

    claimed, before = checked.calibrated.claimed, checked.account
    if claimed is None or checked.unfinished is not None or not (before.charges or before.caps):
        return
    then = account_with(checked)
    made = f"this training makes it {'' if then.exact else 'at most '}{rounding.epsilon(then.epsilon(claimed.delta))}"
    if then.unit != before.unit:
        made += f" for one {then.unit}"
    left = shown.left(then, claimed.delta, checked.charge)
    parts = [f"So far {before.summed(claimed.delta)} is spent on {shown.whose(before)}", made]
    display.say("; ".join([*parts, *([] if left is None else [f"then {left}"]), *shown.not_in(before)]) + ".")


def show_plan(checked: "Checked", as_json: bool, full: bool) -> None:
    """What would be released, claimed and spent."""
    from dpfc_cli.ledger import caps
    from dpfc_cli.report import account as shown
    from dpfc_cli.training.train import account_with
    from dpfc_cli.trust import statement

    calibrated = checked.calibrated
    claimed, releases = calibrated.head_claim
    options = calibrated.method.in_force(calibrated.options, calibrated.mechanism is not None)
    after = account_with(checked)
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
                "releases": releases,
                "spent": checked.account.epsilon(claimed.delta) if claimed else None,
                "spent_with_this": after.epsilon(claimed.delta) if claimed else None,
                "left_after": None if left is None else left[0],
            }
        )
        return
    rows = [("features", str(checked.features.folder)), ("head", str(checked.path))]
    rows += statement.method_rows(calibrated.method.name, options)
    if claimed is None:
        rows += statement.brief({"claim": calibrated.claim})
    else:
        both = "" if calibrated.before is None else ", of both trainings together"
        rows.append(("guarantee", rounding.cost(claimed.epsilon, claimed.delta) + both))
        rows.append(("spent before", checked.account.summed(claimed.delta)))
        rows.append(("spent with this", after.summed(claimed.delta)))
        said = shown.left(after, claimed.delta, checked.charge)
        rows += [] if said is None else [("then", said)]
    plan = statement.released(releases, {"claim": calibrated.claim, "unit": calibrated.facts.unit})
    title = "Nothing was charged. This training would be"
    document = Document(
        title=title, sections=[Section("", [Facts(rows)]), *(replace(each, full=False) for each in plan)]
    )
    display.show(document if full else document.short)


def show_head(trained: "Trained", as_json: bool, full: bool, named: bool, features: str | None) -> None:
    """The statement of a head, and what its records have cost."""
    from dpfc_cli.ledger.file import read
    from dpfc_cli.report import account as shown
    from dpfc_cli.trust import statement

    card, claimed = trained.head.card, trained.charged.checked.calibrated.claimed
    spent = trained.spent
    if card.get("converged") is False:
        display.warn("the optimum was not reached. The head is where the iteration ended.")
    rows = []
    if claimed is not None:
        said = [f"{spent.summed(claimed.delta)} by {counted(len(spent.private), 'private training')}"]
        left = shown.left(spent, claimed.delta, trained.charged.receipt.charge)
        said += [] if left is None else [left]
        rows.append(("spent so far", "; ".join([*said, *shown.not_in(spent)])))
    document = statement.document(card, trained.sha256, named=str(trained.path), more=rows)
    if as_json:
        total = None if claimed is None else shown.values(spent, read(spent.ledger), (claimed.delta,))
        display.as_json({**document.values, "spent": total})
        return
    display.show(document if full else document.short)
    if not full:
        display.say(f"The whole statement: dpfc statement {places.head(trained.path)}")
    if "test" not in trained.charged.checked.features.splits:
        return
    line = [] if claimed is not None and not named else [str(trained.path)]
    line += [] if features is None else ["--features", features]
    display.say(f"Next: {shlex.join(['dpfc', 'evaluate', *line])}")
