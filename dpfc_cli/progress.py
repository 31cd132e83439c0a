"""Progress that nobody asked for: a bar where somebody looks, in a terminal or in a notebook.

Functions take `progress`. `show` is what they call if it is not given.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total). The stage may be the name of a file, and what is done bytes of it."""

DELAY = 0.5
"""Seconds. What ends earlier has no bar."""
wanted = True
"""The command line has bars of its own."""
_stage: str | None = None
_bar: Any = None


def show(stage: str, done: int, total: int | None) -> None:
    """Show how much of a stage is done. The bar of the stage before goes."""
    global _stage, _bar
    if not wanted or not (_in_notebook() or sys.stderr.isatty()):
        return
    if stage != _stage:
        close()
        with warnings.catch_warnings():
            # A notebook without ipywidgets gets a bar of text.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
        _stage, _bar = stage, tqdm(desc=stage, leave=False, delay=DELAY, unit="", unit_scale=True)
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
