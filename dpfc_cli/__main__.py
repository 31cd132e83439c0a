"""`dpfc`, and `python -m dpfc_cli`: Ctrl-C ends it in one line, even while its modules are imported."""

import gc
import os

from dpfc_cli.cli import stop


def main() -> None:
    """The console script."""
    stop.end_at_once()
    # A start makes a million objects that stay. By default they are looked through hundreds of times.
    gc.set_threshold(20_000, 20)
    # The threads of OpenBLAS turn for 2²⁸ cycles of the processor after each product. 2²⁰ are as fast.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    from dpfc_cli.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
