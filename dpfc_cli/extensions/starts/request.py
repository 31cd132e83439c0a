"""What is wanted of class vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpfc_cli.backbones import BACKBONES
from dpfc_cli.errors import conflict, missing, parameter
from dpfc_cli.options import Classes, Options, listed, option, progress_option, said
from dpfc_cli.progress import Progress

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

CLASSIFIER, TEXT, SCORE = "From the classifier", "From text", "Score"
OF = {"prompts": "text", "rows": "classifier", "labels": "classifier", "wordnet": "classifier"}
"""Options that one source alone has."""


@dataclass(frozen=True, kw_only=True)
class ClassVectors(Options):
    """Class vectors as they are asked for."""

    features: "FeatureSet | None" = field(
        default=None,
        kw_only=False,
        metadata=said(
            "The feature set that will be trained on. It says backbone and classes, and no record of it is read. "
            "Without it ‹model› and ‹classes› say them.",
            metavar="SET",
        ),
    )
    source: Literal["text", "classifier"] = field(
        metadata=said(
            "What the vectors are made of. text: the names of the classes, by the text tower of the backbone (CLIP, "
            "SigLIP). classifier: the classifier that the backbone was trained with (AugReg, DeiT).",
            metavar="SOURCE",
            flags=("--from",),
        ),
    )
    model: str | None = option(
        f"The backbone, for features that do not say it (dpfc import): {listed(BACKBONES[1:])}.",
        metavar="NAME",
        choices=BACKBONES[1:],
    )
    classes: Classes | None = option(
        "What to call the classes of SET, in their order, if their own names are codes or numbers: names, or a file "
        "with a name on each line. Default: their own names.",
        metavar="NAMES",
    )
    out: Path | str | None = option(
        "The file to be made, ending in .safetensors. Default: SET-SOURCE.safetensors in this folder.", metavar="FILE"
    )
    prompts: Sequence[str] | Path | None = option(
        "Sentences with {} in the place of the name, such as 'a photo of a {}.', or a file with one on each line. The "
        "vectors of all sentences are averaged.",
        TEXT,
        metavar="FILE",
    )
    rows: Path | str | None = option(
        'Which rows of the classifier a class has: a file with JSON {"cat": [281, 282]}, counted from 0.',
        CLASSIFIER,
        metavar="FILE",
    )
    labels: Path | str | None = option(
        "What the rows stand for, a line for each: names between commas, or a WordNet id (n02084071). A class has the "
        "rows of its name.",
        CLASSIFIER,
        metavar="FILE",
    )
    wordnet: Path | str | None = option(
        "WordNet's index.noun and data.noun, such as /usr/share/wordnet. A class has all rows below a meaning of its "
        "name.",
        CLASSIFIER,
        metavar="FOLDER",
    )
    on: "FeatureSet | None" = option(
        "Score the vectors on this feature set. It reads records, without noise. That costs nothing only if these "
        "records are public.",
        SCORE,
        metavar="SET",
    )
    split: str = option("The split of it to score.", SCORE, metavar="NAME", default="test")
    progress: Progress | None = progress_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        lacking = [name for name in ("model", "classes") if getattr(self, name) is None]
        if self.features is None and lacking:
            raise missing(
                "No feature set is named, so it is not known what the vectors are to fit.",
                f"Name one: {parameter('features')}. Or name its backbone and its classes: "
                f"{' and '.join(map(parameter, lacking))}.",
            )
        given = [name for name in OF if getattr(self, name) is not None]
        for name in given:
            if OF[name] != self.source:
                raise conflict(
                    f"{parameter(name)} has no effect with {parameter('source')} {self.source}.",
                    f"Leave it out, or use {parameter('source')} {OF[name]}.",
                )
        if self.source == "classifier" and self.rows is None and self.labels is None:
            raise missing(
                "Nothing says what the rows of the classifier stand for.",
                f"Say it with {parameter('labels')}, or say which rows the classes have: {parameter('rows')}.",
            )
        if "rows" in given and len(given) > 1:
            raise conflict(
                f"{parameter('rows')} says which rows the classes have, and so does {parameter(given[1])}.",
                "Give one of them.",
                parameter=given[1],
            )
