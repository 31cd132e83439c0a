"""Decoding ahead keeps the order, uses bounded memory, and leaves no threads behind."""

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images.pictures import UnreadableError
from dpfc_cli.images.prefetch import AHEAD, batches
from tests.support import refuses


class Source:
    """n pictures: picture i is full of i, and `bad` ones cannot be decoded. highest: the end of what was read."""

    shape = (2, 2, 3)

    def __init__(self, n: int, bad: frozenset[int] = frozenset()) -> None:
        self.n, self.bad, self.highest = n, bad, 0

    def __call__(self, start: int, stop: int) -> np.ndarray:
        self.highest = max(self.highest, stop)
        for i in range(start, stop):
            if i in self.bad:
                raise UnreadableError(f"picture {i}", "")
        return np.broadcast_to(np.arange(start, stop, dtype=np.uint8)[:, None, None, None], (stop - start, 2, 2, 3))


def wanted(source: Any, rows: int) -> list[tuple[int, Any, int, int]]:
    return [(at, source, at, min(at + rows, source.n)) for at in range(0, source.n, rows)]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("rows", [1, 7, 8, 64, 1000])
def test_batches_come_in_order_whoever_decodes_them(rows: int, workers: int) -> None:
    source = Source(100)
    found = list(batches(wanted(source, rows), workers=workers))
    assert [key for key, _ in found] == list(range(0, 100, rows))
    np.testing.assert_array_equal(np.concatenate([b.pixels for _, b in found])[:, 0, 0, 0], np.arange(100))
    assert not any(batch.null.any() for _, batch in found)


def test_no_more_is_decoded_ahead_than_said() -> None:
    source = Source(200)
    with closing(batches(wanted(source, 10), workers=2)) as found:
        for done in range(5):
            next(found)
            assert source.highest <= 10 * (done + 1 + AHEAD)


def test_each_picture_that_cannot_be_decoded_is_named_and_the_others_are_as_they_were() -> None:
    source = Source(100, frozenset((0, 33, 34, 99)))
    found = [batch for _, batch in batches(wanted(source, 20), workers=4)]
    named = {batch.start + row: reason for batch in found for row, reason in batch.broken.items()}
    assert named == {i: f"picture {i}" for i in source.bad}
    null = np.concatenate([batch.null for batch in found])
    assert set(np.flatnonzero(null)) == source.bad
    pixels = np.concatenate([batch.pixels for batch in found])[:, 0, 0, 0]
    np.testing.assert_array_equal(pixels, np.where(null, 0, np.arange(100)))


def test_a_source_that_fails_is_not_a_null_record() -> None:
    class Gone(Source):
        def __call__(self, start: int, stop: int) -> np.ndarray:
            raise UserError("the disk is gone", "")

    with refuses("bad-value"):
        list(batches(wanted(Gone(4), 2)))


@pytest.mark.parametrize("end", [KeyboardInterrupt, RuntimeError])
def test_no_thread_runs_on_after_an_interruption(end: type[BaseException]) -> None:
    source, before = Source(1000), threading.active_count()

    def interrupted() -> None:
        with closing(batches(wanted(source, 10), workers=4)) as found:
            next(found)
            raise end

    with pytest.raises(end):
        interrupted()
    assert threading.active_count() == before
    assert source.highest < 1000
