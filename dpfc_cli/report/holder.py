"""What only the holder of the records may read: the ledger, the caps, and exact figures on the test split."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfc_cli import rounding
from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.evaluation import evaluate
from dpfc_cli.features.lookup import set_folder
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import features_folder, heads_folder
from dpfc_cli.heads.head import Head, cards
from dpfc_cli.heads.scored import Evaluation
from dpfc_cli.privacy.accounting import default_delta
from dpfc_cli.report.document import Block, Facts, Grid, Section, Words
from dpfc_cli.report.released import by_class
from dpfc_cli.rounding import percentage, with_interval
from dpfc_cli.training import limit
from dpfc_cli.training.account import Account, account_of, other_accounts
from dpfc_cli.training.ledger import Entry, ledger_path
from dpfc_cli.training.verify import verify
from dpfc_cli.trust.verify import Finding, refused

NOTICE = (
    "Internal: for the holder of the records only. The parts that are marked say more about the records than the "
    "guarantee covers: who trained on them and why, which sets share some of them, and exact figures on test records. "
    "Do not publish this report. Without --internal, 'dpfc report' writes one for whoever gets the head."
)
SPLIT = "test"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What the holder's own files add to a report."""

    short: tuple[tuple[str, str], ...]
    ledger: tuple[Section, ...]
    evaluated: Section
    findings: tuple[Finding, ...]
    unproved: tuple[str, ...]
    digests: tuple[tuple[str, str], ...]


