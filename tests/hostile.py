"""What hostile and odd files hold: every node of a JSON text in turn, replaced by every odd value."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import settings
from msgspec.structs import replace

from dpfc_cli.features.manifest import Manifest, SplitFacts
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger.standing import standing_of
from dpfc_cli.ledger.totals import Account
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Claim, Privacy
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.records.card import Card, Standing, card_of
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.card import card_of as card_made
from dpfc_cli.training.card import charge_of_training
from tests.support import set_with

Place = tuple[str | int, ...]
MISSING = object()
DATE = "2026-01-02T03:04:05+00:00"

ODD: list[object] = [
    *(None, True, False, 0, 1, -1, 2**70, -(2**70), 0.5, -1.5, 1e308, 5e-324),
    *("", "x", "é\u202e\x1b[2J", "\ud800", "a\0b", "..", "../x", "x" * 5_000),
    *([], {}, [None], [[]], {"a": 1}, ["x", "x"], MISSING),
]
"""Values that a node of a file may have instead of its own."""
RAW = ["NaN", "1e400", "-Infinity", "9" * 5_000, "[" * 500 + "]" * 500, "[" * 100_000, '{"a":' * 100_000]
"""Texts that stand where a value belongs."""
_HERE = "the place of a raw text"


def places(tree: object, so_far: Place = ()) -> Iterator[Place]:
    """Every node of a tree. Of lists the first two items."""
    yield so_far
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    for key, item in items:
        yield from places(item, (*so_far, key))


def altered(tree: object, place: Place) -> Iterator[str]:
    """The JSON texts of a tree with something odd at one place: a third of them, others at each place. `make torture`
    takes all.
    """
    odd: list[tuple[object, str | None]] = [*((value, None) for value in ODD), *((_HERE, text) for text in RAW)]
    if settings.get_current_profile_name() != "torture":
        odd = odd[crc32(repr(place).encode()) % 3 :: 3]
    for value, text in odd:
        if place or value is not MISSING:
            made = json.dumps(_with(tree, place, value))
            yield made if text is None else made.replace(json.dumps(_HERE), text)


def _with(tree: object, place: Place, value: object) -> object:
    if not place:
        return value
    copy: Any = json.loads(json.dumps(tree))
    within = copy
    for key in place[:-1]:
        within = within[key]
    if value is MISSING:
        del within[place[-1]]
    else:
        within[place[-1]] = value
    return copy


def calibrated(
    method: str, privacy: Privacy, adjacency: Adjacency = "zero-out", k: int = 1, **options: object
) -> Calibrated:
    return calibrate(METHODS[method], Facts(n=100, m=3, d=2, k=k, adjacency=adjacency), options, privacy)


def standing(claim: Claim = "private", epsilon: float = 1.0) -> Standing:
    """What a card says of the ledger, of the first training there."""
    private = claim == "private"
    spent, none = epsilon if private else None, int(not private)
    return Standing(charge="0" * 32, private=1 - none, unprotected=none, epsilon=spent, exact=True, unit="record")


def card_as_written(made: Calibrated) -> dict[str, Any]:
    """The card of that training, as its head's file has it."""
    solution = Solution(chain=(), weight=np.zeros((2, 3)), bias=np.zeros(3))
    features = set_of(made.facts)
    charge = replace(charge_of_training(made, features, "h.safetensors", "me", None), id="0" * 32)
    said = standing_of(Account(ledger=Path("ledger.sqlite"), population=None, charges=(charge,)), charge)
    card: dict[str, Any] = json.loads(card_made(made, features, DATE, solution, said).json)
    return card


def a_card(
    classes: Sequence[str] = "abc",
    privacy: Privacy | None = None,
    facts: Mapping[str, Any] | None = None,
    **features: object,
) -> Card:
    """A card of these classes, with other facts and features than it should have. privacy: None: without noise."""
    values = card_as_written(calibrated("dp-ls", privacy or Privacy()))
    values["facts"] |= {"m": len(classes), **(facts or {})}
    values["features"] |= json.loads(json.dumps(features))
    return card_of({**values, "classes": list(classes)})


def with_card(head: Head, card: Mapping[str, Any]) -> bytes:
    """The file of a head, with these values in place of its card."""
    data = encoded(head)
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"]["card"] = json.dumps(card)
    changed = json.dumps(header, sort_keys=True).encode()
    changed += b" " * (-len(changed) % 8)
    return len(changed).to_bytes(8, "little") + changed + data[start:]


def set_of(facts: Facts) -> FeatureSet:
    """A feature set of those records, without a file."""
    return set_with(
        Manifest(
            classes=tuple("abc"[: facts.m]),
            dim=facts.d,
            dtype="float16",
            labels_per_record=facts.k,
            origin="asserted",
            splits={"train": SplitFacts(n=facts.n, shards=())},
            backbone={"name": "x"},
            source={"identity": {"listing": {"train": "digest"}}},
            id="0" * 32,
        )
    )
