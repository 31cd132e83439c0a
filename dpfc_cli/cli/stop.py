"""Ctrl-C that is not lost. SIGTERM, as `timeout`, Slurm and systemd send it, does the same.

Python turns Ctrl-C into a KeyboardInterrupt at once, wherever the program is. In a callback of the garbage collector,
such as JAX has one, Python drops exceptions: the program would go on. So Ctrl-C is also remembered, and raised again
where work makes progress.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

pressed = False
code = 130
"""How the process ends then."""
stands = ""
"""What a command says after Ctrl-C, unless the KeyboardInterrupt has a `Note`. It changes while the command works."""


def stopped(number: int) -> str:
    """What is said of Ctrl-C before a command has begun, or when it has ended. number: the exit code."""
    if "--json" not in sys.argv:
        return "Error: Stopped.\n"
    name = "terminated" if number == 143 else "stopped"
    error = {"code": name, "exit_code": number, "message": "Stopped.", "notes": [], "remedy": "", "fields": {}}
    return f"{json.dumps({'error': error, 'warnings': []})}\n"


def end_at_once() -> None:
    """Until `listen`, Ctrl-C ends the process. Nothing has begun then, and modules that are half imported say nothing
    that helps.
    """
    _on_signals(_end)


def listen() -> None:
    """Remember Ctrl-C from now on, unless the process was started to ignore it."""
    _on_signals(_press)
    sys.unraisablehook = _dropped


def finish(said: bool) -> None:
    """Ctrl-C ends the process at once from now on, unless it was started to ignore it: only the ending is left.

    said: an error was said already. There is one.
    """
    _on_signals((lambda number, frame: os._exit(128 + number)) if said else _end)


def check() -> None:
    """KeyboardInterrupt if Ctrl-C was pressed."""
    if pressed:
        raise KeyboardInterrupt


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, stopped(128 + number).encode())
    os._exit(128 + number)


def _dropped(what: "sys.UnraisableHookArgs") -> None:
    """Called for what Python drops. Of a Ctrl-C it would show a traceback, though it is raised again."""
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)


def _press(number: int, frame: FrameType | None) -> None:
    global pressed, code
    pressed, code = True, 128 + number
    if number == signal.SIGTERM:
        # `timeout` sends it twice, and the second one must not disturb what the first one has to say.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
