"""`dpfc extract`: pictures through a frozen backbone into a feature set."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpfc_cli.backbones import BACKBONES, POOLINGS, PRECISIONS, PREPROCESS, UNPOOLED
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.classes import typed_classes
from dpfc_cli.cli.extracted import POPULATION, report, unless_persons
from dpfc_cli.cli.help import flag_of, listed

WHAT, HOW, WORK = "Pictures", "Features", "Work"


@command("extract", when_stopped="This run made nothing. What earlier runs finished is kept.")
def extract(
    source: Annotated[
        str | None,
        typer.Argument(
            help="The pictures: ‹data sets›. parquet and webdataset also take patterns, such as "
            "'train-{0000..0099}.tar'.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The same as SOURCE.", rich_help_panel=WHAT)
    ] = None,
    model: Annotated[
        str, typer.Option(help=f"The backbone: {', '.join(BACKBONES)}.", rich_help_panel=HOW, metavar="NAME")
    ] = "scattering",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the data set's files, or its parent. Default: they are downloaded.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="The classes, a public fact, for imagefolder, parquet, arrow and webdataset: names between commas, or "
            "a file with a name on each line. For folders name all that there are. For the others their number is "
            "enough.",
            rich_help_panel=WHAT,
            metavar="CLASSES",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(
            help="Where the labels stand, if not in a usual place: a column of parquet or of an image folder's "
            "metadata.csv, or a key of WebDataset's .json.",
            rich_help_panel=WHAT,
            metavar="NAME",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a trial: only this many pictures of each split, taken from all over it.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="If there is no test split: make one of about this fraction of the training pictures, such as 0.1. "
            "Each picture's own name decides (in parquet its place). With --group-by: a fraction of the persons.",
            rich_help_panel=WHAT,
            metavar="FRACTION",
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            help="Which pictures are of one person, so that persons are protected and not single pictures. "
            "folder:LEVEL: a folder below the class, such as folder:1 for CLASS/PERSON/PICTURE. name:REGEX: the first "
            "group in parentheses, searched for in the picture's name. column:NAME: of parquet, of metadata.csv, or a "
            "key of WebDataset's .json, or an element of DICOM. "
            "table:FILE: a CSV or JSON-lines file with file_name and a column of persons.",
            rich_help_panel=WHAT,
            metavar="RULE",
        ),
    ] = None,
    each_record_is_a_person: Annotated[
        bool,
        typer.Option(
            "--each-record-is-a-person",
            help="Protect single records, although some pictures seem to be of one person. Without it dpfc asks.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    on_error: Annotated[
        str,
        typer.Option(
            help="What to do with a picture that cannot be decoded, or a feature beyond the dtype. refuse: name all "
            "such pictures, and make no set. null: keep them as null records, which add nothing to a training.",
            rich_help_panel=WHAT,
            metavar="NAME",
        ),
    ] = "refuse",
    most_null: Annotated[
        float | None,
        typer.Option(
            help="With --on-error null: the largest share of a split's pictures that may become null records. Beyond "
            "it no set is made. Default: 0.05.",
            rich_help_panel=WHAT,
            metavar="SHARE",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint: a file, a folder, or hf:OWNER/NAME. Default: the model's published weights.",
            rich_help_panel=HOW,
            metavar="CHECKPOINT",
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            help=f"Which vector is the feature: {', '.join(POOLINGS)}. Default: the model's own. For scattering: none "
            f"for pictures of up to {UNPOOLED} pixels a side, mean for larger ones.",
            rich_help_panel=HOW,
            metavar="NAME",
        ),
    ] = None,
    preprocess: Annotated[
        str | None,
        typer.Option(
            help=f"How pictures are resized and cropped for the model: {', '.join(PREPROCESS)}. Default: the model's "
            "own: native for models of clinical fields and convnext, paper for all others.",
            rich_help_panel=HOW,
            metavar="NAME",
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="For models that take pictures of any size: resize and crop to this many pixels a side.",
            rich_help_panel=HOW,
            metavar="PIXELS",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="For grey pictures of more than 8 bits: the values that become black and white, such as 0,4095 for 12 "
            "bits. A public fact: take it from the device, not from the pictures. Default: all values that a file can "
            "hold.",
            rich_help_panel=HOW,
            metavar="LOW,HIGH",
        ),
    ] = None,
    exif: Annotated[
        bool,
        typer.Option(
            "--exif",
            help="Turn pictures as their EXIF orientation says. Backbones were trained without that.",
            rich_help_panel=HOW,
        ),
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            help=f"Precision of the computation: {', '.join(PRECISIONS)}.", rich_help_panel=HOW, metavar="NAME"
        ),
    ] = "float32",
    dtype: Annotated[
        str,
        typer.Option(help="Precision of the stored features: float16, float32.", rich_help_panel=HOW, metavar="NAME"),
    ] = "float16",
    out: Annotated[
        str | None,
        typer.Option(
            help="Name or path of the feature set. Its heads repeat the name. Default: the name of the data set or "
            "folder, the model, and what is not the default.",
            rich_help_panel=WORK,
            metavar="SET",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Pictures per call of the model. Default: the model chooses.", rich_help_panel=WORK),
    ] = None,
    population: Annotated[str | None, typer.Option(help=POPULATION, metavar="NAME", rich_help_panel=WHAT)] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, max=99_999, help="Files (shards) per split. Default: by size.", rich_help_panel=WORK),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Make the I-th of N parts of the shards, beside N-1 other processes or machines that share the "
            "folder. The last one to end completes the set. Default: what jax.distributed says, if "
            "JAX_COORDINATOR_ADDRESS is set.",
            rich_help_panel=WORK,
            metavar="I/N",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute features of a data set's pictures and store them as a feature set.

    An interrupted run leaves the shards that it finished. The same command makes the others.
    """
    from dpfc_cli import extraction, images

    wanted = _the_source(source, dataset)
    part = _part(task)
    units = {extraction.OPENING: "B" if images.small(wanted) else "files", extraction.LOADING: "B"}
    units[extraction.EXTRACTING] = units[extraction.LOOKING] = "images"

    def make(single: bool) -> extraction.Extracted:
        with display.stages(extraction.OPENING, lambda stage: units[stage.partition(":")[0]]) as progress:
            return extraction.extract(
                wanted,
                model=model,
                out=out,
                data_dir=data_dir,
                classes=typed_classes(classes),
                limit=limit,
                hold_out=hold_out,
                group_by=group_by,
                weights=weights,
                pool=pool,
                preprocess=preprocess,
                image_size=image_size,
                window=_window(window),
                exif=exif,
                label_column=label_column,
                precision=precision,
                dtype=dtype,
                on_error=on_error,
                most_null=most_null,
                batch=batch,
                population=population,
                shards=shards,
                task=part,
                progress=progress,
                warn=_warn,
                each_record_is_a_person=single,
            )

    made = unless_persons(make, each_record_is_a_person)
    _remark(made)
    report(made.folder, made.features, made=not made.was_complete, as_json=as_json)


