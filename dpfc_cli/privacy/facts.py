"""What is public about the private records: their number, their shape, and what neighbouring data sets are."""

from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["zero-out", "replace-one"]
"""Which data sets are neighbours. "zero-out": one record may become the null record, which adds nothing; n is public.
"replace-one": one record may become any other record.
"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts of a set of private records.

    n: number of records. m: number of classes. d: dimensions of a feature vector. k: the most labels that one record
    can have. adjacency: which data sets are neighbours. unit: what one record is.
    """

    n: int
    m: int
    d: int
    k: int = 1
    adjacency: Adjacency = "zero-out"
    unit: str = "record"
