"""The account of a set of records: all trainings on them that the ledgers in one folder know."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.manifest import MANIFEST, load
from dpfc_cli.folders import LEDGER
from dpfc_cli.training.ledger import (
    Entry,
    composes_exactly,
    ledger_path,
    read,
    records_of,
    together,
)


@dataclass(frozen=True, kw_only=True)
class Account:
    """What was spent on the same records.

    ledger: of the feature set. own: its rows. linked: rows of other ledgers in that folder about the same records, each
    with the name of its feature set. not_counted: other feature sets in that folder that have a ledger. They were not
    made of exactly the same pictures, but may share some.
    """

    ledger: Path
    own: tuple[Entry, ...]
    linked: tuple[tuple[str, Entry], ...]
    not_counted: tuple[str, ...]

    @property
    def name(self) -> str:
        """The feature set's name."""
        return _name(self.ledger)

    @property
    def rows(self) -> list[tuple[str, Entry]]:
        """All rows with the names of their feature sets, oldest first."""
        return sorted([*((self.name, row) for row in self.own), *self.linked], key=lambda each: each[1].at)

    @property
    def entries(self) -> list[Entry]:
        """All rows."""
        return [*self.own, *(row for _, row in self.linked)]

    @property
    def private(self) -> int:
        """The number of trainings with a guarantee."""
        return sum(row.claim == "private" for row in self.entries)

    @property
    def unprotected(self) -> int:
        """The number of trainings without a guarantee, which no ε covers."""
        return len(self.entries) - self.private

    @property
    def exact(self) -> bool:
        """Whether `epsilon` is the smallest that can be claimed. Otherwise it is an upper bound."""
        return composes_exactly(self.entries)

    def epsilon(self, delta: float) -> float:
        """ε at δ of all private trainings together, under zero-out adjacency."""
        return together(self.entries, delta)

    def with_planned(self, entry: Entry) -> "Account":
        """The account as it will be after one more training."""
        return replace(self, own=(*self.own, entry))

    def to_json(self, deltas: tuple[float, ...]) -> dict[str, Any]:
        """For programs."""
        shown = ("at", "method", "claim", "epsilon", "delta", "adjacency", "head", "state", "sha256")
        return {
            "ledger": str(self.ledger),
            "feature_sets": sorted({self.name, *(name for name, _ in self.linked)}),
            "not_counted": list(self.not_counted),
            "adjacency": "zero-out",
            "exact": self.exact,
            "epsilon": {f"{delta:g}": self.epsilon(delta) for delta in deltas},
            "unprotected": self.unprotected,
            "trainings": [
                {**{key: getattr(row, key) for key in shown}, "feature_set": name} for name, row in self.rows
            ],
        }


def account_of(ledger: Path) -> Account:
    """The account that a ledger and those beside it give. UserError where one of them cannot be read."""
    own = tuple(read(ledger))
    records = {row.records for row in own}
    folder = ledger.with_name(_name(ledger))
    if (folder / MANIFEST).exists():
        records.add(records_of(load(folder)))
    others = {path: read(path) for path in sorted(set(ledger.parent.glob(f"*{LEDGER}")) - {ledger})}
    linked = tuple((_name(path), row) for path, rows in others.items() for row in rows if row.records in records)
    counted = {name for name, _ in linked}
    return Account(
        ledger=ledger,
        own=own,
        linked=linked,
        not_counted=tuple(sorted(_name(path) for path in others if _name(path) not in counted)),
    )


def newest_ledger(folder: Path) -> Path:
    """The ledger in a folder of feature sets that was charged last. UserError where there is none."""
    # A set may be a link to a folder elsewhere: its ledger then lies there.
    found = {ledger_path(p.parent) for p in folder.glob(f"*/{MANIFEST}")} | set(folder.glob(f"*{LEDGER}"))
    found = {p.resolve() for p in found if p.exists()}
    if not found:
        raise UserError(
            f"Nothing to show: there is no ledger in '{folder}', and neither {parameter('sigma')} nor "
            f"{parameter('epsilon')} was given.",
            "Try 'dpfc budget --sigma 10 --steps 10', or train something first.",
            code="missing",
            path=str(folder),
        )
    return max(found, key=lambda p: p.stat().st_mtime_ns)


def _name(ledger: Path) -> str:
    return ledger.name.removesuffix(LEDGER)
