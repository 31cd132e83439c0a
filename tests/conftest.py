"""What the tests of several rooms share."""

import functools
import math
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
import typer.testing

from dpfc_cli import points
from dpfc_cli.privacy import poisson
from tests import instead

# They would decide how wide and how coloured everything is that tests read.
for _name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)

BLOCKS = {"privacy": ((5, 2), (16, 4), (639, 16), (math.inf, 256)), "methods": ((199, 16), (math.inf, 1024))}
"""For some rooms: the most records of a set, and the records of a block; elsewhere there are 256. A function is
compiled anew for each size.
"""
FINE = poisson.FINE


def losses_in(interval: float) -> None:
    """Let ε of samples be computed in such steps."""
    poisson.FINE = interval
    poisson.epsilon_for.__defaults__ = (*(poisson.epsilon_for.__defaults__ or ())[:1], interval)


# Outside the core they are coarse. That gives a bound, too, in a fortieth of the time.
losses_in(poisson.COARSE)


@pytest.fixture(scope="module", autouse=True)
def several_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A pass takes several blocks, mostly with a shorter last one, as with real data."""
    name = request.path.parent.name
    sizes = BLOCKS.get(name, ((math.inf, 256),))
    losses_in(FINE if name == "privacy" else poisson.COARSE)
    with pytest.MonkeyPatch.context() as patch:
        instead.block_rows(patch, lambda facts: next(rows for most, rows in sizes if facts.records <= most))
        yield


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Says how many bytes the machine has to spare: 16 GB at first, however full it is with what runs beside it."""

    def spare(size: float) -> None:
        for place in ("memory", "evaluation.private", "extraction.arrays", "images.tables", "training.machine"):
            monkeypatch.setattr(f"dpfc_cli.{place}.free_memory", lambda: size)

    spare(16e9)
    return spare


@pytest.fixture
def slides(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of somebody else writes documents as .pptx and pictures as .txt. Its .odp is broken."""
    site = tmp_path_factory.mktemp("site")
    (site / "slides.py").write_text("slides = lambda of: of.title.upper()\ntext = lambda picture: repr(picture)\n")
    about = site / "dpfc_slides-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dpfc-slides\nVersion: 0.1\n")
    endings = "document.pptx = slides:slides\npicture.txt = slides:text\ndocument.odp = slides:gone\n"
    (about / "entry_points.txt").write_text(f"[dpfc.documents]\n{endings}")
    monkeypatch.syspath_prepend(str(site))
    points.installed.cache_clear()
    points.added.cache_clear()
    yield
    points.installed.cache_clear()
    points.added.cache_clear()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT stops this process and the ones it starts, even if the tests themselves run in the background.

    A shell without job control, and `nohup`, start a process that ignores SIGINT. Its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


PARSERS: dict[tuple[typer.Typer, int], Any] = {}


@pytest.fixture(scope="module", autouse=True)
def built_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """The parser of the command line is built once, and anew for more commands. Many commands take
    less time than that.
    """
    known, build = PARSERS, typer.main.get_command
    if request.path.name == "test_outside.py":
        # Its methods come and go.
        yield
        return

    @functools.wraps(build)
    def get_command(app: typer.Typer) -> Any:
        key = (app, len(app.registered_commands))
        if key not in known:
            known[key] = build(app)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", get_command)
        patch.setattr(typer.testing, "_get_command", get_command)
        yield
