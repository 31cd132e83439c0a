"""Folders that `save_to_disk` of Hugging Face datasets wrote: Arrow files with a column of {bytes, path} and labels.

    PATH/dataset_dict.json, PATH/train/…, PATH/test/…     (a DatasetDict; usual names of splits, see `split_files`)
    PATH/state.json, PATH/data-00000-of-00001.arrow       (a Dataset: training pictures only)

The labels and the names of the classes are found as in parquet (see `parquet`).
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError
from dpfc_cli.files import json_in, named_twice
from dpfc_cli.images.dataset import DataSet
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import ImageSet
from dpfc_cli.schema import each, fault, record, text
from dpfc_cli.sources.groups import Rule
from dpfc_cli.sources.reading import reading_code

DICT, STATE = "dataset_dict.json", "state.json"
_DICT = record({"splits": each(text, least=1)})
_STATE = record({"_data_files": each(record({"filename": text}), least=1)})


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    # Unlike pathlib, os.path does not fail at a name that is too long to be one.
    return any(os.path.isfile(folder / name) for name in (DICT, STATE))


def files_of(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder, in their order, by the name of the split. Without splits, all are for training.

    Raises:
        UserError: the folder is none that `save_to_disk` wrote, or it is damaged.

    """
    if not is_saved(folder):
        raise UserError(
            f"'{folder}' has neither a {DICT} nor a {STATE}.",
            "Name a folder that was written by save_to_disk of Hugging Face datasets. (What its cache holds is none: "
            "load the data set and save it.)",
            code="missing",
            path=str(folder),
        )
    if not (folder / DICT).is_file():
        return {"train": _data_files(folder)}
    names = _json(folder / DICT, _DICT)["splits"]
    found = {name: _data_files(_inside(folder, name)) for name in names}
    twice = _twice(folder, [path for paths in found.values() for path in paths])
    if twice is not None:
        raise UserError(
            f"'{folder}' names '{twice}' twice. Its pictures would count as two records each, and the guarantee is for "
            "one.",
            "Save the data set again.",
            code="conflict",
            path=str(twice),
        )
    return found


def open_arrow(
    folder: Path,
    preparation: Preparation,
    classes: tuple[str, ...] | None,
    label_column: str | None = None,
    group_by: Rule | None = None,
) -> ImageSet:
    """Open a folder that `save_to_disk` wrote.

    Args:
        folder: the folder.
        preparation: what is done with the pictures. Without a geometry all must have the size of the first one.
        classes: the classes that the operator asserts, or None. Only for files that do not name their classes.
        label_column: the column of labels, if it has no usual name.
        group_by: how the person of a picture is found, or None.

    Raises:
        UserError: a file is missing, damaged, or has no such columns; or both the files and the operator name the
            classes (code "conflict").

    """
    # PyArrow takes longer to import than everything else here.
    from dpfc_cli.images.picture_columns import columns_of
    from dpfc_cli.images.record_batches import listed, schema_of, values_in
    from dpfc_cli.images.tables import opened

    found = files_of(folder)
    first = found.get("train", next(iter(found.values())))[0]
    columns = columns_of(schema_of(first), str(folder), label_column, group_by)
    list_files = partial(listed, columns=columns, group_by=group_by)
    return opened(
        "arrow", str(folder), found, columns, classes, preparation, list_files, partial(values_in, image=columns.image)
    )


def _data_files(folder: Path) -> list[Path]:
    found = [_inside(folder, part["filename"]) for part in _json(folder / STATE, _STATE)["_data_files"]]
    twice = _twice(folder, found)
    if twice is not None:
        raise _damaged(folder / STATE, ValueError(f"it names '{twice.name}' twice"))
    return found


def _twice(folder: Path, paths: list[Path]) -> Path | None:
    """`named_twice`, of the files that are there. UserError for a name that no file can have."""
    try:
        return named_twice(path for path in paths if path.exists())
    except OSError as error:
        raise _damaged(folder, error) from error


def _inside(folder: Path, name: str) -> Path:
    """What lies in a folder itself. Such a folder may come from somebody else, so its files name nothing elsewhere."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise _damaged(folder, ValueError(f"it names '{name}', which lies elsewhere"))
    return folder / name


def _json(path: Path, check: Any) -> Any:
    try:
        found = json_in(path)
        wrong = fault(found, check)
        if wrong is not None:
            raise ValueError(f"'{wrong[:80]}' in it is missing or makes no sense")
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    return found


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"'{path}' cannot be used: {error}.", "Save the data set again.", code=reading_code(error), path=str(path)
    )


ARROW = DataSet(
    name="arrow",
    open=lambda request: open_arrow(
        request.place, request.preparation, request.classes, request.label_column, request.group_by
    ),
    location="path",
    asserted=True,
    groups=("column",),
    resembles=is_saved,
)
