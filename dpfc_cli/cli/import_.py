"""`dpfc import`: features that something else computed, into a feature set."""

from pathlib import Path
from typing import Annotated

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.cli.classes import class_names
from dpfc_cli.cli.extract import DTYPES, report


@command("import", when_stopped="Finished shards are kept: run the same command to go on.")
def import_(
    path: Annotated[
        Path,
        typer.Argument(
            help="A folder with {train,test}_{x,y}.npy; an .npz, .safetensors or .h5 with those names, or with "
            "'features' and 'labels'; a .parquet file, a folder of them, or a pattern."
        ),
    ],
    out: Annotated[str | None, typer.Option(help="Name (or path) of the feature set. Default: PATH's name.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="The classes, a public fact: their number, or names (comma-separated, or a file with one a line)."
        ),
    ] = None,
    labels_per_record: Annotated[
        int | None, typer.Option(min=1, help="The most labels a record can have, a public fact.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="What the features are called, where not as usual.")] = None,
    label_column: Annotated[str | None, typer.Option(help="What the labels are called, where not as usual.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"Stored precision: {', '.join(DTYPES)}. Default: the source's.")
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, max=99_999, help="Shards per split. Default: by size.")] = None,
) -> None:
    """Take features that something else computed, of pictures, texts or anything, into a feature set."""
    from dpfc_cli.features.importing import import_features

    named = path if path.exists() else path.parent
    name = named.resolve().stem if named.is_file() else named.resolve().name
    folder = places.named(name if out is None else out)
    with display.stages("Opening", "records") as advance:
        features, made = import_features(
            path,
            folder,
            classes=class_names(classes),
            labels_per_record=labels_per_record,
            dtype=dtype,
            shards=shards,
            progress=advance,
            column=column,
            label_column=label_column,
        )
    if not made:
        display.say(f"'{folder}' is complete already; delete it to make it anew.")
    report(folder, features.manifest)
