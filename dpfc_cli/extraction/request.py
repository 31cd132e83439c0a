"""What is wanted of an extraction, or of another way to make a feature set, before a byte is read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dpfc_cli import points
from dpfc_cli.annotations.broken import MOST_NULL
from dpfc_cli.backbones import BACKBONES, MODELS, POOLINGS, PRECISIONS, PREPROCESS
from dpfc_cli.errors import conflict, missing, parameter, quoted, warned
from dpfc_cli.options import Classes, Options, engine_option, listed, option, progress_option, said
from dpfc_cli.places import Remote, exists, place_of
from dpfc_cli.progress import Progress

WHAT, HOW, WORK = "Records", "Features", "Work"
"""Panels of the help."""
AUTO = "auto"
PATTERN = "*?[{"
"""Characters of a source that names several files."""
SOURCES = tuple(points.added("dpfc.sources"))
"""The data sets, and the formats before a path."""
MOST_HELD_OUT, SMALLEST_SIDE = 0.9, 8


class ExtractionWarning(UserWarning):
    """Something that the user of an extraction should know."""


def _warn(text: str) -> None:
    warned(text, ExtractionWarning)


@dataclass(frozen=True, kw_only=True)
class Making(Options):
    """What all ways to make a feature set have in common."""

    classes: Classes | None = option(
        "The classes, a public fact: their number, their names (between commas), or a file with a name on each line. "
        "For folders name all that there are.",
        WHAT,
        metavar="CLASSES",
    )
    label_column: str | None = option(
        "Where the labels stand, if not in a usual place: a column, or a key of WebDataset's .json.",
        WHAT,
        metavar="NAME",
    )
    table: Path | str | None = option(
        "A CSV or JSON-lines file with labels or persons, wherever it lies: a line for each picture of a folder, or "
        "for each slide. Default, for pictures: metadata.csv or metadata.jsonl beside them.",
        WHAT,
        metavar="FILE",
        urls=True,
    )
    file_column: str | None = option(
        "The column of that table that names the picture or the slide, if it has no usual name.",
        WHAT,
        metavar="NAME",
    )
    hold_out: float | None = option(
        "If there is no test split: make one of about this fraction of the training records, such as 0.1. Each "
        "record's own name decides, or its place if it has no name. If persons are known: a fraction of the persons.",
        WHAT,
        metavar="FRACTION",
        low=0,
        high=MOST_HELD_OUT,
        open=True,
    )
    each_record_is_a_person: bool = option(
        "Protect single records, although some seem to be of one person. Without it dpfc asks, or refuses.",
        WHAT,
        default=False,
    )
    subgroups: str | None = option(
        "Columns to keep, with their values, public facts, such as 'sex=f,m;site=a,b': 'dpfc evaluate --subgroups sex' "
        "shows figures of each value. A record with another value is in none.",
        WHAT,
        metavar="COLUMNS",
    )
    population: str | None = option(
        "Whose records these are. Nobody may be in two populations. A set without a name counts in all of them.",
        WHAT,
        metavar="NAME",
    )
    on_error: Literal["refuse", "null"] = option(
        "What to do with a picture or a slide that cannot be read, or a feature beyond the dtype. refuse: name all of "
        "them, and make no set. null: keep them as null records, which add nothing to a training.",
        WHAT,
        default="refuse",
    )
    most_null: float | None = option(
        "With ‹on_error› null: the largest share of a split's records that may become null records. Beyond it no set "
        "is made. Default: 0.05.",
        WHAT,
        metavar="SHARE",
        low=0,
        high=1,
    )
    progress: Progress | None = progress_option()
    warn: Callable[[str], None] | None = option(
        "Told what will go badly. Default: an `ExtractionWarning`.", typed=False
    )

    @property
    def warned(self) -> Callable[[str], None]:
        return self.warn or _warn

    @property
    def tolerant(self) -> bool:
        return self.on_error == "null"

    @property
    def share(self) -> float | None:
        """The largest share of a split's records that may become null records; None: none may."""
        return (MOST_NULL if self.most_null is None else self.most_null) if self.tolerant else None

    def check_there(self, **more: Path | None) -> None:
        """UserError that names all files of options that are not there. more: of further options."""
        named = {**more, "classes": self.classes, "table": self.table}
        places = {name: place_of(each) for name, each in named.items() if isinstance(each, str | Path | Remote)}
        gone = [
            f"{parameter(name)} {quoted(each)}"
            for name, each in places.items()
            if not (set(str(each)) & set(PATTERN) or exists(each.expanduser()))
        ]
        if gone:
            names = f" Names of {parameter('classes')} stand between commas."
            remedy = f"Name what is there.{names if parameter('classes') in ' '.join(gone) else ''}"
            raise missing(f"There is nothing at {', '.join(gone)}.", remedy)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most_null is not None and not self.tolerant:
            raise conflict(
                f"{parameter('most_null')} is for null records, and none are made here.",
                f"Leave it out, or add {parameter('on_error')} null.",
            )


