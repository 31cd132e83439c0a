"""What is shown of a training: what it would be, what it made, and what its records have cost."""

import shlex
from typing import TYPE_CHECKING

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.errors import counted

if TYPE_CHECKING:
    from dpfc_cli.training.account import Account
    from dpfc_cli.training.check import Checked
    from dpfc_cli.training.run import Trained


def show_so_far(checked: "Checked") -> None:
    """What these records have cost before this training, and what that will make it."""
    from dpfc_cli.training.train import account_with

    claimed = checked.calibrated.claimed
    if claimed is None or checked.unfinished is not None or not (checked.account.entries or checked.account.in_force):
        return
    then = account_with(checked)
    made = f"this training makes it {'' if then.exact else 'at most '}{rounding.epsilon(then.epsilon(claimed.delta))}"
    if then.unit != checked.account.unit:
        made += f" for one {then.unit}: not all trainings protect the same persons"
    parts = [f"These records have {_summed(checked.account, claimed.delta)} spent", made]
    if then.in_force:
        parts.append(f"then {_left(then, claimed.delta)}")
    display.say("; ".join([*parts, *_not_in(checked.account)]) + ".")


def _left(account: "Account", delta: float) -> str:
    """What the strictest cap leaves."""
    from dpfc_cli.training.limit import said

    largest = account.left(delta)
    return f"the cap ({said(*account.in_force[0])}) leaves {rounding.left(largest, delta)} for one more training"


def _summed(account: "Account", delta: float) -> str:
    bound = "" if account.exact else " (an upper bound)"
    total = rounding.cost(account.epsilon(delta), delta)
    return f"{total}{bound} for one {account.unit}, under zero-out adjacency"


def _not_in(account: "Account") -> list[str]:
    """What the sum leaves out."""
    said = []
    if account.unprotected:
        said.append(f"not in it: {counted(account.unprotected, 'training')} without a guarantee (epsilon = ∞)")
    if account.not_counted:
        said.append(f"not in it: {', '.join(account.not_counted)}, which may hold some of the same records")
    return said


def show_plan(checked: "Checked", as_json: bool) -> None:
    """What would be released, claimed and spent."""
    from dpfc_cli.training.train import account_with
    from dpfc_cli.training.whole import whole
    from dpfc_cli.trust import statement

    calibrated = checked.calibrated
    claimed, releases = whole(calibrated)
    options = calibrated.method.in_force(calibrated.options, calibrated.mechanism is not None)
    after = account_with(checked)
    if as_json:
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
                "left_after": after.left(claimed.delta) if claimed else None,
            }
        )
        return
    rows = [("features", str(checked.features.folder)), ("head", str(checked.path))]
    rows += statement.planned_rows(calibrated.method.name, options, releases, calibrated.claim, calibrated.facts.unit)
    if claimed is not None:
        both = "" if calibrated.before is None else ", of both trainings together"
        rows.append(("guarantee", statement.claimed(claimed.epsilon, claimed.delta) + both))
        before = _summed(checked.account, claimed.delta) if checked.account.private else "nothing"
        rows.append(("spent before", before))
        rows.append(("spent with this", _summed(after, claimed.delta)))
        if after.in_force:
            rows.append(("then", _left(after, claimed.delta)))
    display.facts("Nothing was charged. This training would be", rows)


def show_head(trained: "Trained", as_json: bool, named: bool, features: str | None) -> None:
    """The statement of a head, and what its records have cost."""
    from dpfc_cli.trust import statement

    card, claimed = trained.head.card, trained.charged.checked.calibrated.claimed
    spent = trained.spent
    if card.get("converged") is False:
        display.warn("the optimum was not reached. The head is where the iteration ended.")
    if as_json:
        total = None if claimed is None else spent.to_json((claimed.delta,))
        head = {"head": str(trained.path), "sha256": trained.sha256, "card": card}
        display.as_json({**head, "means": statement.meaning(card), "spent": total})
        return
    rows = statement.rows(card, trained.sha256)
    if claimed is not None:
        by = f"{_summed(spent, claimed.delta)} by {counted(spent.private, 'private training')}"
        by += "" if len(spent.cases) == 1 else ", not all of which were on the same records"
        capped = [_left(spent, claimed.delta)] if spent.in_force else []
        rows.append(("spent so far", "; ".join([by, *capped, *_not_in(spent), f"ledger {spent.ledger}"])))
    display.facts(f"Head {trained.path}", rows)
    if "test" not in trained.charged.checked.features.splits:
        return
    line = [] if claimed is not None and not named else [str(trained.path)]
    line += [] if features is None else ["--features", features]
    display.say(f"Next: {shlex.join(['dpfc', 'evaluate', *line])}")
