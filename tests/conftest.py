"""What rooms' tests share without asking."""

import pytest

from dpfc_cli.privacy import curator


@pytest.fixture(autouse=True)
def several_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tests of core and solvers a pass takes several blocks, the last one shorter, as those of real data do."""
    if request.path.parent.name in ("privacy", "methods"):
        monkeypatch.setattr(curator, "block_rows", lambda facts: max(1, 2 * facts.n // 5))
