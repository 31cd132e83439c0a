"""What the tests of several rooms share."""

import signal
from collections.abc import Iterator

import pytest

from dpfc_cli.privacy import passes


@pytest.fixture(autouse=True)
def several_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tests of core and solvers a pass takes several blocks, the last one shorter, as those of real data do."""
    if request.path.parent.name in ("privacy", "methods"):
        monkeypatch.setattr(passes, "block_rows", lambda facts: max(1, 2 * facts.records // 5))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT stops this process and the ones it starts, even if the tests themselves run in the background.

    A shell without job control, and `nohup`, start a process that ignores SIGINT. Its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