def of(
    head: Head,
    given: str | Path | None,
    figures: Mapping[str, Any] | None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Holder:
    """What the files of the holder say about a head.

    Args:
        head: it was read from a file.
        given: the feature set, see `contents.document`.
        figures: released figures. The set is not evaluated then.
        progress: as for `evaluate`.

    Raises:
        UserError: there is no ledger, it contradicts the head, or something cannot be read.

    """
    assert head.path is not None
    folder, ledger = _place(head, given)
    checked = verify(head.path, ledger=ledger)
    if checked.contradictions:
        raise refused(head.path, checked.contradictions)
    account = account_of(ledger, folder, cards(heads_folder()))
    others = other_accounts(ledger, folder)
    delta = head.card["delta"] or default_delta(head.card["facts"]["n"])
    found, persons = None, False
    if figures is None and (folder / MANIFEST).exists():
        features = FeatureSet(folder)
        if SPLIT in features.splits:
            found = evaluate(head, features, SPLIT, progress=progress)
            persons = features.manifest.grouped_by is not None
    total = rounding.cost(account.epsilon(delta), delta) if account.private else "nothing"
    short = [("spent by all trainings on these records", total), *_room(account, delta)]
    if found is not None:
        short.append(("accuracy on the test split", _accuracy(found)))
    return Holder(
        short=tuple(short),
        ledger=(
            Section(title="The ledger", blocks=tuple(_ledger(account, delta)), internal=True),
            *(
                Section(
                    title=f"The ledger of the {other.split} split", blocks=tuple(_spent(other, delta)), internal=True
                )
                for other in others
            ),
        ),
        evaluated=Section(title="How good it is", blocks=tuple(_evaluated(found, persons)), internal=True),
        findings=checked.findings,
        unproved=checked.unproved,
        digests=(("the ledger's file, as it was", sha256_of(ledger)),),
    )


def _place(head: Head, given: str | Path | None) -> tuple[Path, Path]:
    """The folder of a set, which may be gone, and its ledger."""
    name = head.card["features"]["name"] if given is None else given
    try:
        folder = set_folder(name, lambda folder: ledger_path(folder).exists())
    except UserError as error:
        raise UserError(
            f"An internal report needs the ledger of the training, and there is neither a feature set '{name}' nor its "
            f"ledger in '{features_folder()}'.",
            f"Name the set: {parameter('features')}. Without {parameter('internal')} the head's file is enough.",
            code="missing",
            parameter="features",
            path=str(name),
        ) from error
    ledger = ledger_path(folder)
    if not ledger.exists():
        raise UserError(
            f"The feature set '{folder}' has no ledger: nothing was charged to it.",
            f"Name the set that the head was trained on: {parameter('features')}.",
            code="missing",
            parameter="features",
            path=str(ledger),
        )
    return folder, ledger


def _room(account: Account, delta: float) -> list[tuple[str, str]]:
    """The caps that hold, and what is left."""
    rows = [("cap", limit.said(name, cap)) for name, cap in account.in_force]
    largest = account.left(delta)
    if largest is not None:
        rows.append(("left of it", rounding.left(largest, delta)))
    return rows or [("cap", "none")]


def _ledger(account: Account, delta: float) -> list[Block]:
    blocks = _spent(account, delta)
    if account.private > 1 and not account.in_force:
        blocks.append(
            Words(
                "The sum is a guarantee if the trainings were planned in advance. If later ones were chosen by looking "
                "at earlier heads, it says what they spent, and a cap that was fixed in advance is the guarantee."
            )
        )
    blocks.append(Facts(tuple(_room(account, delta))))
    if account.all_caps:
        changes = tuple(
            (
                *(_when(cap.at), name, cap.who, cap.note or "–", f"after {counted(cap.trainings, 'training')}"),
                *(("none", "–") if cap.delta is None else (f"{cap.epsilon:.6g}", rounding.delta(cap.delta))),
            )
            for name, cap in account.all_caps
        )
        columns = ("when (UTC)", "feature set", "by", "note", "when in the ledger", "epsilon", "delta")
        blocks.append(Grid(columns, changes, left=5, title="Every change of the cap"))
        blocks.append(
            Words(
                "A cap is a guarantee, however the trainings are chosen, if it was fixed before the first head was "
                "seen. If it was raised later, what counts is the highest one that might have been set."
            )
        )
    if account.shared.shares:
        rows = tuple(
            (each.name, f"{len(each.entries):,}", "it is said" if each.records is None else f"{each.records:,}")
            for each in account.shared.shares
        )
        names = ("feature set", "trainings", "records in both")
        blocks.append(Grid(names, rows, left=1, title="Sets that share records with this one"))
    if account.not_counted:
        blocks.append(
            Words(
                f"Not counted: {', '.join(account.not_counted)}. It is not known whether they share records with this "
                "set.",
                strong=True,
            )
        )
    if account.warning is not None:
        blocks.append(Words(account.warning, strong=True))
    return blocks


def _spent(account: Account, delta: float) -> list[Block]:
    rows = tuple(map(_row, account.rows))
    columns = ("when (UTC)", "feature set", "head", "method", "state", "by", "purpose", "delta", "epsilon")
    bound = "exact" if account.exact else "an upper bound"
    total = rounding.cost(account.epsilon(delta), delta) if account.private else "nothing"
    last = max((row.at for row in account.entries), default="")
    blocks: list[Block] = [
        Words(
            f"As far as the ledgers know that were found. The last row is of {_when(last)}. What was charged elsewhere "
            "or later is not in it."
        ),
        Grid(columns, rows, left=7, title=f"Every training on these records: {counted(len(rows), 'row')}"),
        Facts(((f"together, for one {account.unit}", f"{total} ({bound}, zero-out adjacency)"),)),
    ]
    if account.unprotected:
        said = f"{counted(account.unprotected, 'training')} without a guarantee: epsilon = ∞, in no sum."
        blocks.append(Words(said, strong=True))
    if any(account.room(cap, account.protects) < 0 for _, cap in account.in_force):
        blocks.append(
            Words("More is spent than the cap allows: something was charged where it was not known.", strong=True)
        )
    return blocks


def _row(named: tuple[str, Entry]) -> tuple[str, ...]:
    name, row = named
    cost = (
        ("–", "∞")
        if row.epsilon is None or row.delta is None
        else (rounding.delta(row.delta), rounding.epsilon(row.epsilon))
    )
    what = (_when(row.at), name, row.head.removesuffix(".safetensors"), row.method, row.state)
    return (*what, row.who or "–", row.purpose or "–", *cost)


def _when(at: str) -> str:
    return at[:16].replace("T", " ")


def _accuracy(found: Evaluation) -> str:
    return f"{with_interval(found.top1, found.interval, found.n)}, exact, of {found.n:,} records"


def _evaluated(found: Evaluation | None, persons: bool) -> list[Block]:
    if found is None:
        return [Words("No figures are given: the feature set is not here, or it has no test split.")]
    rows = [("top-1", _accuracy(found))]
    if found.top5 is not None:
        rows.append(("top-5", with_interval(found.top5, found.top5_interval, found.n)))
    if found.mean_average_precision is not None:
        rows.append(("mean average precision", percentage(found.mean_average_precision, found.n)))
    said = "These figures are exact. They protect no record of the test split. If it is private, keep them."
    if persons:
        said += " Intervals take records as independent: for several of one person they are too narrow."
    return [
        Words(said),
        *(Words(f"{warning[:1].upper()}{warning[1:]}", strong=True) for warning in found.warnings),
        Facts((*rows, ("scored on", f"the {found.split} split"))),
        by_class([(c.name, c.n, c.top1, c.interval) for c in found.per_class], "records"),
    ]
