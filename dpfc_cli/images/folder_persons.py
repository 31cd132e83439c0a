"""Which pictures of a folder are of one person: by their names, by a table, or by what DICOM files say."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.images import dicom
from dpfc_cli.sources.groups import USUAL_NAMES as PERSONS
from dpfc_cli.sources.groups import Keys, Rule, keys_of
from dpfc_cli.sources.metadata import FILE_NAME, NAMES, Value, read
from dpfc_cli.sources.names import inside
from dpfc_cli.sources.noticed import column_of, level_of, repeat


def persons_of(
    path: Path,
    folders: dict[str, Path],
    tables: dict[str, Path | None],
    listed: dict[str, list[str]],
    group_by: Rule | None,
    *,
    classes_above: bool,
) -> dict[str, Keys]:
    """The person of each image of each split; nothing if nobody asked.

    Args:
        path: what the user named.
        folders: of the splits.
        tables: beside the images of the splits.
        listed: the names of the images of each split, from its folder on.
        group_by: the rule.
        classes_above: whether the first folder of a name is that of the class.

    """
    if group_by is None:
        return {}
    known: dict[Path, dict[Path, Value]] = {}
    keys = {}
    for split, names in listed.items():
        values: Iterable[object]
        if group_by.by in ("folder", "name"):
            values = (group_by.of_name(name, name.partition("/")[2] if classes_above else name) for name in names)
        else:
            table = group_by.table or tables[split]
            if table is None and any(map(is_dicom, names)):
                values = _elements(folders[split], names, group_by.column or "")
                keys[split] = keys_of(values, str(folders[split]), names.__getitem__, group_by.remedy)
                continue
            if table is None:
                raise UserError(
                    f"There is no {' or '.join(NAMES)} in '{folders[split]}' that could have a column "
                    f"'{group_by.column}'.",
                    f"Put a table there with the columns '{FILE_NAME}' and '{group_by.column}', or name another one: "
                    f"{parameter('group_by')} table:FILE.",
                    code="missing",
                    parameter="group_by",
                    path=str(folders[split]),
                )
            if table not in known:
                known[table] = _persons_in(table, path, group_by.column)
            top = folders[split].absolute()
            values = (known[table].get(Path(os.path.normpath(top / name))) for name in names)
        keys[split] = keys_of(values, str(folders[split]), names.__getitem__, group_by.remedy)
    return keys


PATIENT = "PatientID"
"""The element of DICOM that names persons."""


def noticed(
    folders: dict[str, Path],
    tables: dict[str, Path | None],
    listed: dict[str, list[str]],
    labels: dict[str, Sequence[int]] | None = None,
) -> str | None:
    """The rule that would bring together pictures that seem to be of one person; None if none do.

    What a table says comes before what DICOM files say, and that before folders: a person may have several.

    Args:
        folders: of the splits.
        tables: beside the images of the splits.
        listed: the names of the images of each split, from its folder on.
        labels: of each image. None: the first folder of a name is that of the class.

    """
    columns: dict[str, list[Value]] = {}
    for table in dict.fromkeys(tables.values()):
        # Beside class folders there may be any table of this name.
        with suppress(UserError):
            for name, values in ({} if table is None else read(table).columns).items():
                columns.setdefault(name, []).extend(values)
    if (column := column_of(columns)) is not None:
        return f"column:{column}"
    dicoms = (folders[split] / name for split, names in listed.items() for name in names if is_dicom(name))
    if repeat(map(_patient, dicoms)):
        return f"column:{PATIENT}"
    names = [name for own in listed.values() for name in own]
    if labels is None:
        level = level_of([name.partition("/")[2] for name in names])
    else:
        level = level_of(names, [label for split in listed for label in labels[split]])
    return None if level is None else f"folder:{level}"


def _patient(path: Path) -> str | None:
    """The patient of a DICOM file; None if the system does not let us read it, which is said when it is decoded."""
    with suppress(OSError):
        return dicom.element_of(path, PATIENT)
    return None


def is_dicom(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in dicom.SUFFIXES


def _elements(folder: Path, names: list[str], element: str) -> Iterator[str | None]:
    """The value of an element of each DICOM file, None for other files."""
    dicom.check_element(element)
    for name in names:
        yield dicom.element_of(folder / name, element) if is_dicom(name) else None


def _persons_in(path: Path, images: Path, column: str | None) -> dict[Path, Value]:
    """What a table says of the person of each file. images: where its names begin if it does not lie there itself."""
    # A table of its own may lie anywhere. In the folder of the images it is like the one beside them.
    table = read(path, None if inside(images, os.path.abspath(path)) else images)
    name = column or next((usual for usual in PERSONS if usual in table.columns), None)
    if name is None or name not in table.columns:
        raise UserError(
            f"'{path}' has no column {'of persons' if name is None else repr(name)}. It has: "
            f"{', '.join((FILE_NAME, *table.columns))}.",
            f"Name the column of persons: {parameter('group_by')} "
            f"{'column:NAME' if path.name in NAMES else f'table:{path}:NAME'}.",
            code="missing",
            parameter="group_by",
            path=str(path),
        )
    return dict(zip(table.files, table.columns[name], strict=True))
