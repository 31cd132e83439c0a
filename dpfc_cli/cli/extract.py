"""`dpfc extract`: pictures through a frozen backbone into a feature set."""

import re
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfc_cli.backbones import BACKBONES, POOLINGS, PRECISIONS, PREPROCESS, UNPOOLED
from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.cli.classes import class_names

if TYPE_CHECKING:
    from dpfc_cli.backbones import Backbone
    from dpfc_cli.features.manifest import Manifest
    from dpfc_cli.features.writer import FeatureWriter, Task
    from dpfc_cli.images import Geometry, ImageSet

DTYPES = ("float16", "float32")
ON_ERROR = ("refuse", "null")
MOST_HELD_OUT = 0.9
WHAT, HOW, WORK = "What", "How", "The work"


@command("extract", when_stopped="Finished shards are kept: run the same command to go on.")
def extract(
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar10, cifar100, imagenet, imagefolder:PATH, parquet:PATH or "
            "webdataset:PATH. The last two also take patterns, 'train-{0000..0099}.tar'.",
            rich_help_panel=WHAT,
        ),
    ],
    model: Annotated[str, typer.Option(help=f"Backbone: {', '.join(BACKBONES)}.", rich_help_panel=WHAT)] = "scattering",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Local files of the data set: their folder or its parent. Otherwise they are downloaded.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="For imagefolder, parquet and webdataset: the classes, a public fact; names (comma-separated, or a "
            "file with one a line; of folders, all that there are), or for webdataset and parquet their number.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Only so many pictures of each split, from all over it: a trial.", rich_help_panel=WHAT
        ),
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Where there is no test split: about this part of the training pictures becomes it, such as 0.1. "
            "Each picture's own name decides (in parquet its place).",
            rich_help_panel=WHAT,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Checkpoint: a file, or hf:OWNER/NAME. Default: the model's own.", rich_help_panel=HOW),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help=f"Which vector is the feature: {', '.join(POOLINGS)}. Default: the model's own; of scattering, none "
            f"for pictures of up to {UNPOOLED} pixels a side, mean for larger ones.",
            rich_help_panel=HOW,
        ),
    ] = None,
    preprocess: Annotated[
        str, typer.Option(help=f"Preprocessing: {', '.join(PREPROCESS)}.", rich_help_panel=HOW)
    ] = "paper",
    image_size: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="For models without a preprocessing of their own: resize and crop to this side.",
            rich_help_panel=HOW,
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help=f"Of the computation: {', '.join(PRECISIONS)}.", rich_help_panel=HOW)
    ] = "float32",
    dtype: Annotated[
        str, typer.Option(help=f"Stored precision: {', '.join(DTYPES)}.", rich_help_panel=HOW)
    ] = "float16",
    on_error: Annotated[
        str,
        typer.Option(
            help="A picture that cannot be decoded (or a feature beyond the dtype): refuse, or keep it as a null "
            "record, which adds nothing to a training.",
            rich_help_panel=HOW,
        ),
    ] = "refuse",
    out: Annotated[
        str | None,
        typer.Option(
            help="Name (or path) of the feature set, which is repeated in its heads' cards. Default: DATASET-MODEL, or "
            "FOLDER-MODEL.",
            rich_help_panel=WORK,
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Pictures a step. Default: the model's.", rich_help_panel=WORK)
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=99_999, help="Shards per split. Default: by size.", rich_help_panel=WORK)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="i/N: make the i-th part of the shards, beside N-1 other processes or machines that share the "
            "folder; the last to end completes the set. Default: by jax.distributed, if JAX_COORDINATOR_ADDRESS is "
            "set.",
            rich_help_panel=WORK,
        ),
    ] = None,
) -> None:
    """Compute features of a data set's pictures and store them as a feature set.

    Shards that an earlier, interrupted run finished are kept: the same command goes on where it stopped.
    """
    from dpfc_cli import backbones, images
    from dpfc_cli.errors import UserError, counted, unknown

    for kind, value, known in (
        ("dtype", dtype, DTYPES),
        ("precision", precision, PRECISIONS),
        ("way to treat errors", on_error, ON_ERROR),
    ):
        if value not in known:
            raise unknown(kind, value, known)
    part = _task(task)
    _check_part(hold_out)
    # Known before a single byte is fetched or read.
    backbones.check(model, pool, preprocess, weights)
    named = class_names(classes)
    images.check(dataset, data_dir, named)
    geometry = _geometry(dataset, model, preprocess, image_size)
    if on_error == "null" and geometry is None and not images.small(dataset):
        raise UserError(
            "Without a size to bring them to, the first picture would decide which others are null records.",
            "Give --image-size, or leave out --on-error.",
        )

    from dpfc_cli import extraction
    from dpfc_cli.features.writer import FeatureWriter, already_complete, asserted
    from dpfc_cli.sources.classes import check_classes

    part = part or extraction.distributed()
    with display.stages("Opening the data set", "B" if images.small(dataset) else "files") as advance:
        source = images.open_images(dataset, data_dir, geometry, named, advance)
    check_classes(source.classes, source.origin == "inferred")
    source = _limited(source if hold_out is None else images.held_out(source, hold_out), limit)
    first = next(iter(source.splits.values()))
    with display.stages("Loading the model", "B") as advance:
        backbone = backbones.load(
            model,
            first.image_shape,
            pool,
            preprocess=preprocess,
            weights=weights,
            batch=batch,
            precision=precision,
            prepared=first.prepared,
            progress=advance,
        )
    tolerant = on_error == "null"
    options = {"spread": limit, "hold_out": hold_out, "on_error": on_error if tolerant else None}
    identity = extraction.identity_of(source, backbone, dtype, geometry, **options)
    manifest = extraction.manifest_of(source, backbone, dtype, identity)
    if out is None:
        own = pool in (None, backbones.own_pool(model, first.image_shape))
        out = _name(_named_after(dataset), model, None if own else pool, preprocess, hold_out, limit)
    folder = places.named(out)
    if already_complete(folder, identity):
        display.say(f"'{folder}' is complete already; delete it to make it anew.")
        report(folder, asserted(folder, manifest))
        return
    rows = {name: split.n for name, split in source.splits.items()}
    writer = FeatureWriter(
        folder,
        rows=rows,
        dim=backbone.dim,
        dtype=dtype,
        labels_per_record=1,
        identity=identity,
        shards=shards,
        task=part,
        tolerant=tolerant,
    )
    with closing(writer):
        if writer.resumed:
            display.say(f"Going on with '{folder}': {counted(len(writer.missing), 'shard')} still to be made.")
        _run(writer, source, backbone, tolerant)
        finished = writer.finish(manifest)
    if finished is None:
        display.say("This part is done. The other parts are not: the last to end completes the set.")
        return
    report(folder, finished)


