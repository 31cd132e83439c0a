"""Parquet as the Hugging Face hub lays out pictures: a column of {bytes, path} and a column of labels.

Labels are integers, or names of classes. The names of the classes are those of the `ClassLabel` in the schema's
`huggingface` metadata. If there is none, the operator asserts the classes, or they are inferred.

A row without bytes may name a file by its path: `Dataset.to_parquet` writes such rows for local pictures. The file must
lie in the folder of the parquet file, or below it. A table may come from somebody else, so it names no other files.
"""

from functools import partial

from dpfc_cli.images.dataset import DataSet, has_files
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import ImageSet, Progress
from dpfc_cli.sources.groups import Rule
from dpfc_cli.sources.split_files import files_by_split

SUFFIX = ".parquet"


def open_parquet(
    pattern: str,
    preparation: Preparation,
    classes: tuple[str, ...] | None,
    progress: Progress | None,
    label_column: str | None = None,
    group_by: Rule | None = None,
) -> ImageSet:
    """Open the files that `pattern` names (see `files_by_split`).

    Args:
        pattern: a file, a folder, or file names with braces or wildcards.
        preparation: what is done with the pictures. Without a geometry all must have the size of the first one.
        classes: the classes that the operator asserts, or None. Only for files that do not name their classes.
        progress: called for each file that was listed.
        label_column: the column of labels, if it has no usual name.
        group_by: how the person of a picture is found, or None.

    Raises:
        UserError: a file is missing, damaged, or has no such columns; or both the files and the operator name the
            classes (code "conflict").

    """
    # PyArrow takes longer to import than everything else here.
    from dpfc_cli.images.picture_columns import columns_of
    from dpfc_cli.images.row_groups import schema_of
    from dpfc_cli.images.row_listing import listed, values_in
    from dpfc_cli.images.tables import opened

    found = files_by_split(pattern, SUFFIX)
    first = found.get("train", next(iter(found.values())))[0]
    columns = columns_of(schema_of(first), pattern, label_column, group_by)
    list_files = partial(listed, columns=columns, progress=progress)
    return opened("parquet", pattern, found, columns, classes, preparation, list_files, values_in)


PARQUET = DataSet(
    name="parquet",
    open=lambda request: open_parquet(
        str(request.place),
        request.preparation,
        request.classes,
        request.progress,
        request.label_column,
        request.group_by,
    ),
    location="path",
    asserted=True,
    groups=("column",),
    resembles=has_files(SUFFIX),
)