@dataclass(frozen=True, kw_only=True)
class Extraction(Making):
    """An extraction as it is asked for."""

    source: str = field(
        kw_only=False,
        metadata=said(
            f"The pictures: {listed([each + 'PATH' * each.endswith(':') for each in SOURCES])}. parquet and webdataset "
            "also take patterns, such as 'train-{0000..0099}.tar'.",
            argument=True,
            choices=SOURCES,
        ),
    )
    out: Path | str | None = option(
        "Name, path or URL of the feature set. Its heads repeat the name. Default: the kind of source, the model, and "
        "what is not the default.",
        metavar="SET",
        urls=True,
    )
    data_dir: Path | str | None = option(
        "The folder of the data set's files, or its parent. Default: they are downloaded.", WHAT
    )
    limit: int | None = option(
        "For a trial: only this many pictures of each split, taken from all over it.", WHAT, low=1
    )
    group_by: str | None = option(
        "Which pictures are of one person, so that persons are protected and not single pictures. folder:LEVEL: a "
        "folder below the class, such as folder:1 for CLASS/PERSON/PICTURE. name:REGEX: the first group in "
        "parentheses, searched for in the picture's name. column:NAME: of parquet, of metadata.csv or the table, "
        "or a key of WebDataset's .json, or an element of DICOM.",
        WHAT,
        metavar="RULE",
    )
    model: str = option(
        f"The backbone: {listed(MODELS)}.", HOW, metavar="NAME", default="scattering", choices=BACKBONES
    )
    weights: str | None = option(
        "A file with weights of your own, for a model that takes them. Default: the model's published weights.",
        HOW,
        metavar="CHECKPOINT",
    )
    pool: str | None = option(
        f"Which vector is the feature: {listed(POOLINGS)}. Default: the model's own. For scattering: none if "
        "that is at most 8,192 dimensions, mean if it is more.",
        HOW,
        metavar="NAME",
        choices=POOLINGS,
    )
    preprocess: str | None = option(
        f"How pictures are resized and cropped for the model: {listed(PREPROCESS)}. Default: the model's own: native "
        "for models of clinical fields and of other libraries, paper for all others.",
        HOW,
        metavar="NAME",
        choices=PREPROCESS,
    )
    image_size: int | None = option(
        "For models that take pictures of any size: resize and crop to this many pixels a side.",
        HOW,
        metavar="PIXELS",
        low=SMALLEST_SIDE,
    )
    window: tuple[float, float] | None = option(
        "For grey pictures of more than 8 bits: the values that become black and white, such as 0,4095 for 12 bits. A "
        "public fact: take it from the device, not from the pictures. Default: all values that a file can hold.",
        HOW,
        metavar="LOW,HIGH",
    )
    exif: bool = option(
        "Turn pictures as their EXIF orientation says. Backbones were trained without that.", HOW, default=False
    )
    precision: str = option(
        f"Precision of the computation: {listed(PRECISIONS)}, or {AUTO}: the fastest on this machine. "
        "The set's fingerprint tells which.",
        HOW,
        metavar="NAME",
        default="float32",
        choices=(*PRECISIONS, AUTO),
    )
    dtype: Literal["float16", "float32"] = option("Precision of the stored features.", HOW, default="float16")
    batch: int | None = option("Pictures per call of the model. Default: the model chooses.", WORK, low=1)
    on: str | None = engine_option(WORK)