def _run(writer: "FeatureWriter", source: "ImageSet", backbone: "Backbone", tolerant: bool) -> None:
    from dpfc_cli import extraction
    from dpfc_cli.errors import counted

    started = time.monotonic()
    with display.meter("Extracting", "images") as advance:
        count = extraction.run(writer, source, backbone, tolerant, advance)
    taken = time.monotonic() - started
    display.say(f"{counted(count, 'image')} in {taken:,.1f} s ({count / taken:,.0f} images/s).")


def _check_part(hold_out: float | None) -> None:
    from dpfc_cli.errors import UserError

    if hold_out is not None and not 0 < hold_out < MOST_HELD_OUT:
        raise UserError(
            f"--hold-out must lie between 0 and {MOST_HELD_OUT}, not at {hold_out:g}.",
            "Give the part of the training pictures to evaluate on, such as 0.1.",
        )


def _task(task: str | None) -> "Task | None":
    """(i, N) of 'i/N'."""
    from dpfc_cli.errors import UserError

    if task is None:
        return None
    i, slash, count = task.partition("/")
    if not (slash and i.isdecimal() and count.isdecimal() and 1 <= int(i) <= int(count)):
        raise UserError(
            f"--task '{task}' is not i/N with i from 1 to N.",
            "Give for instance 1/4, 2/4, 3/4 and 4/4 to four processes.",
        )
    return int(i), int(count)


