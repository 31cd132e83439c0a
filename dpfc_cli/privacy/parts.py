"""Several processes sum the records together. One of them has the curator; others sum parts of the records.

For each release the process with the curator says which query it is, and which units are in the sample. Others sum
parts (`passes.Part`), each with the numbers of the units that were added. Their total is that of one process: integers
on the lattice, which are exact in any order (`lattice_for`). A part that is lost is summed again. `passes.chained`
checks that each unit was added once, before the total is used. Noise is added to the total alone, in one process, so
the proof of `curator` stays as it is.

What the processes tell one another depends on records: sums without noise. Whoever could read it would learn about
single records. So the network between the processes is trusted like the memory of one machine.

A message is read without running code that came with it, and its query must be one that the proofs are about
(`forms.check`), in each process. Its arrays have the lengths that public facts say, so what is read is never larger
than the message.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import QUERIES, Query
from dpfc_cli.privacy.sums import Summed
from dpfc_cli.structs import Json

Sum = Callable[[Query, Summed, np.ndarray | None], np.ndarray]
"""A function such as `sums.exact_sum`."""
KINDS = {kind.kind: kind for kind in QUERIES}
Said = dict[str, Json]
"""The values of a message."""
LARGEST_SAID = 2**16
"""The most bytes of the values in a message. A chain of many steps makes them longer, and methods make short ones."""
_LENGTH = 4
"""Bytes that say how many these are."""


def framed(said: Said, *bodies: bytes) -> bytes:
    """A message: values for JSON, then bytes whose lengths its reader knows."""
    text = json.dumps(said, sort_keys=True).encode()
    return b"".join([len(text).to_bytes(_LENGTH, "big"), text, *bodies])


def unframed(message: bytes) -> tuple[Said, memoryview]:
    """What `framed` has made a message of: the values, and all bytes behind them.

    Raises:
        ValueError: it holds something else, or its values take more than `LARGEST_SAID` bytes.

    """
    rest = memoryview(message)
    length = int.from_bytes(rest[:_LENGTH], "big")
    if length > min(LARGEST_SAID, len(rest) - _LENGTH):
        raise ValueError("a message has no beginning")
    try:
        said = json.loads(bytes(rest[_LENGTH : _LENGTH + length]))
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if type(said) is not dict:
        raise ValueError("a message has no values")
    return said, rest[_LENGTH + length :]


def taken(rest: memoryview, shapes: Sequence[tuple[int, ...]]) -> tuple[list[np.ndarray], memoryview]:
    """The first arrays of float64 in some bytes, by their shapes, and the bytes behind them. ValueError: too few."""
    arrays = []
    for shape in shapes:
        size = 8 * math.prod(shape)
        # What is too short has not that shape.
        arrays.append(np.frombuffer(rest[:size], "<f8").reshape(shape).astype(np.float64))
        rest = rest[size:]
    return arrays, rest


def bytes_of(array: np.ndarray) -> bytes:
    """The bytes of an array, as `taken` reads them."""
    return np.ascontiguousarray(array, "<f8").tobytes()


def chain_shapes(steps: Sequence[Said], d: int) -> list[tuple[int, ...]]:
    """The shapes of the arrays of a chain, as `chain.to_json` has written it. `chain.from_json` checks the rest."""
    kinds = {"centre": (d,), "linear": (d, d)}
    return [kinds[step["step"]] for step in steps if step["step"] in kinds]


def encoded(query: Query, sample: np.ndarray | None) -> bytes:
    """A query and the sample that it is about, as bytes."""
    plain = dict(vars(query))
    arrays = [*chains.arrays(plain.pop("chain")), *(plain.pop(name) for name in query.arrays)]
    bodies = [*map(bytes_of, arrays), *([] if sample is None else [np.packbits(sample).tobytes()])]
    said = {"kind": query.kind, "plain": plain, "chain": chains.to_json(query.chain), "sampled": sample is not None}
    return framed(said, *bodies)


def digest_of(query: Query) -> bytes:
    """The SHA-256 of the values of a query."""
    return hashlib.sha256(encoded(query, None)).digest()


def decoded(message: bytes, facts: Facts) -> tuple[Query, np.ndarray | None]:
    """What `encoded` has made a message of.

    Raises:
        ValueError: it holds something else.

    """
    try:
        said, rest = unframed(message)
        kind = KINDS[said["kind"]]
        steps, rest = taken(rest, chain_shapes(said["chain"], facts.d))
        chain = chains.from_json(said["chain"], steps, facts.d)
        make: Callable[..., Query] = kind
        bare = make(chain=chain, **said["plain"], **dict.fromkeys(kind.arrays))
        shapes = bare.array_shapes(facts)
        arrays, rest = taken(rest, list(shapes.values()))
        if len(rest) != (-(-facts.n // 8) if said["sampled"] else 0):
            raise ValueError("it has another length")
        sample = np.unpackbits(np.frombuffer(rest, np.uint8), count=facts.n).astype(bool) if said["sampled"] else None
        return replace(bare, **dict(zip(shapes, arrays, strict=True))), sample  # type: ignore[type-var]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"a message holds no query: {type(error).__name__}") from error
