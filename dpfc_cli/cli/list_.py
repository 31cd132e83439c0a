"""`dpfc list`: the feature sets, the heads, and what they cost."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.folders import features_folder, heads_folder

if TYPE_CHECKING:
    from dpfc_cli.inventory import ListedSet


@command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the feature sets with what was spent on them, and the heads with what they claim.

    They are looked for in ./features and ./heads, or where DPFC_FEATURES and DPFC_HEADS say.
    """
    from dpfc_cli.inventory import inventory

    found = inventory(features_folder(), heads_folder())
    if as_json:
        display.as_json(asdict(found))
        return
    units = ["for one"] if any(each.unit == "person" for each in found.sets) else []
    display.table(
        f"Feature sets in {features_folder()}: what the private trainings of their populations cost together",
        ("set", "backbone", "train", "test", "population", "trainings", *units, "delta", "epsilon"),
        [
            (
                *(each.name, each.backbone, _records(each, "train"), _records(each, "test")),
                *(each.population or "–", "?" if each.trainings is None else str(each.trainings)),
                *([each.unit] if units else []),
                rounding.delta(each.delta),
                "?" if each.epsilon is None else rounding.epsilon(each.epsilon) if each.epsilon else "–",
            )
            for each in found.sets
        ],
        left=5,
    )
    display.table(
        f"Heads in {heads_folder()}",
        ("head", "made", "set", "delta", "epsilon"),
        [
            (
                each.path.rpartition("/")[2].removesuffix(".safetensors"),
                (each.date or "–")[:10],
                each.features,
                "–" if each.delta is None else rounding.delta(each.delta),
                rounding.epsilon(math.inf if each.epsilon is None else each.epsilon),
            )
            for each in found.heads
        ],
        left=3,
    )
    for path, why in found.unreadable:
        display.warn(f"{path}: {why}")
    for each in found.sets:
        if each.warning is not None:
            display.warn(each.warning)
    if any(each.unprotected for each in found.sets):
        names = ", ".join(each.name for each in found.sets if each.unprotected)
        display.warn(f"{names}: some trainings had no guarantee (epsilon = ∞). No sum covers them: see 'dpfc budget'.")


def _records(listed: "ListedSet", split: str) -> str:
    """How many records a split has, and of how many persons they are."""
    from dpfc_cli.errors import counted

    persons = (listed.persons or {}).get(split)
    return f"{listed.records.get(split, 0):,}" + ("" if persons is None else f" of {counted(persons, 'person')}")
