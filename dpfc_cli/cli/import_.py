"""`dpfc import`: features that another program computed, into a feature set."""

from pathlib import Path
from typing import Annotated

import typer

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.classes import typed_classes
from dpfc_cli.cli.extracted import POPULATION, report, unless_persons


@command("import", when_stopped="This run made nothing. What earlier runs finished is kept.")
def import_(
    path: Annotated[
        Path,
        typer.Argument(
            help="A folder with {train,test}_{x,y}.npy; X.npy with y.npy beside it; an .npz, .safetensors or .h5 file "
            "with those names, or with 'features' and 'labels'; a .parquet file, a folder of them, or a pattern; or "
            "slides:FOLDER, with an .h5 file of patches for each slide. Labels are numbers or names of classes."
        ),
    ],
    out: Annotated[
        str | None, typer.Option(help="Name or path of the feature set. Default: PATH's name.", metavar="SET")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="The classes, a public fact: their number, names between commas, or a file with a name on each line.",
            metavar="CLASSES",
        ),
    ] = None,
    labels_per_record: Annotated[
        int | None, typer.Option(min=1, help="The most labels that a record can have, a public fact.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            help="The name of the features in PATH, if it is not a usual one. For parquet with a column for each "
            "feature: a pattern such as 'f*'.",
            metavar="NAME",
        ),
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="The name of the labels in PATH, if it is not a usual one.", metavar="NAME")
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="The name of what says which records belong to one person, n integers or texts. Default: 'groups', if "
            "PATH has it.",
            metavar="NAME",
        ),
    ] = None,
    each_record_is_a_person: Annotated[
        bool,
        typer.Option(
            "--each-record-is-a-person",
            help="Protect single records, although some records seem to be of one person. Without it dpfc asks.",
        ),
    ] = False,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="If there is no test split: make one of about this fraction of the training records, such as 0.1. "
            "The place of a record decides. If persons are known: a fraction of them.",
            metavar="FRACTION",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="For slides: a CSV file with a line for each slide: its name, its label, and whose it is.",
            metavar="FILE",
        ),
    ] = None,
    pool_by: Annotated[
        str | None,
        typer.Option(help="For slides: whose patches make a record: slide, patient. Default: slide.", metavar="NAME"),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            help="For slides, what to do with one that cannot be read: refuse, null (keep it as a record without "
            "content).",
            metavar="NAME",
        ),
    ] = "refuse",
    most_null: Annotated[
        float | None,
        typer.Option(
            help="With --on-error null: the largest share of a split's records that may become null records. "
            "Default: 0.05.",
            metavar="SHARE",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Precision of the stored features: float16, float32. Default: that of PATH.", metavar="NAME"),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=99_999, help="Files (shards) per split. Default: by size.")
    ] = None,
    population: Annotated[str | None, typer.Option(help=POPULATION, metavar="NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a feature set of features that another program computed, of pictures, of texts or of anything."""
    from dpfc_cli.extraction.importing import Imported, import_features

    def make(single: bool) -> Imported:
        with display.stages("Opening", "records") as progress:
            return import_features(
                path,
                out,
                classes=typed_classes(classes),
                labels_per_record=labels_per_record,
                dtype=dtype,
                shards=shards,
                progress=progress,
                column=column,
                label_column=label_column,
                group_column=group_column,
                table=table,
                pool_by=pool_by,
                on_error=on_error,
                most_null=most_null,
                warn=display.warn,
                population=population,
                hold_out=hold_out,
                each_record_is_a_person=single,
            )

    features, made = unless_persons(make, each_record_is_a_person)
    report(features.folder, features, made=made, as_json=as_json)
