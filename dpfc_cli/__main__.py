"""`dpfc`, and `python -m dpfc_cli`: Ctrl-C ends it in one line, even while its modules are imported."""

import atexit
import gc
import os
import sys

from dpfc_cli.cli import stop


def main() -> None:
    """The console script."""
    stop.end_at_once()
    # The modules of a training make 200,000 objects that stay. By default they are looked through 300 times.
    gc.set_threshold(20_000, 20)
    # The threads of OpenBLAS turn for 2²⁸ cycles of the processor after each product. 2²⁰ are as fast.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    codes = list[int]()
    # What is registered first is called last.
    atexit.register(_leave, codes)
    from dpfc_cli.cli.app import main as run

    try:
        run()
    except SystemExit as end:
        codes.append(int(end.code or 0))
        raise


def _leave(codes: list[int]) -> None:
    """End the process, when all others were told of its end. Python would take all objects apart, one by one."""
    for code in codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
