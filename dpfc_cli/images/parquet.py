"""Parquet files of pictures, in the layout of the Hugging Face hub (see `tables`)."""

from dpfc_cli.images.dataset import DataSet, Request, has_files
from dpfc_cli.images.sets import ImageSet
from dpfc_cli.sources.split_files import files_by_split

SUFFIX = ".parquet"


def open_parquet(request: Request) -> ImageSet:
    """Open the files that `request.place` names (see `files_by_split`). Raises UserError if they cannot be used."""
    # PyArrow takes longer to import than everything else here.
    from dpfc_cli.images.tables import open_tables

    return open_tables("parquet", files_by_split(str(request.place), SUFFIX), request)


PARQUET = DataSet(
    name="parquet",
    open=open_parquet,
    location="path",
    asserted=True,
    groups=("column",),
    resembles=has_files(SUFFIX),
)