def _geometry(dataset: str, model: str, preprocess: str, image_size: int | None) -> "Geometry | None":
    """What pictures of many sizes are brought to."""
    from dpfc_cli import backbones, images
    from dpfc_cli.errors import UserError

    if image_size is None:
        return None if images.small(dataset) else backbones.geometry_of(model, preprocess)
    if images.small(dataset):
        raise UserError(
            f"The pictures of '{dataset}' have one size already; an image size is for those of many.",
            "Leave out --image-size; the backbone's own preprocessing resizes.",
        )
    own = backbones.geometry_of(model, preprocess)
    if own is not None:
        raise UserError(
            f"'{model}' looks at squares of {own.crop} pixels; an image size is for models that look at any.",
            "Leave out --image-size, or choose another --preprocess.",
        )
    return images.Geometry(resize=image_size, crop=image_size)


def _limited(source: "ImageSet", limit: int | None) -> "ImageSet":
    if limit is None:
        return source
    return replace(source, splits={name: split.spread(limit) for name, split in source.splits.items()})


def _named_after(dataset: str) -> str:
    """The data set's name; of one that is named with its place, the folder's or the file's."""
    kind, colon, path = dataset.partition(":")
    if not colon:
        return kind
    place = Path(path).expanduser()
    # A pattern takes its name from the folder, as in import.
    place = place if place.exists() else place.parent
    name = place.resolve().stem if place.is_file() else place.resolve().name
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or kind


def _name(after: str, model: str, pool: str | None, preprocess: str, hold_out: float | None, limit: int | None) -> str:
    """What a set is called unless the user says otherwise: its data set, its model and what is not the default."""
    parts = [after, model]
    parts += [pool] if pool is not None else []
    parts += [preprocess] if preprocess != PREPROCESS[0] else []
    parts += [f"holdout{hold_out:g}"] if hold_out is not None else []
    parts += [f"limit{limit}"] if limit is not None else []
    return "-".join(str(part) for part in parts)


def report(folder: Path, manifest: "Manifest") -> None:
    """What a feature set is, as a table."""
    from dpfc_cli.errors import counted
    from dpfc_cli.training.warn import warnings_of_width

    splits = "; ".join(
        f"{name} {split.n:,} in {counted(len(split.shards), 'shard')}"
        for name, split in sorted(manifest.splits.items(), reverse=True)
    )
    imported = manifest.backbone.get("name") == "imported"
    said = {
        "asserted": "asserted by you",
        "inferred": "inferred from the data: assert with --classes" + (" and --labels-per-record" if imported else ""),
    }
    origin = said.get(manifest.origin, "the data set's own")
    display.facts(
        f"Feature set {folder}",
        [
            ("backbone", str(manifest.backbone.get("name"))),
            (
                "feature",
                f"{manifest.backbone.get('feature') or 'pooling ' + str(manifest.backbone.get('pooling', 'unknown'))}, "
                f"{manifest.dim} dimensions, {manifest.dtype}",
            ),
            ("records", splits),
            (
                "classes",
                f"{len(manifest.classes)} ({origin}); {counted(manifest.labels_per_record, 'label')} per record",
            ),
        ],
    )
    for warning in warnings_of_width(manifest.dim):
        display.warn(warning)
    if "test" not in manifest.splits:
        display.warn(
            "there is no test split for dpfc evaluate. "
            + ("Import test_x and test_y beside train_x and train_y." if imported else "Extract with --hold-out 0.1.")
        )
    display.say(f"Next: dpfc train --epsilon 1 --features {places.said(folder)}")
