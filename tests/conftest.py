"""What the tests of several rooms share."""

import signal
from collections.abc import Iterator

import pytest

from dpfc_cli.privacy import passes


@pytest.fixture(autouse=True)
def several_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tests of core and solvers a pass takes several blocks, as those of real data do.

    Their sizes are two, because a function is compiled anew for each.
    """
    if request.path.parent.name in ("privacy", "methods"):
        monkeypatch.setattr(passes, "block_rows", lambda facts: 16 if facts.records < 640 else 256)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT stops this process and the ones it starts, even if the tests themselves run in the background.

    A shell without job control, and `nohup`, start a process that ignores SIGINT. Its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
