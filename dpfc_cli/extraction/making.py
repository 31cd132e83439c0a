"""The shards of a set: while the device computes a batch, the next ones are decoded and the last one is written."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import numpy as np

from dpfc_cli import backbones, images
from dpfc_cli.features.shards import PlannedShard
from dpfc_cli.features.writer import FeatureWriter

if TYPE_CHECKING:
    from dpfc_cli.backbones import Backbone
from dpfc_cli.errors import Note

Advance = Callable[[int, int], None]
Decoded = Iterator[tuple[PlannedShard, images.Batch]]
Wanted = Iterator[tuple[PlannedShard, images.Split, int, int]]


class _UnfinishedError(Exception):
    """A shard is not to be finished."""


def run(
    writer: FeatureWriter,
    source: images.ImageSet,
    backbone: "Backbone",
    broken: images.Broken,
    advance: Advance | None = None,
    look: Advance | None = None,
) -> int:
    """Make the shards that the writer still lacks.

    If too many pictures are broken, the set cannot be made. Then nothing more is computed: features are expensive, and
    would be made in vain if the pictures are corrected. The pictures that are left are decoded, so that the user learns
    of all broken ones at once. The shards that were finished stay.

    Args:
        writer: of the set. It must be tolerant if `broken` allows any null record.
        source: the pictures.
        backbone: what computes the features.
        broken: the pictures that cannot be decoded are added to it.
        advance: told the pictures done and those to be done.
        look: told the same while the pictures are only decoded.

    Returns:
        How many pictures were computed.

    Raises:
        UserError: too many pictures are broken. It names them.

    """
    missing = writer.missing
    total, done = sum(planned.rows for planned in missing), 0
    with closing(images.batches(_wanted(writer, missing, source, backbone.batch, broken))) as decoded:
        for planned, computed in itertools.groupby(_computed(decoded, backbone, broken), key=lambda found: found[0]):
            split = source.splits[planned.split]
            with suppress(_UnfinishedError), writer.shard(planned) as sink:
                for _, batch, features in computed:
                    stop = batch.start + len(features)
                    digests = split.digests(batch.start, stop)
                    sink.append(features, split.labels[batch.start : stop], batch.null, digests)
                    done += len(features)
                    if advance:
                        advance(done, total)
                if broken.too_many and sink.filled < planned.rows:
                    raise _UnfinishedError
        if broken.too_many:
            _look(decoded, broken, done, total, look)
            raise broken.refusal()
    return done


def _look(decoded: Decoded, broken: images.Broken, done: int, total: int, look: Advance | None) -> None:
    """Decode what is left, to find all broken pictures."""
    try:
        for planned, batch in decoded:
            broken.add(planned.split, batch)
            done += len(batch.pixels)
            if look:
                look(done, total)
            if broken.full:
                break
    except KeyboardInterrupt as stopped:
        stopped.add_note(Note(broken.first))
        raise


def _wanted(
    writer: FeatureWriter, missing: list[PlannedShard], source: images.ImageSet, rows: int, broken: images.Broken
) -> Wanted:
    """The batches of the shards that this process makes. It claims a shard when the first batch is to be decoded. It
    claims none for a mere look at the pictures.
    """
    for planned in missing:
        if broken.too_many or writer.claim(planned):
            for start in range(planned.start, planned.stop, rows):
                yield planned, source.splits[planned.split], start, min(start + rows, planned.stop)


def _computed(
    decoded: Decoded, backbone: "Backbone", broken: images.Broken
) -> Iterator[tuple[PlannedShard, images.Batch, np.ndarray]]:
    """Each batch with its features, until too many pictures are broken."""

    def sound() -> Iterator[tuple[tuple[PlannedShard, images.Batch], np.ndarray]]:
        for planned, batch in decoded:
            broken.add(planned.split, batch)
            if broken.too_many:
                break
            yield (planned, batch), batch.pixels

    for (planned, batch), features in backbones.computed(backbone, sound()):
        yield planned, batch, features
