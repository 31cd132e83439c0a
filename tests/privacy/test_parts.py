"""What processes tell one another: queries and samples, to the last bit, and nothing else."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import parts
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.parts import decoded, digest_of, encoded, framed, unframed
from dpfc_cli.privacy.queries import ClassGrams, Gram, Query
from tests.support import every_query

N, M, D = 43, 3, 4
FACTS = Facts(n=N, m=M, d=D, k=2)
RNG = np.random.default_rng(8)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = RNG.integers(-1, M, size=(N, 2)).astype(np.int32)
SAMPLE = RNG.random(N) < 0.5
CHAIN = (Clip(2.5), Centre(RNG.normal(size=D)), Clip(1.0), Linear(RNG.normal(size=(D, D))))
QUERIES = [replace(query, chain=CHAIN) for query in {type(each): each for each in every_query(FACTS)}.values()]  # type: ignore[type-var]


def test_a_message_holds_the_query_and_a_sample_of_any_size_to_the_last_bit() -> None:
    many = np.random.default_rng(9).random(2**20 + 3) < 0.5
    for query in QUERIES:
        for sample in (None, SAMPLE, many) if query is QUERIES[0] else (None, SAMPLE):
            found, taken = decoded(encoded(query, sample), FACTS if sample is None else replace(FACTS, n=len(sample)))
            check(found, FACTS)
            assert encoded(found, taken) == encoded(query, sample)
            assert (taken is None) == (sample is None)
            assert sample is None or np.array_equal(taken, sample)  # type: ignore[arg-type]


def test_a_query_has_one_digest_and_another_one_has_another() -> None:
    whole = ClassGrams((Clip(0.5),))
    assert digest_of(whole) == digest_of(ClassGrams((Clip(0.5),)))
    chains = [(Clip(0.25),), *((Centre(np.full(D, value)), Clip(0.5)) for value in (0.0, 1.0))]
    others: list[Query] = [whole, Gram((Clip(0.5),)), replace(whole, stop=2), *map(ClassGrams, chains)]
    assert len({digest_of(query) for query in others}) == len(others)


def with_said(**changed: Any) -> bytes:
    said, rest = unframed(encoded(QUERIES[0], None))
    return framed(said | changed, bytes(rest))


WHOLE = encoded(QUERIES[0], None)
HOSTILE = {
    "nothing that was made here": b"not a message",
    "nothing": b"",
    "a pickle": pickle.dumps({"kind": "gram"}),
    "a length beyond its end": b"\xff" * 8,
    "values that are nested too deeply": (60_000).to_bytes(4, "big") + b"[" * 60_000,
    "values that are no object": framed([], b""),  # type: ignore[arg-type]
    "too many values": with_said(more="a" * 2**16),
    "another kind": with_said(kind="everything"),
    "another step": with_said(chain=[{"step": "eval"}]),
    "more steps than arrays": with_said(chain=[{"step": "linear"}] * 3000),
    "fields of another query": with_said(kind="gradient"),
    "a field too many": with_said(plain={"constant": 0.0, "scale": 1.0}),
    "a sample that is not there": with_said(sampled=True),
    "bytes too few": WHOLE[:-1],
    "bytes too many": WHOLE + b"\0",
}


def test_a_message_that_holds_no_query_of_the_core_is_refused() -> None:
    for message in HOSTILE.values():
        with pytest.raises(ValueError, match="holds no query"):
            decoded(message, FACTS)


def test_values_that_break_a_proof_are_seen() -> None:
    for wrong in (-1.0, 10**400, float("nan"), True):
        query, _ = decoded(with_said(plain={"constant": wrong}), FACTS)
        with pytest.raises(ValueError, match="not positive"):
            check(query, FACTS)


def test_one_of_each_of_the_core_has_a_name_of_its_own_in_messages() -> None:
    assert len(parts.KINDS) == len({type(query) for query in QUERIES}) == 8
