"""The order of one extraction: pictures in, a feature set out, with decoding, device and disk at work at once.

While the device computes a batch, the next ones are decoded and the last one is written. A shard's bytes depend on its
own pictures and its own first record alone, so that a run that was killed, or several that share the work, end with the
same files as an undisturbed one on the same kind of device.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfc_cli import images
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.writer import FeatureWriter, PlannedShard, Task

if TYPE_CHECKING:
    from dpfc_cli.backbones import Backbone

LIBRARIES = ("jax", "numpy", "pillow", "h5py")
Advance = Callable[[int, int], None]
Wanted = Iterator[tuple[PlannedShard, images.Split, int, int]]


def identity_of(
    source: images.ImageSet, backbone: "Backbone", dtype: str, geometry: images.Geometry | None, **other: Any
) -> dict[str, Any]:
    """What a feature set is made of and how: a set of another identity is not gone on with. other: options that change
    the features or the records; None is the default, and left out.
    """
    return {
        "dataset": source.name,
        "listing": {name: split.listing for name, split in source.splits.items()},
        "backbone": backbone.describe(),
        "preparation": None if geometry is None else geometry.describe(),
        "dtype": dtype,
        **({"classes": list(source.classes)} if source.renumbered else {}),
        **{name: value for name, value in other.items() if value is not None},
    }


def manifest_of(source: images.ImageSet, backbone: "Backbone", dtype: str, identity: dict[str, Any]) -> Manifest:
    """The manifest of a set to be made, as yet without shards."""
    from dpfc_cli import __version__

    versions = {"dpfc": __version__, **{name: version(name) for name in LIBRARIES}}
    description = {"dataset": source.name, "identity": identity}
    return Manifest(
        classes=source.classes,
        dim=backbone.dim,
        dtype=dtype,
        labels_per_record=1,
        origin=source.origin,
        splits={},
        backbone=backbone.describe(),
        source=description,
        versions=versions,
    )


def distributed() -> Task | None:
    """The part of this process under `jax.distributed`, which is set up here if JAX_COORDINATOR_ADDRESS asks for it."""
    import jax

    if os.environ.get("JAX_COORDINATOR_ADDRESS") and not jax.distributed.is_initialized():
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"JAX_COORDINATOR_ADDRESS is set, but jax.distributed cannot be set up: {error}",
                "Start the processes with a launcher that JAX knows (Slurm, Open MPI), or unset it and use --task.",
            ) from error
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return None
    return jax.process_index() + 1, jax.process_count()


def run(
    writer: FeatureWriter,
    source: images.ImageSet,
    backbone: "Backbone",
    tolerant: bool = False,
    advance: Advance | None = None,
) -> int:
    """Make the writer's shards; returns how many pictures that were. advance(done, total): pictures.

    tolerant: a picture that cannot be decoded becomes a null record, as do features beyond the dtype (if the writer is
    tolerant, too); otherwise UserError.
    """
    missing = writer.missing
    total, done = sum(planned.rows for planned in missing), 0
    with closing(images.batches(_wanted(writer, missing, source, backbone.batch), tolerant)) as decoded:
        for planned, computed in itertools.groupby(_computed(decoded, backbone), key=lambda found: found[0]):
            labels = source.splits[planned.split].labels
            with writer.shard(planned) as sink:
                for _, batch, features in computed:
                    stop = batch.start + len(features)
                    sink.append(features, labels[batch.start : stop], batch.null)
                    done += len(features)
                    if advance:
                        advance(done, total)
    return done


def _wanted(writer: FeatureWriter, missing: list[PlannedShard], source: images.ImageSet, rows: int) -> Wanted:
    """The batches of the shards that are ours, a shard being claimed when its first batch is to be decoded."""
    for planned in missing:
        if writer.claim(planned):
            for start in range(planned.start, planned.stop, rows):
                yield planned, source.splits[planned.split], start, min(start + rows, planned.stop)


def _computed(
    decoded: Iterator[tuple[PlannedShard, images.Batch]], backbone: "Backbone"
) -> Iterator[tuple[PlannedShard, images.Batch, np.ndarray]]:
    """Each batch with its features, the device working one batch ahead."""
    waiting = None
    for planned, batch in decoded:
        submitted = (planned, batch, backbone.submit(batch.pixels))
        if waiting is not None:
            yield _fetched(*waiting)
        waiting = submitted
    if waiting is not None:
        yield _fetched(*waiting)


def _fetched(
    planned: PlannedShard, batch: images.Batch, submitted: Any
) -> tuple[PlannedShard, images.Batch, np.ndarray]:
    return planned, batch, np.asarray(submitted)
