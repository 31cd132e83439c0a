"""`dpfc list`: the feature sets, the heads, and what they cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.folders import features_folder, heads_folder
from dpfc_cli.options import Option
from dpfc_cli.show.document import Document, Section, Table, Words
from dpfc_cli.structs import encoded

if TYPE_CHECKING:
    from dpfc_cli.inventory import Inventory
    from dpfc_cli.records.card import Card
    from dpfc_cli.records.figures import Figures


@command("list", panel="Pictures and heads")
def list_(
    folder: Annotated[
        Path | None, Option("Where the heads are. Default: ./heads.", argument=True, metavar="FOLDER")
    ] = None,
    full: Full = False,
) -> None:
    """Show the feature sets with what was spent on them, and the heads with what they claim.

    They are looked for in ./features and ./heads, or where DPFC_FEATURES and DPFC_HEADS say.
    """
    from dpfc_cli.inventory import inventory

    folder = folder or heads_folder()
    found = inventory(features_folder(), folder)
    display.show(_document(found, folder), full)
    if found.failed is not None:
        raise found.failed


def _document(found: "Inventory", folder: Path) -> Document:
    """Both tables, and what is wrong. The short form has what a command names, and its cost."""
    from dpfc_cli.records.statement import SEEDED, claimed

    sets = [
        (
            *(each.name, each.backbone, each.population or "–", each.unit),
            *(f"{each.records.get(split, 0):,}" for split in ("train", "test")),
            f"{each.persons.get('train', 0):,}" if each.persons else "–",
            *("?" if each.charges is None else str(each.charges), rounding.delta(each.delta)),
            "?" if each.epsilon is None else rounding.epsilon(each.epsilon) if each.epsilon else "–",
        )
        for each in found.sets
    ]
    columns = ("set", "backbone", "population", "for one", "train", "test", "persons", "charges", "delta", "epsilon")
    # Without these the table fits 80 columns.
    more = ["backbone", "test", "charges"]
    more += [] if any(each.persons for each in found.sets) else ["persons", "for one"]
    heads = [
        (
            *(path.name.removesuffix(".safetensors"), card.features.name, card.method),
            card.date[:10],
            *([shown(found.released.get(path, ()))] if found.released else []),
            *claimed(card.epsilon, card.delta, card.seeded),
        )
        for path, card in found.heads.items()
    ]
    more_of = ["released"] if found.released else []
    head_columns = ("head", "set", "method", "made", *more_of, "delta", "epsilon")
    no_sets = Words("There is none yet. Make one: dpfc extract digits")
    none = "There is none yet. Train one: dpfc train --epsilon 1"
    # Of a ledger that cannot be read nobody knows.
    if any(each.charges != 0 for each in found.sets):
        none = "There is none here. 'dpfc budget' shows the states of charges: what was written lies elsewhere, and a "
        none += "private training that was stopped resumes with its command."
    no_heads = Words(none)
    seeded = [Words(SEEDED)] if any(card.seeded for card in found.heads.values()) else []
    last = None if found.failed is None else found.failed.what
    warnings = [why if path in why else f"{path}: {why}" for path, why in found.unreadable if why != last]
    warnings += dict.fromkeys(each.warning for each in found.sets if each.warning is not None)
    if names := ", ".join(each.name for each in found.sets if each.unprotected):
        warnings.append(
            f"{names}: some trainings had no guarantee (epsilon = ∞). No sum covers them: see 'dpfc budget'."
        )
    if names := ", ".join(each.name for each in found.sets if each.persons and each.unit == "record" and each.epsilon):
        warnings.append(f"{names}: the sum is for one record, because some charges on these people protect records.")
    of_sets = [Table(columns, sets, left=4, more=more)] if sets else [no_sets]
    of_heads = [Table(head_columns, heads, left=4, more=("set", "method"))] if heads else [no_heads]
    return Document(
        title="",
        sections=[
            Section(f"Feature sets in {features_folder()}, and what their populations have spent together", of_sets),
            Section(f"Heads in {folder}", [*of_heads, *seeded]),
            Section("", [Words(warning, strong=True) for warning in warnings]),
        ],
        values={
            "sets": encoded(found.sets),
            "heads": [_head(path, card, found.released.get(path, ())) for path, card in found.heads.items()],
            "unreadable": found.unreadable,
        },
    )


def shown(released: "Sequence[Figures]") -> str:
    """The newest accuracy that was released of a head."""
    last = next((each for each in reversed(released) if each.top1 is not None), None)
    return "–" if last is None else rounding.accuracy(last.top1, last.interval, last.n)[0]


def _head(path: Path, card: "Card", released: "Sequence[Figures]") -> dict[str, object]:
    figures = {name: getattr(card, name) for name in ("method", "claim", "epsilon", "delta")}
    return {
        "path": str(path),
        **figures,
        "features": card.features.name,
        "date": card.date,
        "seeded": encoded(card.seeded),
        "released": [encoded(each) for each in released],
    }
