"""Records that cannot be read or used: how many may become null records, and where they are named.

Which records are broken is a fact about records, and their names may be those of patients. Where no set is made, they
stand in a file for the owner alone (mode 0600). Where some become null records, standard error has their number, and no
file is made: that there is one, or how long it is, would tell others.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli import files
from dpfc_cli.errors import GUARDED, UserError, bad_record, counted, parameter, printable, spelled
from dpfc_cli.folders import beside
from dpfc_cli.places import exists

if TYPE_CHECKING:
    import numpy as np

MOST_NULL = 0.05
"""The share of a split's records that may become null records, unless the user says otherwise."""
MOST_LISTED = 100_000
"""The most records that are remembered. A longer list helps nobody, and it would take memory."""
ABSENT = "there is no such file"
REFUSED = ".refused.txt"
"""How the name of a file ends that lies beside a set which could not be made: broken records, or what is secret in a
refusal."""


class Broken:
    """The records of a source that were found to be broken.

    Args:
        noun: what a record is called.
        sizes: how many records each split has.
        title: title(split, i) is what messages call record i.
        share: the largest share of a split's records that may become null records, never all; None: none may.
        null: how a user asks for null records.

    Attributes:
        sizes: how many records each split has.
        tolerant: whether any may become a null record.
        counts: how many are known of each split.
        found: why each cannot be used, by split and number.
        said: how many records of the set became null records, once the set is approved; None if there are none.

    """

    said: str | None = None

    def __init__(
        self,
        noun: str,
        sizes: Mapping[str, int],
        title: Callable[[str, int], str],
        share: float | None,
        null: str = f"{parameter('on_error')} null",
    ) -> None:
        self._noun, self.sizes, self._title, self._share = noun, sizes, title, share
        self.tolerant = share is not None
        self._null = null
        # 0.29 · 100 is 28.999999999999996.
        self._allowed = {split: min(int((share or 0) * n + 1e-9), n - 1) for split, n in sizes.items()}
        self.found: dict[tuple[str, int], str] = {}
        self.counts = dict.fromkeys(sizes, 0)

    @property
    def too_many(self) -> str | None:
        """The split that has more of them than are allowed, or None."""
        return next((split for split, count in self.counts.items() if count > self._allowed[split]), None)

    @property
    def full(self) -> bool:
        """Whether no more of them are remembered."""
        return len(self.found) >= MOST_LISTED

    @property
    def number(self) -> str:
        absent = sum(why == ABSENT for why in self.found.values())
        missing = f" ({absent:,} of them: {ABSENT})" if absent else ""
        return f"{'At least ' if self.full else ''}{counted(len(self.found), self._noun)} cannot be used{missing}"

    def add(self, split: str, start: int, reasons: Mapping[int, str]) -> None:
        """Remember what is broken among the records of a split that begin at `start`: why, by their rows."""
        self.counts[split] += len(reasons)
        for row, reason in reasons.items():
            if not self.full:
                self.found[split, start + row] = reason

    def approve(self, nulls: Mapping[str, "np.ndarray"]) -> None:
        """Raise UserError if too many records of the whole set are null. nulls: their numbers, also those of shards
        that were made before.
        """
        for split, records in nulls.items():
            self.counts[split] = len(records)
            for record in islice(records, MOST_LISTED):
                if not self.full:
                    self.found.setdefault((split, int(record)), "it is a null record")
        if self.too_many:
            raise self.refusal()
        parts = [
            f"{count:,} of {counted(self.sizes[split], f'{split} {self._noun}')}"
            for split, count in self.counts.items()
            if count
        ]
        if parts:
            self.said = (
                f"Null records, which add nothing to a training: {' and '.join(parts)}. This number depends on the "
                f"records: do not publish it. To see which they are: the same with {parameter('on_error')} refuse and "
                f"another {parameter('out')}."
            )

    def refusal(self) -> UserError:
        """The error that names them all, in its `full`: one on each line."""
        what, remedy = self.number, "Correct them, or leave them out of the source."
        if self._share is None:
            remedy += f" Or keep them as records without content: {self._null}."
        elif over := self.too_many:
            n = self.sizes[over]
            what += f". At most {self._allowed[over]:,} of the {n:,} {over} {self._noun}s may become null records "
            what += f"({parameter('most_null')})"
            remedy += f" If features are merely too large for the precision: {parameter('dtype')} float32."
            if self.counts[over] < n:
                remedy += (
                    f" Null records teach nothing. If you want them all the same: a larger {parameter('most_null')}."
                )
        found = bad_record(f"{what}. {GUARDED}", remedy, parameter="on_error" if self._share is None else "most_null")
        listed = (f"{printable(self._title(*at))}: {printable(why)}" for at, why in sorted(self.found.items()))
        found.full = "\n".join(listed)
        return found


@contextmanager
def naming(folder: Path, tolerant: bool) -> Iterator[None]:
    """While the feature set in this folder is made: what is secret in a UserError is written into a file beside it, and
    the error says so. The file stays until a set is made without null records.
    """
    refused = beside(folder) / (folder.name + REFUSED)
    try:
        yield
    except UserError as error:
        if error.full is not None:
            error.what += f" {_written_down(error.full, refused)}"
            error.fields = {"path": str(refused)} | error.fields
        raise
    # Another process may have refused what this one did not come to.
    if not tolerant and exists(folder):
        with suppress(OSError):
            refused.unlink(missing_ok=True)


def _written_down(full: str, file: Path) -> str:
    """Write what is secret into the file, and say so in a sentence."""
    lines = [printable(line) for line in spelled(full, str).split("\n")]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
    except OSError as error:
        return f"The list could not be written: '{file}': {error.strerror or error}."
    return f"Which is meant stands in '{file}'. Only you can read that file."
