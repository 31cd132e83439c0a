"""Passes of this room take several blocks, the last one shorter, as those of real data sets do."""

import pytest

from dpfc_cli.privacy import curator
from dpfc_cli.privacy.oracle import Facts


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curator, "block_rows", few_rows)


def few_rows(facts: Facts) -> int:
    return max(1, 2 * facts.n // 5)
