"""Checking a head that somebody hands over: its file, its card, and the ledger that its training was charged to."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from dpfc_cli.errors import UserError, conflict, missing, parameter, printable, quoted
from dpfc_cli.features.lookup import set_of_training
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import LEDGER, features_folder
from dpfc_cli.heads import head as heads
from dpfc_cli.heads import signature as signatures
from dpfc_cli.heads.signature import Checking, Signed
from dpfc_cli.ledger.facts import Charge, Merge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import check_begin
from dpfc_cli.ledger.public import SPLIT, facts_of
from dpfc_cli.ledger.standing import charged_standing
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.options import takes
from dpfc_cli.records.card import Card, Standing
from dpfc_cli.records.claims import same_epsilon
from dpfc_cli.records.findings import Finding, contradictions, refused, unproved
from dpfc_cli.records.findings import findings as of_card
from dpfc_cli.records.statement import brief
from dpfc_cli.show.document import Told
from dpfc_cli.structs import encoded, fields_of

DIGEST = "SHA-256 in the ledger"
_OTHERS = "other trainings in the ledger"
_NEWEST = "newest row of the ledger"
_BY = {
    **dict.fromkeys(("ledger", DIGEST, _OTHERS, _NEWEST), "the ledger"),
    "feature set": "the feature set of its training",
}
_CLAIMED = ("claim", "epsilon", "delta", "mu", "eta", "method", "adjacency", "unit")


@dataclass(frozen=True, kw_only=True, repr=False)
class Verified(Told):
    """What the checks of a head found.

    head: it may contradict itself. sha256: of its file. ledger: the one that was looked into; signature: the one that
    was checked; None where there was none. findings: the checks. unproved: what the file cannot prove, whatever they
    found. account: what that ledger has of the same people, if it has the charge. as_of: when the newest row of that
    ledger was written, in words.
    """

    head: heads.Head
    sha256: str
    ledger: Path | None
    signature: Signed | None
    findings: tuple[Finding, ...]
    unproved: tuple[str, ...]
    account: Account | None = None
    as_of: str | None = None

    def told(self) -> dict[str, str]:
        found = {"head": printable(str(self.path)), "verdict": self.verdict, **dict(brief(self.card))}
        return found | ({"contradicts": "; ".join(self.contradictions)} if self.contradictions else {})

    @property
    def state(self) -> Literal["contradicted", "confirmed", "signed", "not confirmed"]:
        """How sure it is that the head is what it says. signed: no ledger has it, but who was named has signed."""
        if self.contradictions:
            return "contradicted"
        if self.account is not None:
            return "confirmed"
        return "not confirmed" if self.signature is None else "signed"

    @property
    def verdict(self) -> str:
        """`state` in a line: by what, and until when the ledger knows what was spent."""
        by = dict.fromkeys(_BY.get(each.what, "itself") for each in self.findings if each.result == "contradicts")
        return {
            "contradicted": f"contradicted by {' and '.join(by)}",
            "confirmed": f"confirmed by the ledger as of {self.as_of}{', and signed' if self.signature else ''}",
            "signed": "signed, and not confirmed by a ledger",
            "not confirmed": "not confirmed: agrees only with itself",
        }[self.state]

    @property
    def path(self) -> Path:
        return self.head.file

    @property
    def card(self) -> Card:
        """The description of the head, which says what is claimed."""
        return self.head.card

    @property
    def contradictions(self) -> list[str]:
        """What contradicts. Empty if nothing does."""
        return contradictions(self.findings)


@takes(Checking)
def verify(wanted: Checking) -> Verified:
    """Check whether a head can be what its card says, and who signed it.

    Without `public_key`, `certificate_chain` and `identity` no signature is checked, and the findings say so.

    Returns:
        The checks and their results. A contradiction is a result, not an error.

    Raises:
        UserError: the file cannot be read as a head, the ledger cannot be read or is older than `not_before`, or the
            signature is missing or not good.

    Examples:
        >>> print(verify("heads/eps1.safetensors", ledger="features/ledger.sqlite").verdict)

    """
    path = heads.located(wanted.head)
    with heads.copied(path) as copy:
        # A file that is not what was signed is not even read.
        signed = signatures.check(copy, path, wanted)
        head, digest = heads.read(path, copy), sha256_of(copy)
    card = head.card
    d, m = head.weight.shape
    file = Finding(what="file", result="ok", why=f"a head of {m} classes over {d} dimensions, all numbers finite")
    findings = [of_signature(signed), file, *of_card(card, head.chain)]
    if card.date[:10] > datetime.now(UTC).date().isoformat():
        findings.append(Finding(what="date", result="contradicts", why=f"{card.date} is later than today"))
    known = _set_at_hand(card.features.name, wanted.ledger)
    book = _book(card, wanted.ledger, known)
    if wanted.not_before is not None:
        _check_age(book, wanted.not_before)
    if not isinstance(book, str) and book.facts and book.newest[:10] > datetime.now(UTC).date().isoformat():
        findings.append(Finding(what=_NEWEST, result="contradicts", why=f"{book.as_of} is later than today"))
    findings.append(_of_set(card, book, known))
    of_ledger = _of_ledger(card, digest, book)
    there = None if isinstance(book, str) else book
    charge = _charge(card, book) if of_ledger[0].result == "ok" else None
    named = there is not None and bool(there.written(digest))
    return Verified(
        head=head,
        sha256=digest,
        ledger=None if there is None else there.path,
        signature=signed,
        findings=(*findings, *of_ledger),
        unproved=tuple(unproved(card, named=named, charged=charge is not None)),
        account=there.account_of(charge.set) if there and charge else None,
        as_of=there.as_of if there and charge else None,
    )


def _check_age(book: Ledger | str, day: str) -> None:
    """Refuse a ledger that may be an old copy: what was charged later is in no total of it."""
    try:
        earliest = date.fromisoformat(day).isoformat()
    except ValueError:
        raise UserError(f"{parameter('not_before')} '{day}' is no day.", "Write it as 2026-11-28.") from None
    if isinstance(book, str):
        raise missing(f"No ledger says what was spent until {earliest}: {book}.", f"Name one: {parameter('ledger')}.")
    if not book.facts or book.newest[:10] < earliest:
        newest = f"its newest row is of {book.as_of}" if book.facts else "it is empty"
        raise conflict(
            f"The ledger {quoted(book.path)} ends before {earliest}: {newest}. It may be an old copy.",
            "Ask for the newest one. Each training and each cap is a row.",
            parameter="not_before",
        )


def vouched(path: Path | str) -> heads.Head:
    """A head for whoever tells others what it claims. UserError where `verify` finds that something contradicts."""
    found = verify(path)
    if found.contradictions:
        raise refused(found.path, found.contradictions)
    return found.head


def of_signature(signed: Signed | None) -> Finding:
    """What is said of a signature. Whether a file of one lies there says nothing: anybody can put it there."""
    if signed is None:
        return Finding(what="signature", result="unknown", why="none was checked: it was not said who must have signed")
    return Finding(what="signature", result="ok", why=f"{signed.by} vouches for the bytes of the file")


def _set_at_hand(name: str, ledger: Path | str | None) -> FeatureSet | str:
    """The feature set of that name beside the ledger that was named, or here; or why there is none."""
    try:
        found = (set_of_training(name, Path(ledger).parent) if ledger else None) or set_of_training(name)
    except UserError as error:
        return error.what.rstrip(".")
    return found or f"no set of the name '{name}' is at hand"


def _of_set(card: Card, book: Ledger | str, found: FeatureSet | str) -> Finding:
    """Whether the card says of the set of its training what is true. Another set may have the same name, so it must be
    the one of the charge.
    """
    what = "feature set"
    if isinstance(found, str):
        return Finding(what=what, result="unknown", why=found)
    charge = _charge(card, book)
    if charge is None or charge.set != found.manifest.id:
        why = f"no ledger says that the head was trained on the set in {found.folder}"
        return Finding(what=what, result="unknown", why=why)
    try:
        for part in card.known.values():
            found = part.trained_on(found, card)
        facts = facts_of(found, protected=card.claim != "non-private")
    except UserError as error:
        return Finding(what=what, result="unknown", why=error.what.rstrip("."))
    manifest, said = found.manifest, card.features
    persons = said.grouped_by is None or encoded(said.grouped_by) == manifest.grouped_by
    true = {
        **{name: getattr(card.facts, name) == getattr(facts, name) for name in ("n", "m", "k", "d")},
        **{"records": card.facts.records == facts.rows, "origin": card.facts.origin == manifest.origin},
        **{"unit": card.unit == facts.unit, "classes": card.classes == manifest.classes, "split": said.split == SPLIT},
        **{"backbone": said.backbone == manifest.backbone, "hold_out": said.hold_out == manifest.hold_out},
        **{"grouped_by": persons, "fingerprint": said.fingerprint == manifest.fingerprint},
    }
    wrong = [name for name, right in true.items() if not right]
    if wrong:
        why = f"the set of the charge, {found.folder}, has other values: {', '.join(wrong)}"
        return Finding(what=what, result="contradicts", why=why)
    return Finding(what=what, result="ok", why=f"the facts, classes and backbone are those of {found.folder}")


def _book(card: Card, named: Path | str | None, known: FeatureSet | str) -> Ledger | str:
    """The ledger that was named, or else the one beside the set, or here, if it has the charge; or why there is none.
    One that nobody named, and that lacks the charge, is of other trainings.
    """
    place = features_folder() / LEDGER if isinstance(known, str) else ledger_path(known.folder)
    place = place if named is None else Path(named)
    if named is not None and not place.is_file():
        raise missing(
            f"There is no ledger {quoted(place)}{' (it is a folder)' if place.is_dir() else ''}.",
            f"Name the file that lies beside the feature set: {parameter('ledger')}.",
        )
    if card.ledger is None:
        return f"the head names no ledger. {card.elsewhere}".rstrip(". ")
    book = read(place)
    if named is not None or card.ledger.charge in book.known:
        return book
    try:
        check_begin(book)
    except UserError as error:
        return error.what.rstrip(".")
    return "no ledger was named, and none here has the charge that the card names"


def _charge(card: Card, book: Ledger | str) -> Charge | None:
    """The charge that a card names. None: there is no ledger, or it does not have it."""
    charge = None if card.ledger is None or isinstance(book, str) else book.known.get(card.ledger.charge)
    return charge if isinstance(charge, Charge) else None


def _of_ledger(card: Card, digest: str, book: Ledger | str) -> list[Finding]:
    """Whether the ledger has the training, the file and the other trainings that the card names."""
    if isinstance(book, str):
        return [Finding(what="ledger", result="unknown", why=book)]
    charge = _charge(card, book)
    if charge is None:
        why = "the ledger does not have the charge that the card names"
        return [Finding(what="ledger", result="contradicts", why=why)]
    wrong = _differ(card, charge)
    why = "the charge has the releases and the claim of the card"
    if wrong:
        why = f"the charge is of another training, or of another card: they differ in {', '.join(wrong)}"
    findings = [Finding(what="ledger", result="contradicts" if wrong else "ok", why=why)]
    findings.append(_of_digest(digest, charge, book))
    assert card.ledger is not None
    findings.append(_of_standing(card.ledger, charge, book))
    return findings


def _differ(card: Card, charge: Charge) -> list[str]:
    """The names of the values that a charge and a card do not share."""
    said = [
        *((name, getattr(card, name), getattr(charge, name)) for name in _CLAIMED),
        *(("at", card.date, charge.at), ("n", card.facts.n, charge.n), ("split", card.features.split, charge.split)),
        ("releases", card.plan, charge.releases),
    ]
    return [name for name, one, other in said if one != other]


def _of_digest(digest: str, charge: Charge, book: Ledger) -> Finding:
    what, last = DIGEST, book.outcome(charge.id)
    if charge in book.written(digest):
        return Finding(what=what, result="ok", why="the charge ended with this file")
    why = "the ledger names no file of the charge: rows are missing, or dpfc was killed when it had written the head. "
    why += "Then the same command completes the ledger"
    if last is not None and last.sha256 is not None:
        why = f"the charge ended with another file ({last.sha256[:12]}…), and this is {digest[:12]}…"
    elif last is not None and last.state == "stopped":
        why = "the charge ended without a file"
    return Finding(what=what, result="contradicts", why=why)


def _of_standing(said: Standing, charge: Charge, book: Ledger) -> Finding:
    """Whether the ledger had the other trainings that the card counts."""
    what, then = _OTHERS, charged_standing(book, charge)
    wrong = [] if same_epsilon(then.epsilon, said.epsilon) else ["epsilon"]
    wrong += [name for name in fields_of(then) if name != "epsilon" and getattr(said, name) != getattr(then, name)]
    if wrong:
        # Facts of another ledger may stand before this charge since. They make a total larger, and never smaller.
        united = any(isinstance(each, Merge) for each in book.facts[len(book.until(charge.id).facts) :])
        smaller = said.epsilon is not None and then.epsilon is not None and said.epsilon <= then.epsilon
        fewer = said.count <= then.count and (
            then.epsilon is None or smaller or same_epsilon(said.epsilon, then.epsilon)
        )
        why = f"the card says something else of the ledger: {', '.join(wrong)}"
        if united and fewer:
            return Finding(what=what, result="unknown", why=f"{why}. It was united with another one since")
        return Finding(what=what, result="contradicts", why=why)
    later = len(book.account_of(charge.set).charges) - then.count
    bound = "" if then.exact else "; their total is an upper bound"
    why = f"they are those that the card counts{bound}"
    return Finding(what=what, result="ok", why=why + (f"; {later:,} came later" if later > 0 else ""))
