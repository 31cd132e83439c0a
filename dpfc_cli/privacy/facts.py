"""What is public about the private records: their number, their shape, and which data sets are neighbours."""

from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["zero-out", "replace-one"]
"""Which data sets are neighbours.

"zero-out": one record may become the null record, which adds nothing to any sum. The number of records n is public.
"replace-one": one record may become any other record.
"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts of a set of private records.

    Attributes:
        n: number of records.
        m: number of classes.
        d: number of dimensions of a feature vector.
        k: the largest number of labels that one record can have.
        adjacency: which data sets are neighbours.
        unit: what one record is, in words.

    """

    n: int
    m: int
    d: int
    k: int = 1
    adjacency: Adjacency = "zero-out"
    unit: str = "record"
