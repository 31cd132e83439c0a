"""Progress that nobody asked for: a bar where somebody looks, in a terminal or in a notebook.

Functions take `progress`. `show` is what they call if it is not given.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

from dpfc_cli.errors import printable

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total). The stage may be the name of a file, and what is done bytes of it."""

DELAY = 0.5
"""Seconds. What ends earlier has no bar."""
EVERY = 10.0
"""Seconds between lines where nobody looks."""
LARGE = 10_000
"""Counts of more than this are shown as 12.3k."""
wanted = True
say: Callable[[str], None] | None = None
"""Told a line now and then where nobody looks: the command line has it."""
interrupt: Callable[[], None] | None = None
"""Called whenever there is progress: the command line has a Ctrl-C that must not be lost."""
_stage: str | None = None
_bar: Any = None


class _Lines:
    """A file that takes a bar as lines."""

    def write(self, text: str) -> None:
        if say is not None and text.strip():
            say(text.strip())

    def flush(self) -> None:
        pass


def show(stage: str, done: int, total: int | None) -> None:
    """Show how much of a stage is done. The bar of the stage before goes."""
    global _stage, _bar
    if interrupt is not None:
        interrupt()
    looked = sys.stderr.isatty() or _in_notebook()
    if not wanted or not (looked or say):
        return
    if stage != _stage:
        close()
        with warnings.catch_warnings():
            # A notebook without ipywidgets gets a bar of text.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
        look: dict[str, Any] = {"delay": DELAY}
        if not looked:
            shape = "{desc}: {n_fmt} of {total_fmt} ({rate_fmt}, {remaining} left)"
            look = {"delay": EVERY, "mininterval": EVERY, "miniters": 1, "file": _Lines(), "bar_format": shape}
        look |= {"unit": "", "unit_scale": total is None or total >= LARGE}
        # What an earlier run has done is in no rate.
        _bar = tqdm(desc=printable(stage), initial=done, leave=False, **look)
        _stage = stage
    _bar.total = total
    _bar.update(done - _bar.n)
    if total is not None and done >= total:
        close()


def close() -> None:
    global _stage, _bar
    if _bar is not None:
        _bar.close()
    _stage = _bar = None


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
