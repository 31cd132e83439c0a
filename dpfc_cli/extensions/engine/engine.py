"""`--on ray`: what the driver asks of workers.

The driver has the curator, the ledger, the noise and the answers. Workers sum parts of the records, or compute shards,
which the driver writes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from dpfc_cli.annotations.broken import Broken
from dpfc_cli.backbones import Backbone
from dpfc_cli.extensions.engine.cluster import Job, Workers, workers
from dpfc_cli.extensions.engine.work import Adding, Extracting, Made
from dpfc_cli.extraction.making import Advance
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import SHARD_BYTES, PlannedShard
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.images.sets import ImageSet
from dpfc_cli.privacy import passes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Reals
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.privacy.parts import Sum, encoded
from dpfc_cli.privacy.queries import Grid, Query
from dpfc_cli.privacy.sums import Summed

PARTS, SMALL = 4, 2**24
"""Parts for each worker, if their sums have at most so many bytes. Of larger ones each has one."""


class Together:
    """Workers sum together (`training.summing.Summing`)."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._verified = set[tuple[str, str]]()

    def verify(self, features: FeatureSet, split: str, facts: Facts, progress: Progress | None = None) -> None:
        if (known := (features.manifest.id, split)) in self._verified:
            return
        count = self._parts(facts)
        job = self._pool.job(partial(Adding, features, split, facts, Reals()))
        for done, _ in enumerate(self._of_parts(job, count, None), 1):
            if progress:
                progress(done, count)
        self._verified.add(known)

    @contextmanager
    def begun(
        self,
        features: FeatureSet,
        split: str,
        facts: Facts,
        grid: Grid,
        side: int | None = None,
        memory: float | None = None,
    ) -> Iterator[Sum]:
        job = self._pool.job(partial(Adding, features, split, facts, grid, side, memory))

        def summed(query: Query, over: Summed, sample: np.ndarray | None = None) -> np.ndarray:
            total, done = np.zeros(query.shape(facts)), 0
            count, spans = self._parts(facts, total.nbytes), dict[int, range]()
            message = self._pool.shared(encoded(query, sample))
            for number, (part, spans[number]) in self._of_parts(job, count, message, total.nbytes):
                total += part
                if over.progress:
                    own = passes.part_of(facts, number, count)
                    done += own.stop - own.start
                    over.progress(done, facts.records)
            passes.chained([spans[number] for number in range(count)], facts)
            return total

        yield summed

    def _parts(self, facts: Facts, size: int = 0) -> int:
        """Into how many parts the records are cut, for a sum of so many bytes."""
        blocks = -(-facts.records // passes.block_rows(facts))
        return max(1, min(blocks, len(self._pool) * (PARTS if size <= SMALL else 1)))

    def _of_parts(self, job: Job, count: int, message: Any, size: int = 0) -> Iterator[tuple[int, Any]]:
        tasks = {(count, number): partial(_same, number, count, message) for number in range(count)}
        return ((number, answer) for (_, number), answer in self._pool.each(job, tasks, size, own=True))


def _same(*given: Any) -> tuple[Any, ...]:
    return given


class Engine:
    """The engine of `training.summing` and of `extraction.making`."""

    @contextmanager
    def summing(self) -> Iterator[Together]:
        with workers() as pool:
            yield Together(pool)

    def make_shards(
        self,
        writer: FeatureWriter,
        source: ImageSet,
        load: Callable[[], Backbone],
        broken: Broken,
        advance: Advance,
        look: Advance,
    ) -> int:
        missing = {planned.file: planned for planned in writer.missing}
        total, done, seen = sum(planned.rows for planned in missing.values()), 0, 0

        def task(planned: PlannedShard) -> tuple[Any, ...]:
            part = source.splits[planned.split].part(np.arange(planned.start, planned.stop))
            return writer.sink(planned), part, broken.too_many is not None

        with workers() as pool:
            job = pool.job(partial(Extracting, load, broken.tolerant))
            tasks = {file: partial(task, planned) for file, planned in missing.items()}
            made: Made
            for file, made in pool.each(job, tasks, SHARD_BYTES):
                planned = missing[file]
                broken.add(planned.split, planned.start, made.broken)
                source.splits[planned.split].pixels.preparation.notices.update(made.notices)
                seen += planned.rows
                if made.data is not None:
                    writer.put(planned, made.data.data, made.null)
                    done += planned.rows
                if broken.full:
                    break
                (look if broken.too_many else advance)(seen if broken.too_many else done, total)
        if broken.too_many:
            raise broken.refusal()
        return done


RAY = Engine()