def _the_source(source: str | None, dataset: str | None) -> str:
    """SOURCE or --dataset SOURCE."""
    from dpfc_cli.errors import UserError

    if source is not None and dataset is not None:
        raise UserError(
            f"The pictures are named twice, as '{source}' and as --dataset '{dataset}'.",
            "Name them once: dpfc extract SOURCE.",
            code="conflict",
            parameter="source",
        )
    found = source if source is not None else dataset
    if found is None:
        from dpfc_cli.images import DATASETS

        raise UserError(
            "No pictures are named.",
            f"Write dpfc extract SOURCE. SOURCE is {listed(DATASETS)}.",
            code="missing",
            parameter="source",
        )
    return found


def _part(task: str | None) -> tuple[int, int] | None:
    """(i, N) of 'i/N'. That i is one of 1 to N is checked by the extraction."""
    from dpfc_cli.errors import UserError

    if task is None:
        return None
    i, _, count = task.partition("/")
    if not (i.isdecimal() and count.isdecimal()):
        raise UserError(
            f"--task '{task}' is not i/N with i from 1 to N.",
            "Give for instance 1/4, 2/4, 3/4 and 4/4 to four processes.",
            code="bad-value",
            parameter="task",
        )
    return int(i), int(count)


def _window(given: str | None) -> tuple[float, float] | None:
    """(low, high) of 'LOW,HIGH'. That the numbers make sense is checked by the extraction."""
    from dpfc_cli.errors import UserError

    if given is None:
        return None
    try:
        low, high = map(float, given.split(","))
    except ValueError:
        raise UserError(
            f"--window '{given}' is not LOW,HIGH.",
            "Give the grey values that are black and white, such as --window 0,4095.",
            code="bad-value",
            parameter="window",
        ) from None
    return low, high


def _warn(text: str) -> None:
    from dpfc_cli.errors import spelled

    display.warn(spelled(text, lambda name: flag_of(extract, name)))


def _remark(made: Any) -> None:
    """What an extraction did, on stderr."""
    from dpfc_cli.errors import counted

    if made.was_complete:
        return
    if made.resumed is not None:
        display.say(f"Went on with '{made.folder}': {counted(made.resumed, 'shard')} still to be made.")
    rate = made.images / max(made.seconds, 1e-9)
    display.say(f"{counted(made.images, 'image')} in {made.seconds:,.1f} s ({rate:,.0f} images/s).")
    for line in made.null[:1]:
        display.warn(line)
    for line in made.null[1:]:
        display.say(line)
    if made.features is None:
        display.say("This part is done. The other parts are not: the last to end completes the set.")
