"""What is wanted of an import, before a byte is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.extraction.request import HOW, WHAT, Making
from dpfc_cli.options import option, said


@dataclass(frozen=True, kw_only=True)
class Import(Making):
    """An import as it is asked for."""

    path: Path | str | Mapping[str, object] = field(
        kw_only=False,
        metadata=said(
            "A folder with {train,test}_{x,y}.npy, or X.npy and y.npy; an .npz, .safetensors or .h5 file with "
            "those names, or with 'features' and 'labels'; a .parquet or .csv file, a folder of them, or a pattern; or "
            "slides:FOLDER, with an .h5 file of patches for each slide. In Python also a dictionary of arrays with "
            "those names. Labels are numbers or names of classes.",
            argument=True,
            metavar="PATH",
        ),
    )
    out: Path | str | None = field(
        default=None,
        kw_only=False,
        metadata=said(
            "Name, path or URL of the feature set. Its heads repeat the name. Default: imported.",
            metavar="SET",
            urls=True,
        ),
    )
    labels_per_record: int | None = option("The most labels that a record can have, a public fact.", WHAT, low=1)
    column: str | None = option(
        "The name of the features in PATH, if it is not a usual one. For parquet with a column for each feature: a "
        "pattern such as 'f*'.",
        WHAT,
        metavar="NAME",
    )
    group_column: str | None = option(
        "The name of what says which records belong to one person, n integers or texts. Default: 'groups', if PATH "
        "has it.",
        WHAT,
        metavar="NAME",
    )
    pool_by: Literal["slide", "patient"] | None = option(
        "For slides: whose patches make a record. Default: slide.", HOW
    )
    dtype: Literal["float16", "float32"] | None = option(
        "Precision of the stored features. Default: that of PATH.", HOW
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, Path | str | Mapping):
            raise UserError(
                f"{parameter('path')} is a {type(self.path).__name__}, and neither a path nor arrays by name.",
                "Say what the arrays are: {'train_x': x, 'train_y': y}.",
            )
