"""A short form of the campaign of changed heads: `make torture` tries 1,000 of heads of all methods."""

from pathlib import Path

import pytest

from tests.torture import forged


def test_changed_heads_are_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", "")
    found = forged.carried_out(tmp_path, {"ls": forged.TRAININGS["ls"]}, 150, seed=0)
    assert not found.broke
    assert found.ledger == found.tried
    # Without a ledger nobody can tell that weights are others, or a date.
    assert {"claim", "releases"} <= {area for area, tried in found.tried.items() if tried >= 5}
    assert found.passed["weight"]
    assert found.passed["date"]
