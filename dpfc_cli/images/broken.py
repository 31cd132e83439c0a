"""Pictures that cannot be decoded: how many, and which. `sources.nulls` says who learns it."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from dpfc_cli.errors import GUARDED, UserError, bad_record, counted, parameter, printable
from dpfc_cli.images.prefetch import Batch
from dpfc_cli.images.sets import ImageSet, Records
from dpfc_cli.sources.nulls import listed

MOST_LISTED = 100_000
"""The most pictures that are remembered. A longer list helps nobody, and it would take memory."""


class Broken:
    """The pictures of the data set `source` that were found to be broken.

    Args:
        source: the data set.
        file: where the list of them goes.
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
    def number(self) -> str:
        """How many are known, in words."""
        return f"{'At least ' if self.full else ''}{counted(len(self._found), 'picture')} cannot be decoded"

    def refusal(self) -> UserError:
        """The error that says where they are named."""
        what, remedy = self.number, "Correct them, or leave them out of the source."
        if self._allowed is None:
            remedy += f" Or keep them as records without content: {parameter('on_error')} null."
        else:
            over = self.too_many or next(iter(self._allowed))
            n = self._source.splits[over].n
            what += (
                f" or have no finite features. At most {self._allowed[over]:,} of the {n:,} {over} pictures may become "
                f"null records ({parameter('most_null')})"
            )
            if self.counts[over] < n:
                remedy += (
                    f" Null records teach nothing. If you want them all the same: a larger {parameter('most_null')}."
                )
        return bad_record(
            f"{what}. {self._listed()} {GUARDED}",
            remedy,
            parameter="on_error" if self._allowed is None else "most_null",
            path=str(self._file),
        )

    def said(self) -> str | None:
        """How many records of the set became null records; None if there are none."""
        splits = self._source.splits
        parts = [
            f"{count:,} of {counted(splits[split].n, f'{split} picture')}"
            for split, count in self.counts.items()
            if count
        ]
        said = f"Null records, which add nothing to a training: {' and '.join(parts)}."
        how = "The same under another name, with errors refused, makes a file that names them."
        return f"{said} {how} This number depends on the records: do not publish it." if parts else None

    def _listed(self) -> str:
        titles = (
            (self._source.splits[split].pixels.title(row), why) for (split, row), why in sorted(self._found.items())
        )
        lines = [f"{printable(title)}: {printable(why)}" for title, why in titles]
        return listed(lines, self._file, f"The first {len(lines):,}" if self.full else "Which they are")
