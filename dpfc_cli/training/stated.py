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
    if classes is not None and not isinstance(classes, int | np.integer):
        classes = len(class_names(classes) or ())
    for name, known in (("features", features), ("on", on)):
        if known is not None and not isinstance(known, FeatureSet):
            raise UserError(
                f"{parameter(name)} is a {type(known).__name__}, not a feature set.",
                "Open it with open_features.",
                parameter=name,
            )
    given = {"records": records, "persons": persons, "classes": classes, "dimensions": dimensions}
    stated = {
        name: count_of(name, value, 1 if name == "dimensions" else 2)
        for name, value in given.items()
        if value is not None
    }
    if features is not None:
        if stated:
            first = next(iter(stated))
            raise UserError(
                f"{parameter(first)} is stated, and {parameter('features')} says it, too.",
                "Leave out one of them.",
                code="conflict",
                parameter=first,
            )
        return facts_of(features, adjacency_named(adjacency))
    records, persons = stated.get("records"), stated.get("persons")
    units = records if persons is None else persons
    if units is None:
        raise UserError(
            "It is not known how many records there are.",
            f"State {parameter('records')} (or {parameter('persons')}) and {parameter('classes')}, or name the private "
            f"set: {parameter('features')}. Of a set only its manifest is read.",
            code="missing",
            parameter="records",
        )
    if "classes" not in stated:
        raise UserError(
            "It is not known how many classes there are.",
            f"State {parameter('classes')}.",
            code="missing",
            parameter="classes",
        )
    width = stated.get("dimensions", None if on is None else on.dim)
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
    facts = Facts(n=units, m=stated["classes"], d=width, k=k, adjacency=adjacency_named(adjacency))
    if persons is None:
        return facts
    if records is not None and records < persons:
        raise UserError(
            f"There are {counted(records, 'record')} of {counted(persons, 'person')}.",
            "A person has one record at least.",
            code="conflict",
            parameter="persons",
        )
    return replace(facts, rows=persons if records is None else records, unit="person")


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


def count_of(name: str, value: Any, least: int) -> int:
    """A number of records or of dimensions, as a plain int. UserError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= LARGEST:
        raise UserError(
            f"{parameter(name)} is a whole number of at least {least}, not {value!r}.",
            f"Give a number of {least} to {LARGEST:.0e}.",
            parameter=name,
        )
    return int(value)
