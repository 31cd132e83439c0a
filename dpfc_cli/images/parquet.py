"""Parquet as the Hugging Face hub lays out pictures: a column of {bytes, path} and a column of labels.

Labels are integers, or names of classes. The names of the classes are those of the `ClassLabel` in the schema's
`huggingface` metadata. If there is none, the operator asserts the classes, or they are inferred.

A row without bytes may name a file by its path: `Dataset.to_parquet` writes such rows for local pictures. The file must
lie in the folder of the parquet file, or below it. A table may come from somebody else, so it names no other files.
"""

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.images.dataset import DataSet, has_files
from dpfc_cli.images.encoded import encoded_split
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import ImageSet, Progress, labelled
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
    from dpfc_cli.images.parquet_columns import columns_of
    from dpfc_cli.images.row_groups import listed

    found = files_by_split(pattern, SUFFIX)
    columns = columns_of(found.get("train", next(iter(found.values())))[0], pattern, label_column, group_by)
    if columns.classes and classes:
        raise UserError(
            f"The files of '{pattern}' name their classes themselves.",
            f"Leave out {parameter('classes')}.",
            code="conflict",
            parameter="classes",
            path=pattern,
        )
    files = {split: listed(paths, columns, progress) for split, paths in found.items()}
    labels = {split: listing.labels for split, listing in files.items()}
    known = labelled(labels, columns.classes or classes)
    splits = {
        role: encoded_split(
            known.labels[split],
            files[split].pictures,
            preparation,
            classes=columns.classes or (),
            entries=files[split].entries,
            name=files[split].pictures.called,
            keys=files[split].keys,
        )
        for role, split in known.used.items()
    }
    origin = "data set" if columns.classes else known.origin
    return ImageSet("parquet", known.classes, splits, origin, known.renumbered)


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
