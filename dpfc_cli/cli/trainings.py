"""What is shown of several trainings, and how good their heads are."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.typed import head_named
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.report import account
from dpfc_cli.show.document import Document, Rows, Table, Words, page
from dpfc_cli.structs import Json

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import Evaluation
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.report.picture import Picture
    from dpfc_cli.training.many import Many, TrainedRow


def scored(rows: Sequence["TrainedRow"], features: "FeatureSet") -> "tuple[Sequence[Evaluation], Picture]":
    """Exact figures of the heads on the test split, and what draws them."""
    from dpfc_cli.evaluation.evaluate import compare, evaluate
    from dpfc_cli.heads.head import Head
    from dpfc_cli.report.picture import of_heads

    heads = [Head.load(each.head) for each in rows]
    found = compare(heads, features).evaluations if len(heads) > 1 else [evaluate(heads[0], features)]
    for text in dict.fromkeys(text for each in found for text in each.warnings):
        display.warn(text)
    return found, of_heads([each.file for each in heads], [each.card for each in heads], features, found)


def values(rows: Sequence["TrainedRow"], scores: Sequence["Evaluation"] = ()) -> list[dict[str, Json]]:
    """Flat, for programs."""
    accuracies: list[float | None] = [each.top1 for each in scores] or [None] * len(rows)
    return [asdict(row) | {"accuracy": each} for row, each in zip(rows, accuracies, strict=True)]


def document(
    many: "Many", rows: Sequence["TrainedRow"], scores: Sequence["Evaluation"] = (), *, dry_run: bool
) -> Document:
    """A row for each training, and what all cost. dry_run: they are not charged yet."""
    features, together = many.features, many.together
    book, delta = read(ledger_path(features.folder)), next((each.delta for each in rows if each.delta), None)
    spent = many.after if dry_run else book.account_of(features.manifest.id)
    told: dict[str, Json] = {"schema": "dpfc/trainings/1", "features": str(features.folder), "dry_run": dry_run}
    told |= {"trainings": values(rows, scores), "together": together, "spent_epsilon": None, "spent": None}
    said = [("features", str(features.folder))]
    if delta is not None:
        said += [("these together", rounding.cost(together, delta))] if together else []
        said.append(("spent with these" if dry_run else "spent so far", spent.summed(delta)))
        said += [("then", left)] if (left := account.left(spent, delta)) is not None else []
        told |= {"spent_epsilon": spent.epsilon(delta), "spent": account.values(spent, book, (delta,))}
    shown = []
    for i, each in enumerate(rows):
        worth, seed = each.epsilon or each.seeded_epsilon, "–" if each.seed is None else str(each.seed)
        row = [head_named(Path(each.head)), each.method, "∞" if worth is None else rounding.epsilon(worth), seed]
        row += [rounding.percentage(of.top1, of.n, of.interval, more=1) for of in scores[i : i + 1]]
        shown.append([*row, "there" if each.sha256 else "–"] if each.seconds is None else [*row, f"{each.seconds:.1f}"])
    columns = ("head", "method", "epsilon", "seed", *["accuracy"] * bool(scores), "seconds")
    words = [Words("Accuracy on the test split: exact figures, not protected.")] if scores else []
    title = "Nothing was charged. These trainings would be" if dry_run else "Trainings"
    return page(title, Rows(said), Table(columns, shown, left=2), *words, values=told)
