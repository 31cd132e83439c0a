"""What a worker does: it sums parts of the records, or computes shards of features.

Ray loads this module in the worker's process. It has no ledger, no seed and no answers.
"""

import os
import socket
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from dpfc_cli.annotations.broken import Broken
from dpfc_cli.backbones import Backbone
from dpfc_cli.errors import UserError, conflict
from dpfc_cli.extraction.extract import make_shards
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard, ShardSink
from dpfc_cli.images.pictures import Notice
from dpfc_cli.images.sets import ImageSet, Split
from dpfc_cli.privacy import forms, parts, passes, persons, sums
from dpfc_cli.privacy.directions import Directions, Shelf, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.passes import Part
from dpfc_cli.privacy.queries import Grid
from dpfc_cli.version import code_digest


class Worker:
    """A process of the cluster. folder: where the driver works; paths begin there. cores: that the driver has."""

    def __init__(self, folder: str, cores: str) -> None:
        from dpfc_cli.cli.app import keep_compiled

        # XLA has so many threads. The last bits of features depend on their number.
        os.environ["NPROC"] = cores
        with suppress(OSError):
            os.chdir(folder)
        keep_compiled()
        self._job = 0
        self._work: Callable[..., Any] = lambda own: None

    def do(self, job: Any, own: Collection[Any], *task: Any) -> tuple[Any, Exception | None]:
        """Do a task (`cluster.Workers.each`). Returns its answer, or why there is none: Ray would write the text of an
        exception to its logs.
        """
        import ray

        try:
            if job is not None and job[0] != self._job:
                number, [make], code = job
                if code_digest("dpfc_cli") != code:
                    raise conflict("It runs another code of dpfc than the driver.", "Install the same on all machines.")
                self._work = ray.get(make)()
                self._job = number
            return self._work(own, *task), None
        except UserError as error:
            error.what = f"A worker on {socket.gethostname()}: {error.what}"
            return None, error
        except Exception:
            return None, RuntimeError(f"a worker failed: {traceback.format_exc()}")


def reached(part: Part, facts: Facts) -> range:
    """The records that a pass over a part may read and use. The last person of a part may have more records behind it,
    and those that count are used.
    """
    stop = part.stop if facts.rows is None else part.stop + passes.block_rows(facts) + persons.MOST
    return range(part.begin, min(stop, facts.records))


_verified: set[tuple[object, ...]] = set()
"""The parts of sets whose shards this process has checked."""


class Adding:
    """Sums parts of the records of a set (`privacy.parts`). For the other arguments see `training.summing`."""

    def __init__(
        self,
        features: FeatureSet,
        split: str,
        facts: Facts,
        grid: Grid,
        side: int | None = None,
        memory: float | None = None,
    ) -> None:
        from dpfc_cli.training.machine import check_devices

        check_devices()
        self._features = features.again()
        self._split, self._facts, self._grid, self._side, self._memory = split, facts, grid, side, memory
        self._shelves: dict[Any, tuple[Shelf, Any, int]] = {}

    def __call__(
        self, own: Collection[Any], number: int, count: int, message: bytes | None
    ) -> tuple[np.ndarray, range] | None:
        """The sum over a part, and the numbers of its units. message: the query, see `parts.encoded`; None: check the
        shards that the part lies in, and sum nothing.

        UserError: a shard is not what it must be. ValueError: the message holds no query that the proofs are about.
        """
        facts, part = self._facts, passes.part_of(self._facts, number, count)
        known = self._features.manifest.id, self._split, number, count
        if known not in _verified:
            # Another worker may have checked it before the charge, in another copy.
            self._features.verify(self._split, None, reached(part, facts))
            _verified.add(known)
        if message is None:
            return None
        query, sample = parts.decoded(message, facts)
        forms.check(query, facts)
        for gone in set(self._shelves).difference(own):
            self._shelves.pop(gone)[0].clear()
        stream = self._features.watched(self._features.stream(self._split, part.begin, groups=facts.rows is not None))
        over = sums.Summed(stream, facts, self._grid, directions=self._directions((count, number), part))
        return sums.partial_sum(query, over, part, sample)

    def _directions(self, key: Any, part: Part) -> Any:
        """What the sums over a part share; None if there is no room for it."""
        from dpfc_cli.training.machine import shelf_for

        if self._side is None:
            return None
        if key not in self._shelves:
            records, held = len(reached(part, self._facts)), sum(size for *_, size in self._shelves.values())
            given = self._facts, self._grid, held, self._memory, self._features.scratch
            if (shelf := shelf_for(self._side, records, *given)) is None:
                return None
            size = direction_bytes(self._facts, records, self._side, self._grid)
            self._shelves[key] = shelf, Directions(shelf), size
        return self._shelves[key][1]


class Made(NamedTuple):
    """A shard, and what is known of its pictures. data: its bytes; None: it was not made, because some are broken.
    null: the rows of null records. broken: why pictures could not be decoded, by their rows.
    """

    data: np.ndarray | None
    null: list[int]
    broken: dict[int, str]
    notices: set[Notice]


OWN = "own"
"""The name of the split that has the pictures of a task."""


class Extracting:
    """Computes shards. load: loads the backbone. tolerant: whether broken pictures become null records."""

    def __init__(self, load: Callable[[], Backbone], tolerant: bool) -> None:
        self._backbone, self._tolerant = load(), tolerant

    def __call__(self, own: object, sink: Callable[[], ShardSink], split: Split, look: bool) -> Made:
        """Make the shard of these pictures. look: they are decoded only."""
        made = Made(None, [], {}, split.pixels.preparation.notices)

        @contextmanager
        def whole(planned: PlannedShard) -> Iterator[ShardSink]:
            nonlocal made
            yield (rows := sink())
            made = made._replace(data=np.frombuffer(rows.whole(), np.uint8), null=rows.null)

        planned = PlannedShard(split=OWN, file="", start=0, stop=split.n)
        # All pictures of a shard may be null: the driver counts those of the set.
        broken = Broken("picture", {OWN: split.n + 1}, lambda *_: "", 1.0 if self._tolerant else None)
        broken.counts[OWN] += (split.n + 2) * look
        try:
            make_shards([planned], whole, ImageSet("", (), {OWN: split}), self._backbone, broken)
        except UserError:
            if not broken.too_many:
                raise
        return made._replace(broken={row: why for (_, row), why in broken.found.items()})
