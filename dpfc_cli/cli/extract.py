"""`dpfc extract`: pictures through a frozen backbone into a feature set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfc_cli.backbones import BACKBONES, POOLINGS
from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command

if TYPE_CHECKING:
    from dpfc_cli.features.manifest import Manifest

DTYPES = ("float16", "float32")


@command("extract", when_stopped="Finished shards are kept: run the same command to go on.")
def extract(
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar10, cifar100 or imagefolder:PATH.", rich_help_panel="What"
        ),
    ],
    model: Annotated[
        str, typer.Option(help=f"Backbone: {', '.join(BACKBONES)}.", rich_help_panel="What")
    ] = "scattering",
    pool: Annotated[
        str, typer.Option(help=f"Pooling over space: {', '.join(POOLINGS)}.", rich_help_panel="What")
    ] = "none",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Local files of the data set: their folder or its parent. Otherwise they are downloaded."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=8, help="Resize and crop the pictures of an image folder to this side.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Name (or path) of the feature set. Default: DATASET-MODEL.")] = None,
    dtype: Annotated[str, typer.Option(help=f"Stored precision: {', '.join(DTYPES)}.")] = "float16",
    shards: Annotated[int | None, typer.Option(min=1, max=99_999, help="Shards per split. Default: by size.")] = None,
) -> None:
    """Compute features of a data set's pictures and store them as a feature set.

    Shards that an earlier, interrupted run finished are kept: the same command goes on where it stopped.
    """
    import numpy as np

    import dpfc_cli
    from dpfc_cli import backbones, images
    from dpfc_cli.errors import unknown
    from dpfc_cli.features.manifest import Manifest
    from dpfc_cli.features.writer import FeatureWriter, already_complete

    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    # Known before a single byte is fetched or read.
    backbones.check(model, pool)
    with display.meter("Downloading", "B") as advance:
        source = images.open_images(dataset, data_dir, image_size, lambda _what, done, total: advance(done, total or 0))
    first = next(iter(source.splits.values()))
    backbone = backbones.load(model, first.image_shape, pool)
    identity = {
        "dataset": source.name,
        "listing": {name: split.listing for name, split in source.splits.items()},
        "backbone": backbone.describe(),
        "dtype": dtype,
    }
    default = f"{source.name}-{model}{'' if pool == 'none' else '-' + pool}"
    folder = places.named(default if out is None else out)
    if already_complete(folder, identity):
        display.say(f"'{folder}' is complete already; delete it to make it anew.")
        return
    rows = {name: split.n for name, split in source.splits.items()}
    writer = FeatureWriter(folder, rows, backbone.dim, dtype, 1, identity, shards)
    if writer.resumed:
        display.say(f"Going on with '{folder}': {len(writer.tasks)} shards are still to be made.")
    total = sum(task.stop - task.start for task in writer.tasks)
    done = 0
    with display.meter("Extracting", "images") as advance:
        for task in writer.tasks:
            split = source.splits[task.split]
            with writer.shard(task) as sink:
                for start in range(task.start, task.stop, backbone.batch):
                    stop = min(start + backbone.batch, task.stop)
                    sink.append(backbone(split.pixels(start, stop)), split.labels[start:stop])
                    done += stop - start
                    advance(done, total)
    import jax

    versions = {"dpfc": dpfc_cli.__version__, "jax": jax.__version__, "numpy": np.__version__}
    description = {"dataset": source.name, "identity": identity}
    manifest = writer.finish(
        Manifest(source.classes, backbone.dim, dtype, 1, "data set", {}, backbone.describe(), description, versions)
    )
    report(folder, manifest)


def report(folder: Path, manifest: "Manifest") -> None:
    """What a feature set is, as a table."""
    splits = "; ".join(f"{name} {split.n:,} in {len(split.shards)} shard(s)" for name, split in manifest.splits.items())
    said = {
        "asserted": "asserted by you",
        "inferred": "inferred from the data: assert with --classes and --labels-per-record",
    }
    origin = said.get(manifest.origin, "the data set's own")
    display.facts(
        f"Feature set {folder}",
        [
            ("backbone", str(manifest.backbone.get("name"))),
            (
                "feature",
                f"{manifest.dim} dimensions, {manifest.dtype}, pooling {manifest.backbone.get('pooling', 'unknown')}",
            ),
            ("records", splits),
            ("classes", f"{len(manifest.classes)} ({origin}); {manifest.labels_per_record} label(s) per record"),
        ],
    )
    display.say("Next: dpfc train --epsilon 1")
