"""Several processes sum the records together. One of them has the curator; each sums its own part of the records.

For each release the process with the curator says which query it is, and which units are in the sample. Each process
sums its part (`passes.Part`), says which units it has added, and adds its sum to those of the others. So the total is
that of one process: integers on the lattice, which are exact in any order (`lattice_for`). `passes.chained` checks that
each unit was added once, before the sums are used. Noise is added to the total alone, in one process, so the proof of
`curator` stays as it is.

What the processes tell one another depends on records: sums without noise. Whoever could read it would learn about
single records. So the network between the processes is trusted like the memory of one machine.

A message is read without running code that came with it, and its query must be one that the proofs are about, in each
process.
"""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy import passes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.queries import QUERIES, Query
from dpfc_cli.privacy.sums import Summed, partial_sum

Sum = Callable[[Query, Summed, np.ndarray | None], np.ndarray]
"""A function such as `sums.exact_sum`."""
KINDS: dict[str, Any] = {kind.kind: kind for kind in QUERIES}


class Channel(Protocol):
    """What connects the processes of a training. The process with the number 0 has the curator.

    count: how many processes there are. number: which of them this one is.
    """

    count: int
    number: int

    def tell(self, message: bytes) -> None:
        """Tell all other processes something. For process 0."""
        ...

    def told(self) -> bytes:
        """What process 0 tells next. For the others."""
        ...

    def gathered(self, value: str) -> list[str]:
        """The values of all processes, in order. It returns when all have come here."""
        ...

    def added(self, array: np.ndarray) -> np.ndarray:
        """The sum of the arrays of all processes."""
        ...


@dataclass(frozen=True)
class Together:
    """The sum over all records, for the process with the curator. It takes the place of `exact_sum`."""

    channel: Channel

    def __call__(self, query: Query, over: Summed, sample: np.ndarray | None = None) -> np.ndarray:
        self.channel.tell(encoded(query, sample))
        return _shared(self.channel, query, over, sample)


def follow(channel: Channel, over: Summed) -> None:
    """Sum a part for each query that process 0 asks for, until it asks no more.

    Args:
        channel: the way to the other processes.
        over: the facts of all records, and the stream from `passes.part_of(…).begin` on.

    Raises:
        ValueError: a message holds no query of the core.

    """
    while message := channel.told():
        query, sample = decoded(message, over.facts)
        check(query, over.facts)
        _shared(channel, query, over, sample)


def _shared(channel: Channel, query: Query, over: Summed, sample: np.ndarray | None) -> np.ndarray:
    part = passes.part_of(over.facts, channel.number, channel.count)
    total, span = partial_sum(query, over, part, sample)
    spans = (json.loads(each) for each in channel.gathered(json.dumps([span.start, span.stop])))
    # Each process checks it, so none of them gives its sum away for nothing.
    passes.chained([range(first, end) for first, end in spans], over.facts)
    return channel.added(total)


def encoded(query: Query, sample: np.ndarray | None) -> bytes:
    """A query and the sample that it is about, as bytes."""
    said, arrays = _said(query)
    if sample is not None:
        arrays["sample"] = np.packbits(sample)
    buffer = io.BytesIO()
    text = json.dumps({**said, "sampled": sample is not None}).encode()
    np.savez(buffer, said=np.frombuffer(text, np.uint8), **arrays)
    return buffer.getvalue()


def digest_of(query: Query) -> bytes:
    """The SHA-256 of the values of a query. It does not depend on how a version of NumPy writes files."""
    said, arrays = _said(query)
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        values = np.ascontiguousarray(array, np.dtype(array.dtype).newbyteorder("<"))
        digest.update(f";{name} {values.dtype.str} {values.shape};".encode() + values.tobytes())
    return digest.digest()


def _said(query: Query) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a query is, as values for JSON and as arrays."""
    known: Any = query
    held = {field.name: getattr(query, field.name) for field in fields(known) if field.name != "chain"}
    arrays: dict[str, Any] = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in held.items() if name not in arrays}
    arrays |= {f"chain.{i}": array for i, array in enumerate(chains.arrays(query.chain))}
    return {"kind": query.kind, "plain": plain, "chain": chains.to_json(query.chain)}, arrays


def decoded(message: bytes, facts: Facts) -> tuple[Query, np.ndarray | None]:
    """What `encoded` has made a message of.

    Raises:
        ValueError: it holds something else.

    """
    try:
        with np.load(io.BytesIO(message), allow_pickle=False) as file:
            arrays = dict(file)
        said = json.loads(arrays.pop("said").tobytes())
        steps = [arrays.pop(f"chain.{i}") for i in range(sum(name.startswith("chain.") for name in arrays))]
        sample = np.unpackbits(arrays.pop("sample"), count=facts.n).astype(bool) if said["sampled"] else None
        chain = chains.from_json(said["chain"], steps, facts.d)
        return KINDS[said["kind"]](chain=chain, **said["plain"], **arrays), sample
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
        raise ValueError(f"a message from process 0 holds no query: {type(error).__name__}") from error
