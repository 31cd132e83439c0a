"""Public facts of records that nobody has read: as a manifest says them, or as the user states them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli import backbones
from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.sources.classes import class_names
from dpfc_cli.training.request import adjacency_named, facts_of

LARGEST = 10**12
"""The most records, classes or dimensions that can be stated."""


def stated_facts(
    features: FeatureSet | None,
    *,
    records: int | None,
    persons: int | None,
    classes: int | Sequence[str] | Path | None,
    model: str | None,
    dimensions: int | None,
    on: FeatureSet | None,
    adjacency: str | None,
) -> Facts:
    """The public facts, of the manifest or as they are stated.

    Args:
        features: the private set, if there is one. Its records are not read.
        records: how many there are.
        persons: how many persons, if they are the unit.
        classes: how many, or their names, or the path of a file of names.
        model: the backbone.
        dimensions: the length of a feature vector.
        on: public features of the same backbone.
        adjacency: which data sets are neighbours.

    Raises:
        UserError: something is missing or makes no sense, or two of them contradict.

    """
    dimensions = _dimensions(model, dimensions)
    if classes is not None and not isinstance(classes, int):
        classes = len(class_names(classes) or ())
    for name, given in (("features", features), ("on", on)):
        if given is not None and not isinstance(given, FeatureSet):
            raise UserError(
                f"{parameter(name)} is a {type(given).__name__}, not a feature set.",
                "Open it with open_features.",
                parameter=name,
            )
    stated = {"records": records, "persons": persons, "classes": classes, "dimensions": dimensions}
    for name, value in stated.items():
        if value is not None:
            check_count(name, value, 1 if name == "dimensions" else 2)
    beside = [name for name, value in stated.items() if value is not None]
    if features is not None:
        if beside:
            raise UserError(
                f"{parameter(beside[0])} is stated, and {parameter('features')} says it, too.",
                "Leave out one of them.",
                code="conflict",
                parameter=beside[0],
            )
        return facts_of(features, adjacency_named(adjacency))
    if records is None and persons is None:
        raise UserError(
            "It is not known how many records there are.",
            f"State {parameter('records')} (or {parameter('persons')}) and {parameter('classes')}, or name the private "
            f"set: {parameter('features')}. Of a set only its manifest is read.",
            code="missing",
            parameter="records",
        )
    if classes is None:
        raise UserError(
            "It is not known how many classes there are.",
            f"State {parameter('classes')}.",
            code="missing",
            parameter="classes",
        )
    width = dimensions if on is None or dimensions is not None else on.dim
    if width is None:
        raise UserError(
            "It is not known how long a feature vector is.",
            f"State {parameter('dimensions')} or {parameter('model')}, or name public features of the same backbone: "
            f"{parameter('on')}.",
            code="missing",
            parameter="dimensions",
        )
    if on is not None and width != on.dim:
        raise UserError(
            f"'{on.folder}' has {on.dim} dimensions, not {width}: its features are of another backbone.",
            f"Name features of the same backbone, or leave out {parameter('dimensions')}.",
            code="conflict",
            parameter="dimensions",
            path=str(on.folder),
        )
    k = 1 if on is None else on.manifest.labels_per_record
    known = Facts(n=records or persons or 0, m=classes, d=width, k=k, adjacency=adjacency_named(adjacency))
    if persons is None:
        return known
    if records is not None and records < persons:
        raise UserError(
            f"There are {counted(records, 'record')} of {counted(persons, 'person')}.",
            "A person has one record at least.",
            code="conflict",
            parameter="persons",
        )
    return replace(known, n=persons, rows=records or persons, unit="person")


def _dimensions(model: str | None, dimensions: int | None) -> int | None:
    """How long a feature vector is, as far as it is said."""
    if model is None:
        return dimensions
    if dimensions is not None:
        raise UserError(
            f"{parameter('model')} and {parameter('dimensions')} were both given.",
            "Leave out one of them.",
            code="conflict",
            parameter="dimensions",
        )
    found = backbones.dimensions(model)
    if found is None:
        raise UserError(
            f"The features of {model} are of a length that depends on the pictures or on the weights.",
            f"State {parameter('dimensions')} instead of {parameter('model')}.",
            code="conflict",
            parameter="model",
        )
    return found


def check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= LARGEST:
        raise UserError(
            f"{parameter(name)} is a whole number of at least {least}, not {value!r}.",
            f"Give a number of {least} to {LARGEST:.0e}.",
            parameter=name,
        )
