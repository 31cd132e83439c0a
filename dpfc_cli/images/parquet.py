"""Parquet files of pictures, as the Hugging Face hub lays them out. `tables` reads them."""

import os

from dpfc_cli.annotations.split_files import files_by_split, files_in
from dpfc_cli.images.sets import DataSet, ImageSet, Request, Unlabelled

SUFFIX = ".parquet"


def _opened(request: Request) -> ImageSet:
    from dpfc_cli.images.tables import open_tables, parquet_file

    return open_tables("parquet", parquet_file, files_by_split(str(request.place), SUFFIX), request)


def _unlabelled(source: str) -> Unlabelled:
    from dpfc_cli.images.tables import parquet_file, unlabelled_in

    return unlabelled_in(parquet_file, sorted(files_in(source, SUFFIX)), source)


PARQUET = DataSet(
    name="parquet",
    open=_opened,
    location="path",
    groups=("column",),
    holds=lambda path: path.suffix.lower() == SUFFIX and not os.path.isdir(path),
    unlabelled=_unlabelled,
)
"""Parquet files."""
