"""Ctrl-C that is not lost.

Python turns Ctrl-C into a KeyboardInterrupt at once, wherever the program is. In a callback of the garbage collector,
such as JAX has one, Python drops exceptions: the program would go on. So Ctrl-C is also remembered, and raised again
where work makes progress.
"""

import signal
from types import FrameType

pressed = False


def listen() -> None:
    """Remember Ctrl-C from now on, unless the process was started to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _press)


def check() -> None:
    """KeyboardInterrupt if Ctrl-C was pressed."""
    if pressed:
        raise KeyboardInterrupt


def _press(number: int, frame: FrameType | None) -> None:
    global pressed
    pressed = True
    raise KeyboardInterrupt
