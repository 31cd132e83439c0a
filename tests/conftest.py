"""What the tests of several rooms share."""

import math
import signal
from collections.abc import Iterator

import pytest

from dpfc_cli.privacy import passes

BLOCKS = {
    "privacy": ((5, 2), (16, 4), (639, 16), (math.inf, 256)),
    "methods": ((199, 16), (math.inf, 256)),
}
"""For each room: the most records of a set, and the records of a block. A function is compiled anew for each size."""


@pytest.fixture(autouse=True)
def several_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tests of core and methods a pass takes several blocks, mostly with a shorter last one, as with real
    data.
    """
    sizes = BLOCKS.get(request.path.parent.name)
    if sizes is not None:
        monkeypatch.setattr(
            passes, "block_rows", lambda facts: next(rows for most, rows in sizes if facts.records <= most)
        )


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT stops this process and the ones it starts, even if the tests themselves run in the background.

    A shell without job control, and `nohup`, start a process that ignores SIGINT. Its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
