"""Heads that are handed over with their set and their ledger, and what `verify` says of their rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.training import verify as checks
from dpfc_cli.training.ledger import Entry, ledger_path, read
from tests.training.starts import head_of, made

Card = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Made:
    """The folder, the set and its rows, and its heads: a private one, and two that continue it."""

    folder: Path
    features: FeatureSet
    rows: tuple[Entry, ...]
    heads: tuple[Path, ...]

    def card(self, number: int = 1) -> Card:
        """The card of the head of that row, to be changed."""
        found: Card = json.loads(json.dumps(Head.load(self.heads[number - 1]).card))
        return found


def of_ledger(card: Card, shelf: Made, rows: Sequence[Entry] | None = None, number: int = 1) -> dict[str, str]:
    """What the checks of a ledger find, each with its reason. The card is that of the head of a row."""
    digest = shelf.rows[number - 1].sha256
    assert digest is not None
    found = checks._of_ledger(card, digest, shelf.rows if rows is None else rows, shelf.features)
    return {each.what: f"{each.result}: {each.why}" for each in found}


def with_row(rows: Sequence[Entry], number: int, **changed: Any) -> list[Entry]:
    return [replace(row, **changed) if at == number else row for at, row in enumerate(rows, start=1)]


def handed_over(folder: Path) -> Made:
    """A set and its heads, trained in an empty folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DPFC_HEADS", str(folder / "heads"))
        features = made(folder, "set", 0)
        heads = [head_of(features, epsilon=1.0).path]
        for epsilon in (2.0, 0.5):
            heads.append(head_of(features, epsilon=epsilon, public_head=heads[-1]).path)
    rows = tuple(read(ledger_path(features.folder)))
    return Made(folder=folder, features=features, rows=rows, heads=tuple(heads))
