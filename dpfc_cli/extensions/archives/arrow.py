"""Folders that `save_to_disk` of Hugging Face datasets wrote, with Arrow files (`streams`).

PATH/dataset_dict.json, PATH/train/…, PATH/test/…     (a DatasetDict; usual names of splits, see `split_files`)
PATH/state.json, PATH/data-00000-of-00001.arrow       (a Dataset: training pictures only)
"""

import os
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from dpfc_cli.annotations.split_files import left_out, refuse_twice
from dpfc_cli.files import json_in
from dpfc_cli.images.sets import DataSet, ImageSet, Request, Unlabelled
from dpfc_cli.reading import readable
from dpfc_cli.structs import Json, Kind, Open, decoded

DICT, STATE = "dataset_dict.json", "state.json"


_SELECTED = ("_indices_data_files", "_indices_files", "skip", "take")
"""Where old versions of datasets say which rows of its files a data set has."""


class _File(Open):
    filename: str


class _State(Open):
    files: Annotated[tuple[_File, ...], Meta(min_length=1)] = field(name="_data_files")


class _Splits(Open):
    splits: Annotated[tuple[str, ...], Meta(min_length=1)]


def is_saved(folder: Path) -> bool:
    # Unlike pathlib, os.path does not fail at a name that is too long to be one.
    return any(os.path.isfile(folder / name) for name in (DICT, STATE))


def files_of(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder, in their order, by the name of the split. Without splits, all are for training. UserError
    if the folder is none that `save_to_disk` wrote, or it is damaged.
    """
    with _readable(folder):
        if not is_saved(folder):
            raise ValueError(
                f"it has neither a {DICT} nor a {STATE} (what the cache of datasets holds is no such folder)"
            )
        splits = {"train": folder}
        if (folder / DICT).is_file():
            splits = {name: _inside(folder, name) for name in _json(folder / DICT, _Splits)[1].splits}
        found = dict[str, list[Path]]()
        for split, place in splits.items():
            raw, state = _json(place / STATE, _State)
            if any(each.get(name) for each in (raw, *raw["_data_files"]) for name in _SELECTED):
                raise ValueError(f"'{split}' is a selection of rows, which are not all that its files hold")
            found[split] = [_inside(place, part.filename) for part in state.files]
        refuse_twice(path for paths in found.values() for path in paths if path.exists())
    return found


def _readable(path: Path) -> AbstractContextManager[None]:
    return readable(path, "what save_to_disk of Hugging Face datasets wrote", "Save the data set again.", plain=False)


def _inside(folder: Path, name: str) -> Path:
    """What lies in a folder itself. Such a folder may come from somebody else, so its files name nothing elsewhere."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise ValueError(f"it names '{name}', which lies elsewhere")
    return folder / name


def _json(path: Path, kind: type[Kind]) -> tuple[Json, Kind]:
    with _readable(path):
        found = json_in(path)
        return found, decoded(found, kind)


def _opened(request: Request) -> ImageSet:
    # PyArrow takes longer to import than everything else here.
    from dpfc_cli.extensions.archives.streams import arrow_file
    from dpfc_cli.images.tables import open_tables

    found = files_of(request.place)
    named = {path for paths in found.values() for path in paths}
    others = Counter(path.suffix for path in request.place.rglob("*.arrow") if path not in named)
    remarks = left_out(others, f"no {STATE} names them")
    return open_tables("arrow", arrow_file, found, request, remarks)


def _unlabelled(source: str) -> Unlabelled:
    """Its pictures, split by split: SPLIT/FILE/ROW."""
    from dpfc_cli.extensions.archives.streams import arrow_file
    from dpfc_cli.images.tables import unlabelled_in

    folder = Path(source).expanduser()
    paths = [path for own in files_of(folder).values() for path in own]
    return unlabelled_in(arrow_file, paths, str(folder), lambda path: str(path.relative_to(folder)))


ARROW = DataSet(name="arrow", open=_opened, location="path", groups=("column",), holds=is_saved, unlabelled=_unlabelled)
"""Folders that `save_to_disk` wrote."""
