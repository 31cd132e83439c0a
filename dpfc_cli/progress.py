"""Progress that nobody asked for: a bar where somebody looks, in a terminal or in a notebook.

Functions take `progress`. `show` is what they call if it is not given.
"""

import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from dpfc_cli.errors import printable

if TYPE_CHECKING:
    import rich.progress

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total). The stage may be the name of a file, and what is done bytes of it."""

DELAY = 0.5
"""Seconds. What ends earlier has no bar."""
EVERY = 0.1
"""Seconds between two pictures of a bar."""
wanted = True
interrupt: Callable[[], None] | None = None
"""Called whenever there is progress: the command line has a Ctrl-C that must not be lost."""
_stage: str | None = None
_bar: "rich.progress.Progress | None" = None
_due = 0.0
"""When the bar is drawn again."""


def show(stage: str, done: int, total: int | None) -> None:
    """Show how much of a stage is done. The bar of the stage before goes."""
    global _stage, _bar, _due
    if interrupt is not None:
        interrupt()
    if stage != _stage:
        close()
        _stage, _bar, _due = stage, _bar_of(stage, done) if wanted else None, monotonic() + DELAY
    if _bar is not None:
        _bar.update(_bar.task_ids[0], completed=done, total=total)
        if (now := monotonic()) >= _due:
            _bar.start()
            _bar.refresh()
            _due = now + EVERY
    if total is not None and done >= total:
        close()


def close() -> None:
    global _stage, _bar
    if _bar is not None and _bar.live.is_started:
        _bar.stop()
    _stage = _bar = None


def _bar_of(stage: str, done: int) -> "rich.progress.Progress | None":
    """A bar that is not drawn yet. What an earlier run has done is in no rate. None: nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # A notebook shows it as text: its own widgets are of a package that may be missing.
    console = Console(stderr=True, force_terminal=_in_notebook() or None, force_jupyter=False)
    if not console.is_terminal:
        return None
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
    bar = Progress(*columns, console=console, transient=True, get_time=monotonic, **quiet)
    bar.add_task(printable(stage), total=None, completed=done)
    return bar


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
