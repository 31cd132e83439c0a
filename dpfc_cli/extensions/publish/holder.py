"""What the files of a holder add to a report: released figures, which anybody may read; and what only the holder of the
records may: the ledger, the caps, and exact figures on the test split.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpfc_cli.errors import UserError, conflict, damaged, missing, parameter, quoted
from dpfc_cli.evaluation.evaluate import evaluate
from dpfc_cli.evaluation.exact import Evaluation
from dpfc_cli.extensions.publish.request import Reporting
from dpfc_cli.features.lookup import open_features, set_at
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import json_in, sha256_of
from dpfc_cli.folders import heads_folder
from dpfc_cli.heads.head import Head, cards
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.standing import without_charge
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import default_delta
from dpfc_cli.reading import readable
from dpfc_cli.records.card import Card
from dpfc_cli.records.figures import Figures, Output, digest_of
from dpfc_cli.records.findings import Finding, refused
from dpfc_cli.report import account as accounts
from dpfc_cli.report import evaluated
from dpfc_cli.rounding import with_interval
from dpfc_cli.show.document import Block, Section, Words
from dpfc_cli.structs import Fault, decoded
from dpfc_cli.verification import verify

SPLIT = "test"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What the holder's own files add to a report."""

    verdict: str
    short: tuple[tuple[str, str], ...]
    ledger: tuple[Section, ...]
    evaluated: Section | None
    findings: tuple[Finding, ...]
    unproved: tuple[str, ...]
    digests: tuple[tuple[str, str], ...]


def of(head: Head, wanted: Reporting, figures: Figures | None) -> Holder:
    """What the files of the holder say about a head. figures: released ones; the set is not evaluated then. UserError:
    there is no ledger, or it contradicts the head or the figures.
    """
    given, ledger = wanted.features, wanted.ledger
    features = set_at(head.card.features.name) if given is None else open_features(given)
    if ledger is None and given is not None and features is not None:
        ledger = ledger_path(features.folder)
    checked = verify(head.file, ledger=ledger, not_before=wanted.not_before)
    if checked.contradictions:
        raise refused(head.file, checked.contradictions)
    account = checked.account
    if account is None:
        raise missing(
            "Such a report needs the ledger of the training, and it is not here.",
            f"Name it: {parameter('ledger')}. For {parameter('kind')} shared the head's file is enough.",
        )
    book = read(account.ledger)
    if figures is not None:
        check_charged(figures, book)
    assert head.card.ledger is not None
    charge = book.known.get(head.card.ledger.charge)
    assert isinstance(charge, Charge)
    delta = head.card.delta or default_delta(head.card.facts.n)
    found = None
    if wanted.kind == "internal" and figures is None and features is not None and SPLIT in features.splits:
        found = evaluate(head, features, SPLIT, progress=wanted.progress)
    short = [
        ("spent by all trainings of these people", f"{account.summed(delta)}, as of {checked.as_of}"),
        ("cap", accounts.left(account, delta) or "none"),
        ("trained by", charge.by),
        ("purpose", charge.purpose or "not said when it was trained (--purpose)"),
    ]
    if found is not None:
        said = f"{with_interval(found.top1, found.interval, found.n)}, exact, of {found.n:,} records"
        short.append(("accuracy on the test split", said))
    without = without_charge(cards(heads_folder()), book)
    lost = [] if without is None else [Words(without, strong=True)]
    return Holder(
        verdict=checked.verdict,
        short=tuple(short),
        ledger=(Section("The ledger", [*accounts.blocks(account, book, (delta,)), *lost], internal=True),),
        evaluated=Section("How good it is", _evaluated(found, features), internal=True) if found else None,
        # The first one is of a signature, and nobody was asked for one here.
        findings=checked.findings[1:],
        unproved=checked.unproved,
        digests=(("SHA-256 of the ledger", sha256_of(account.ledger)),),
    )


def _evaluated(found: Evaluation, features: FeatureSet | None) -> list[Block]:
    assert features is not None
    words = Words("These figures are exact. They protect no record of the test split. If it is private, keep them.")
    plain = replace(found, confusions=None, calibration=None)
    return [words, *evaluated.warned(found.warnings), *evaluated.exact(plain, features)]


def kept(card: Card, digest: str) -> list[Figures]:
    """What evaluations have released of the head with this SHA-256, as the ledger here has kept it; nothing if there is
    none.
    """
    features = set_at(card.features.name)
    with suppress(UserError):
        return [] if features is None else read(ledger_path(features.folder)).released_of(digest)
    return []


def released_in(path: Path, digest: str) -> Figures:
    """The released figures in a file. Whoever changes them can compute their digest again: `check_charged` compares it
    with a ledger.

    UserError: the file is missing or no such output, or its figures were changed, are exact, or not of the head with
    this SHA-256.
    """
    kind = f"the output of 'dpfc evaluate --json' ({parameter('evaluation')})"
    with readable(path, kind, "Write it again.", plain=False):
        found = json_in(path)
    if isinstance(found, dict) and "figures" not in found and "top1" in found:
        raise UserError(
            f"The figures in {quoted(path)} are exact: they protect no record of the split.",
            "Release figures with noise: 'dpfc evaluate --epsilon'. With a large epsilon, for public records, the "
            f"noise is a fraction of a record. Or leave out {parameter('evaluation')}, and write the internal "
            f"{parameter('kind')}: it has exact figures.",
            code="private-records",
        )
    try:
        output = decoded(found, Output)
        if digest_of(found["figures"]) != output.sha256:
            raise Fault("sha256")
    except Fault as fault:
        raise damaged(
            f"{quoted(path)} is not what 'dpfc evaluate --epsilon E --json' wrote: '{fault.place[:80]}' is missing, or "
            "was changed, or makes no sense.",
            "Give what the command wrote.",
            parameter="evaluation",
        ) from None
    figures = output.figures
    if figures.head_sha256 != digest:
        raise conflict(
            f"The figures in {quoted(path)} are of another head: its SHA-256 begins with {figures.head_sha256[:12]}, "
            f"and that of this one with {digest[:12]}.",
            "Give the figures of this head.",
            parameter="evaluation",
        )
    return figures


def check_charged(figures: Figures, book: Ledger) -> None:
    """Compare figures that were loaded with what the ledger says of their charge. UserError: it has other ones."""
    outcome = book.outcome(figures.charge)
    if outcome is None or outcome.sha256 != figures.sha256:
        raise damaged(
            f"The ledger of the training has no such figures as those of {parameter('evaluation')}: they were changed, "
            "or charged to another ledger.",
            f"Give them as 'dpfc evaluate' wrote them. For {parameter('kind')} shared they are not compared, and the "
            "report says so.",
            parameter="evaluation",
        )
