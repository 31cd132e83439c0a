"""What is public about the private records: their number, their shape, and which data sets are neighbours."""

from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["zero-out", "replace-one"]
"""Which data sets are neighbours.

"zero-out": one record may become the null record, which adds nothing to any sum. The number of records is public.
"replace-one": one record may become any other record.
If the unit is a person, this holds for all records of one person at once.
"""


Unit = Literal["record", "person"]
"""What is protected."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts of a set of private records.

    Attributes:
        n: number of units: of records, or of persons.
        rows: number of records, if the unit is a person; None if each record is a unit.
        m: number of classes.
        d: number of dimensions of a feature vector.
        k: the largest number of labels that one record can have.
        adjacency: which data sets are neighbours.
        unit: what is protected.

    """

    n: int
    m: int
    d: int
    k: int = 1
    rows: int | None = None
    adjacency: Adjacency = "zero-out"
    unit: Unit = "record"

    @property
    def records(self) -> int:
        return self.n if self.rows is None else self.rows
