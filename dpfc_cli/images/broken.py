"""Pictures that cannot be decoded: which they are, and what is said of them. `sources.nulls` says who learns it."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from dpfc_cli.errors import GUARDED, Note, UserError, counted, parameter, printable
from dpfc_cli.images.prefetch import Batch
from dpfc_cli.images.sets import ImageSet, Records, unreadable
from dpfc_cli.sources.nulls import listed

MOST_LISTED = 100_000
"""The most pictures that are remembered. A longer list helps nobody, and it would take memory."""


class Broken:
    """The pictures of the data set `source` that were found to be broken.

    Args:
        source: the data set.
        file: where the list of them goes if it is long.
        allowed: for each split, how many of its pictures may become null records; None: the user allows none.

    """

    def __init__(self, source: ImageSet, file: Path, allowed: Mapping[str, int] | None = None) -> None:
        self._source, self._file, self._allowed = source, file, allowed
        self._found: dict[tuple[str, int], str] = {}
        self.counts = dict.fromkeys(source.splits, 0)

    @property
    def too_many(self) -> str | None:
        """The split that has more of them than are allowed, or None."""
        allowed = self._allowed or {}
        return next((split for split, count in self.counts.items() if count > allowed.get(split, 0)), None)

    @property
    def full(self) -> bool:
        """Whether no more of them are remembered."""
        return len(self._found) >= MOST_LISTED

    def add(self, split: str, batch: Batch) -> None:
        """Remember what is broken in a batch of that split."""
        self.counts[split] += len(batch.broken)
        for row, reason in batch.broken.items():
            if not self.full:
                self._found[split, batch.start + row] = reason

    def add_nulls(self, nulls: Mapping[str, Records]) -> None:
        """Remember the null records of all shards, also of those that were made before."""
        for split, records in nulls.items():
            self.counts[split] = len(records)
            for record in islice(records, MOST_LISTED):
                if not self.full:
                    self._found.setdefault((split, int(record)), "it is a null record")

    @property
    def first(self) -> str:
        """What is known if the search for more is stopped."""
        key, reason = min(self._found.items())
        return f"{self._number} broken so far, such as '{printable(self._title(key))}': {printable(reason)}. {GUARDED}"

    def refusal(self) -> UserError:
        """The error that names them."""
        (split, record), reason = min(self._found.items())
        first = self._source.splits[split].title(record)
        what, remedy = f"{self._number} pictures cannot be decoded", "Correct them, or leave them out of the source."
        if self._allowed is None:
            if len(self._found) == 1:
                return unreadable(first, reason)
            what += "."
            remedy += f" Or keep them as records without content: {parameter('on_error')} null."
        else:
            over = self.too_many or split
            n = self._source.splits[over].n
            what += (
                f" or have no finite features. At most {self._allowed[over]:,} of the {n:,} {over} pictures may become "
                f"null records ({parameter('most_null')})."
            )
            if self.counts[over] < n:
                remedy += (
                    f" Null records teach nothing. If you want them all the same: a larger {parameter('most_null')}."
                )
        error = UserError(
            f"{what} {GUARDED}",
            remedy,
            code="bad-record",
            parameter="on_error" if self._allowed is None else "most_null",
            path=first,
            count=len(self._found),
        )
        for line in self.lines():
            error.add_note(Note(line))
        return error

    def lines(self) -> list[str]:
        """The pictures, a line each, as `nulls.listed` shows them."""
        lines = [f"{printable(self._title(key))}: {printable(reason)}" for key, reason in sorted(self._found.items())]
        return listed(lines, self._file, f"The first {len(lines):,}" if self.full else "All of them")

    @property
    def _number(self) -> str:
        return f"{'At least ' if self.full else ''}{len(self._found):,}"

    def _title(self, key: tuple[str, int]) -> str:
        return self._source.splits[key[0]].title(key[1])


def said_of(nulls: Mapping[str, Records], source: ImageSet) -> str | None:
    """How many records of a set became null records, in a sentence; None if there are none."""
    parts = [
        f"{len(records):,} of {counted(source.splits[split].n, f'{split} picture')}"
        for split, records in nulls.items()
        if len(records)
    ]
    said = f"Null records, which add nothing to a training: {' and '.join(parts)}. This number depends on the records"
    return f"{said}: do not publish it." if parts else None
