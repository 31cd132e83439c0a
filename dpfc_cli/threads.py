"""Several threads that compute with BLAS and LAPACK, each with one thread of these.

The threads of one product or decomposition wait for one another most of the time, and more so if other programs use the
processors. Its last bits also depend on how many there are.
"""

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Given = TypeVar("Given")
Made = TypeVar("Made")
MOST = 8
"""The most threads. What each of them holds is counted as memory."""


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(work: Callable[[Given], Made], items: Iterable[Given], most: int) -> Iterator[Made]:
    """`work` of each item, in order.

    Args:
        work: computes. What it raises is raised here.
        items: what it is called with. They are asked for in this thread, two for each thread ahead at most.
        most: how many threads there may be.

    """
    threads, waiting = max(1, min(cores(), MOST, most)), deque[Future[Made]]()
    with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
