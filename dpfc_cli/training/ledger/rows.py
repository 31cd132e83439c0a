"""What a ledger has in it: the rows, and which values a row may have."""

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from dpfc_cli.features.manifest import Manifest
from dpfc_cli.files import json_of
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON, Claim
from dpfc_cli.schema import among, either, fault, null, number, record, test, whole
from dpfc_cli.trust.claims import claim_fault, epsilon_agrees, figures_agree

State = Literal["charged", "written", "stopped", "unknown"]
"""What became of a training. "unknown": its row was written before rows said so."""
EVALUATION = "evaluation"
"""The method of a row that is no training: noisy figures of how good a head is on these records."""
MOST_NAME, MOST_NOTE = 100, 500
"""Characters of a name, and of a purpose or a note."""
Unit = tuple[str, str | None]
"""What is protected: "record", or "person" with the digest of which records belong to which person."""
RECORD: Unit = ("record", None)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training, or one private evaluation of a head.

    at: UTC. records: which records it was (`records_of`). epsilon, delta: what was claimed; mu names the noise (and is
    its μ where nothing was sampled), eta is the sampler's η; None where nothing is claimed (seeded noise, or none).
    releases: as JSON. head: the name of its file. state: what became of it. sha256: of the head that was written, or of
    the figures of an evaluation: so no row but that of its training has the digest of a head. who: whose training it
    is; None in the first ledgers. purpose: what it is for. unit: what is protected, a record or a person. persons: the
    digest of which records belong to which person; None if the unit is a record.
    """

    at: str
    records: str
    split: str
    method: str
    claim: Claim
    epsilon: float | None
    delta: float | None
    mu: float | None
    eta: float | None
    adjacency: str
    unit: str
    n: int
    releases: str
    head: str
    state: State = "charged"
    sha256: str | None = None
    who: str | None = None
    purpose: str | None = None
    persons: str | None = None

    @property
    def protects(self) -> Unit:
        """What the training protects."""
        return self.unit, self.persons

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The releases. Raises ValueError where they are no JSON."""
        found: list[dict[str, Any]] = json_of(self.releases)
        return found


@dataclass(frozen=True, kw_only=True)
class Cap:
    """A change of the cap: how much all trainings on some records may spend together from now on.

    at: UTC. records: which records it is on (`records_of`). epsilon, delta: the cap; mu, eta: what it stands for (see
    `limit`). All four are None where the cap was removed. who: who set it. note: why. trainings: how many the ledger
    had by then. unit, persons: what is protected, as of an `Entry`.
    """

    at: str
    records: str
    epsilon: float | None
    delta: float | None
    mu: float | None
    eta: float | None
    who: str
    note: str | None = None
    trainings: int = 0
    unit: str = "record"
    persons: str | None = None

    @property
    def protects(self) -> Unit:
        """What the cap protects."""
        return self.unit, self.persons


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What somebody says: that a set shares records with the set of this ledger. It cannot be taken back.

    at: UTC. records, other: which records the two sets have (`records_of`). name: of the other set at that time. who:
    who says so. trainings: how many the ledger had by then.
    """

    at: str
    records: str
    other: str
    name: str
    who: str
    trainings: int = 0


@dataclass(frozen=True, kw_only=True)
class Book:
    """All rows of a ledger, oldest first: entries (trainings), caps and overlaps."""

    entries: tuple[Entry, ...] = ()
    caps: tuple[Cap, ...] = ()
    overlaps: tuple[Overlap, ...] = ()


Row = Entry | Cap | Overlap


def records_of(manifest: Manifest, split: str = "train") -> str:
    """A name for a split's records: the digest of its source's listing. It stays in the ledger.

    It is the same for every feature set that `extract` makes of the same pictures, whatever the backbone, the folder
    and the other splits. (Imported features are known by their values alone.)
    """
    return str(manifest.source["identity"]["listing"][split])


def persons_of(manifest: Manifest, split: str = "train") -> str | None:
    """The digest of which records of a split belong to which person. It stays in the ledger. None without persons."""
    known = manifest.source["identity"].get("groups")
    return None if known is None else str(known[split])


def check(entry: Entry) -> None:
    """Raise ValueError for values that no training has."""
    row: dict[str, Any] = asdict(entry)
    wrong = fault(row, _ROW)
    if wrong is None:
        try:
            row["plan"] = entry.plan
        except ValueError as error:
            raise ValueError(f"'releases' cannot be read: {error}") from error
        wrong = claim_fault(row)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' makes no sense")
    if (entry.state == "written") != (entry.sha256 is not None):
        raise ValueError("'sha256' does not fit 'state': the digest of a head is there once it is written")
    if not figures_agree(row) or (entry.unit == "person") != (entry.persons is not None):
        raise ValueError("the figures contradict one another")


def _is_utc(value: object) -> bool:
    try:
        # A time without a zone is not that of its text, because that ends with the zone.
        return datetime.fromisoformat(str(value)).astimezone(UTC).isoformat(timespec="seconds") == value
    except (ValueError, OverflowError):
        return False


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value and "\0" not in value


def is_note(value: object, most: int) -> bool:
    """Whether a ledger keeps it as a name (`MOST_NAME`) or as a note (`MOST_NOTE`): text, neither empty nor long.

    It may have any characters that UTF-8 has, but NUL. They are escaped where they are shown.
    """
    if not isinstance(value, str) or not 0 < len(value) <= most:
        return False
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


_SOME = test(lambda value: type(value) is str and value != "")
_NAME, _NOTE = test(lambda value: is_note(value, MOST_NAME)), test(lambda value: is_note(value, MOST_NOTE))
_DIGEST = test(lambda value: bool(re.fullmatch("[0-9a-f]{64}", str(value))))
_UNIT = {"unit": among(["record", "person"]), "persons": either(null, _DIGEST)}
_ROW = record(
    {
        **{"at": test(_is_utc), "n": whole(1), "head": test(_is_file_name), "state": among(get_args(State))},
        **dict.fromkeys(("records", "split", "method", "releases"), _SOME),
        **_UNIT,
        "sha256": either(null, _DIGEST),
        **{"who": either(null, _NAME), "purpose": either(null, _NOTE)},
    }
)
_SET = {
    **{"epsilon": number(LEAST_EPSILON, LARGEST_EPSILON), "delta": number(LEAST_DELTA, 1 - 2**-53)},
    **{"mu": number(0, 1e150, beyond=True), "eta": number(0, 1)},
}
_CAP_ROW = {
    **{"at": test(_is_utc), "records": _SOME, "who": _NAME, "note": either(null, _NOTE), "trainings": whole(0)},
    **_UNIT,
}


def check_cap(cap: Cap) -> None:
    """Raise ValueError for values that no cap has."""
    row = asdict(cap)
    wrong = fault(row, record(_CAP_ROW | (dict.fromkeys(_SET, null) if cap.epsilon is None else _SET)))
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' makes no sense")
    agree = cap.epsilon is None or epsilon_agrees(*(row[name] for name in _SET))
    if not agree or (cap.unit == "person") != (cap.persons is not None):
        raise ValueError("the figures contradict one another")


_OVERLAP_ROW = record(
    {"at": test(_is_utc), "records": _SOME, "other": _SOME, "name": _SOME, "who": _NAME, "trainings": whole(0)}
)


def check_overlap(overlap: Overlap) -> None:
    """Raise ValueError for values that no overlap has."""
    wrong = fault(asdict(overlap), _OVERLAP_ROW)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' makes no sense")
