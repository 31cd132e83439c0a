"""Which classes are alike: `train --class-similarity FILE`. See `methods.similarity`.

FILE is a CSV file with the columns `class` and `group`; or a safetensors file with the tensor `vectors` (classes ×
dimensions, in any space) and, in the metadata `classes`, a JSON list of their names. All of it must be public.
"""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from dpfc_cli.annotations.classes import by_name, plain
from dpfc_cli.annotations.csv_files import csv_in
from dpfc_cli.arrays import BROKEN
from dpfc_cli.errors import UserError, conflict, missing, quoted
from dpfc_cli.files import json_of, sha256_of
from dpfc_cli.methods.similarity import Similarity, axes
from dpfc_cli.records.card import Card, Part, Said


class ClassSimilarity(Part):
    """A file that said which classes are alike. holds: what it has of the classes."""

    name: str
    sha256: str
    holds: Literal["groups", "vectors"]

    def trained(self, card: Card) -> Said:
        said = f"{self.name}, {self.holds} of the classes (SHA-256 {self.sha256[:12]}…)"
        return [("similar classes", f"{said}; the operator asserts that it is public")]


def similarity_in(path: Path, classes: tuple[str, ...]) -> tuple[Similarity, ClassSimilarity]:
    """What a file says of these classes. UserError: it cannot be read, or says nothing of some, or twice, or does not
    tell any two apart.
    """
    if not path.is_file():
        raise missing(
            f"There is no file {quoted(path)}.",
            "Name a CSV file with the columns class and group, or a file of class vectors (.safetensors).",
            parameter="class_similarity",
        )
    grouped = path.suffix.lower() == ".csv"
    try:
        names, vectors = _groups(path) if grouped else _vectors(path)
    except (OSError, SafetensorError, csv.Error, *BROKEN) as error:
        raise _unfit(path, f"it cannot be read ({error})") from error
    found = by_name(classes, ((name, row) for row, name in enumerate(names)))
    wrong = {
        "says nothing of": [name for name, rows in found.items() if not rows],
        "has several lines for": [name for name, rows in found.items() if len(rows) > 1],
    }
    if faults := [f"it {what} {', '.join(map(repr, some[:5]))}" for what, some in wrong.items() if some]:
        raise _unfit(path, " and ".join(faults))
    taken = vectors[[rows[0] for rows in found.values()]]
    if taken.dtype.kind not in "fiu" or not np.isfinite(taken).all():
        raise _unfit(path, f"its vectors are {taken.dtype}, not numbers, or some are NaN or infinite")
    taken = taken / np.maximum(np.abs(taken).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    if axes(taken) is None:
        raise _unfit(path, "it does not tell any two classes apart")
    said = ClassSimilarity(name=path.name, sha256=sha256_of(path), holds="groups" if grouped else "vectors")
    return Similarity(vectors=np.asarray(taken, np.float32)), said


def _groups(path: Path) -> tuple[list[str], np.ndarray]:
    table = csv_in(path)
    columns = [name.casefold() for name in table.names]
    if not {"class", "group"} <= set(columns):
        raise ValueError(f"its columns are {', '.join(table.names)}, not class and group")
    rows = [[values[columns.index(name)].strip() for name in ("class", "group")] for _, values in table.rows]
    if empty := [name for name, group in rows if not group]:
        raise ValueError(f"{empty[0]!r} has no group")
    # Groups are compared as classes are: without regard to capitals and spaces.
    names = sorted({plain(group) for _, group in rows})
    vectors = np.zeros((len(rows), len(names)), np.float32)
    vectors[np.arange(len(rows)), [names.index(plain(group)) for _, group in rows]] = 1
    return [name for name, _ in rows], vectors


def _vectors(path: Path) -> tuple[list[str], np.ndarray]:
    with safe_open(path, framework="numpy") as file:
        names = [str(name) for name in json_of((file.metadata() or {})["classes"])]
        vectors: np.ndarray = file.get_tensor("vectors")
    if vectors.ndim != 2 or len(vectors) != len(names):
        raise ValueError(f"its vectors are of shape {list(vectors.shape)}, and it names {len(names)} classes")
    return names, vectors


def _unfit(path: Path, why: str) -> UserError:
    return conflict(
        f"{quoted(path)} does not say which classes are alike: {why}.",
        "Give a CSV file with the columns class and group, or vectors with the names of the classes (.safetensors).",
        parameter="class_similarity",
    )
