"""Records, and the class Grams of them that are made in pieces of two classes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import pieces
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import ClassGrams, Query

N, M, D, K = 150, 7, 4, 2
LATTICE = Lattice(15)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = np.stack([RNG.integers(0, M, N), np.where(RNG.random(N) < 0.4, RNG.integers(0, M, N), -1)], 1).astype(np.int32)
Y[3], X[4, 0] = -1, np.nan
Y[:, 1] = np.where(np.arange(N) % 9, Y[:, 1], Y[:, 0])
PERSONS = np.repeat(np.arange(50), 3)
CHAIN = (Clip(0.5),)
WHOLE = ClassGrams(CHAIN)
RECORDS = Facts(n=N, m=M, d=D, k=K)
FACTS = {
    "records": RECORDS,
    "replace-one": replace(RECORDS, adjacency="replace-one"),
    "persons": replace(RECORDS, n=50, rows=N, unit="person"),
}


def stream_of(facts: Facts, read: list[int] | None = None) -> BlockStream:
    """The records. read: grows with every pass over them."""

    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        if read is not None:
            read.append(rows)
        for at in range(0, N, rows):
            found = () if facts.rows is None else (PERSONS[at : at + rows],)
            yield at, X[at : at + rows], Y[at : at + rows], *found

    return stream


def split(facts: Facts) -> list[Query]:
    return pieces(WHOLE, WHOLE.shape(facts))


class Full(InMemory):
    """A shelf that has no room for each fourth block that it is asked to take."""

    asked = 0

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        self.asked += 1
        return self.asked % 4 != 3 and super().put(block)
