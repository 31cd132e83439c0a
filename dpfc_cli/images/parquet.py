"""Parquet files of pictures, as the Hugging Face hub lays them out. `tables` reads them."""

from dpfc_cli.annotations.split_files import files_by_split, files_in
from dpfc_cli.images.sets import DataSet, ImageSet, Request, Unlabelled
from dpfc_cli.places import is_dir

SUFFIX = ".parquet"


def _opened(request: Request) -> ImageSet:
    from dpfc_cli.images.tables import open_tables

    return open_tables(files_by_split(str(request.place), SUFFIX), request)


def _unlabelled(source: str) -> Unlabelled:
    from dpfc_cli.images.tables import unlabelled_in

    return unlabelled_in(sorted(files_in(source, SUFFIX)), source)


PARQUET = DataSet(
    name="parquet",
    open=_opened,
    location="path",
    groups=("column",),
    holds=lambda path: path.suffix.lower() == SUFFIX and not is_dir(path),
    unlabelled=_unlabelled,
)
"""Parquet files."""
