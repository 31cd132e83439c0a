"""Several threads that compute with BLAS and LAPACK, each with one thread of these.

The threads of one product or decomposition wait for one another most of the time, and more so if other programs use the
processors. Its last bits also depend on how many there are.
"""

import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from threadpoolctl import ThreadpoolController

Given = TypeVar("Given")
Made = TypeVar("Made")
MOST = 8
"""The most threads. Callers let fewer work or wait where what is held at once would not fit into what they count."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    work: Callable[[Given], Made],
    items: Iterable[Given],
    most: int,
    waiting: int | None = None,
    blas: int | None = 1,
) -> Iterator[Made]:
    """`work` of each item, in order. Ctrl-C does not wait for what is computed. What it raises is raised here.

    items: they are asked for in this thread. most: how many threads there may be. 0: this thread does the work of an
    item when its result is asked for. waiting: how many items there may be whose result was not taken. None: two for
    each thread. blas: how many threads BLAS and LAPACK have in each. None: as many as they have.
    """
    threads, made = max(1, min(cores(), MOST, most)), deque["Future[Made]"]()
    with _blas("scipy.linalg" in sys.modules).limit(limits=blas, user_api="blas"):
        if most == 0:
            yield from map(work, items)
            return
        # It takes long to import, and many commands start no thread.
        from concurrent.futures import ThreadPoolExecutor

        pool, wait = ThreadPoolExecutor(threads), True
        try:
            for item in items:
                made.append(pool.submit(work, item))
                if len(made) >= (2 * threads if waiting is None else waiting):
                    yield made.popleft().result()
            while made:
                yield made.popleft().result()
        except (KeyboardInterrupt, GeneratorExit):
            # LAPACK may compute for an hour, and nobody takes what it makes.
            wait = False
            raise
        finally:
            pool.shutdown(wait, cancel_futures=not wait)


@functools.cache
def _blas(scipy: bool) -> "ThreadpoolController":
    """What limits the libraries that are loaded. SciPy has a BLAS of its own."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
