"""`dpfc evaluate`: how good a head is, beside what it cost."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.folders import features_folder, heads_folder

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

MOST_CLASSES = 20
"""More classes than this are shown as the ten worst and the ten best; --json has all."""
ROWS = 4_096


@command("evaluate")
def evaluate(
    head: Annotated[Path | None, typer.Option(help="The head. Default: the newest private one in ./heads.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Feature set, by path or name. Default: the head's own, else the newest.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which split to score.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Score a head on a labelled split: top-1, top-5, per class, mean average precision of label sets; and its cost."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.heads.head import Head, newest
    from dpfc_cli.heads.metrics import average_precisions, score
    from dpfc_cli.trust.statement import hold_out_of

    path = head or newest(heads_folder())
    if head is None:
        display.say(f"Head: {path} (the newest private one; name another with --head)")
    loaded = Head.load(path)
    found = _features(features, str(loaded.card["features"]["name"]))
    manifest, card, own = found.manifest, loaded.card, loaded.card["features"]
    facts = found.split(split)
    d, m = loaded.weight.shape
    if d != manifest.dim or m != len(manifest.classes):
        raise UserError(
            f"The head takes {d} dimensions and knows {m} classes, "
            f"the features have {manifest.dim} and {len(manifest.classes)}.",
            "Evaluate on features of the same backbone and data set, named with --features.",
        )
    if loaded.classes != manifest.classes:
        raise UserError(
            "The head's classes are not those of the features, or stand in another order.",
            "Evaluate on features with the same --classes as those that the head was trained on.",
        )
    if card["features"]["fingerprint"] != manifest.fingerprint:
        display.warn(
            "these features were made otherwise than those the head was trained on; the figures may mean little."
        )
    private_split = split == card["features"]["split"]
    if private_split:
        display.warn(
            f"the head was trained on a {split} split: if these are its records, these figures are not differentially "
            "private. Do not publish them."
        )
    elif hold_out_of(manifest) and (found.name, hold_out_of(manifest)) != (own["name"], own.get("hold_out")):
        display.warn(
            f"--hold-out took this {split} split out of training pictures, and the head was trained on another set: if "
            "that was made of the same pictures, it has seen some of these."
        )
    found.verify(split)
    with display.meter("Evaluating", "records") as advance:
        scores = score(loaded, _counted(found.stream(split)(ROWS), facts.n, advance))
    precisions = None
    if manifest.labels_per_record > 1:
        precisions = average_precisions(loaded, lambda: found.stream(split)(ROWS), facts.n).tolist()
    result: dict[str, Any] = {
        "head": str(path),
        "method": card["method"],
        "claim": card["claim"],
        "epsilon": card["epsilon"],
        "delta": card["delta"],
        "adjacency": card["adjacency"],
        "unit": card["unit"],
        "features": str(found.folder),
        "split": split,
        "private_split": private_split,
        "n": scores.n,
        "top1": scores.top1,
        "top5": scores.top5,
        "mean_average_precision": None if precisions is None else _mean(precisions),
        "per_class": [
            {"class": name, "n": int(n), "top1": hits / n if n else None}
            | ({} if precisions is None else {"average_precision": precisions[j] if n else None})
            for j, (name, n, hits) in enumerate(
                zip(manifest.classes, scores.rows.tolist(), scores.hits.tolist(), strict=True)
            )
        ],
    }
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    _show(result, card)


def _features(given: str | None, own: str) -> "FeatureSet":
    """The set to score on. own: the name of the one that the head was trained on, whose test split is the default."""
    if given is not None:
        return places.feature_set(given)[0]
    from dpfc_cli.features.lookup import set_of_training

    found = set_of_training(own)
    if found is not None:
        display.say(f"Features: {found.folder} (named as the set of the training; name another with --features)")
        return found
    found, _ = places.feature_set(None)
    display.say(
        f"Features: {found.folder} (the newest set, for '{own}', which the head was trained on, is not in "
        f"'{features_folder()}'; name another with --features)"
    )
    return found


def _mean(precisions: Any) -> float | None:
    known = [p for p in precisions if p == p]
    return sum(known) / len(known) if known else None


def _counted(blocks: Any, n: int, advance: display.Meter) -> Any:
    for start, x, y in blocks:
        yield start, x, y
        advance(start + len(x), n)


def _show(result: dict[str, Any], card: Mapping[str, Any]) -> None:
    from dpfc_cli.trust.statement import brief

    precision = result["mean_average_precision"]
    display.facts(
        f"{result['head']} on the {result['split']} split of {result['features']}",
        [
            ("method", result["method"]),
            ("top-1", f"{result['top1']:.2%}"),
            ("top-5", f"{result['top5']:.2%}"),
            *([("mean average precision", f"{precision:.2%}")] if precision is not None else []),
            ("records", f"{result['n']:,}"),
            *brief(card),
        ],
    )
    # Of several labels a record's highest score can hit but one: there the ranking counts.
    figure, said = ("top1", "top-1") if precision is None else ("average_precision", "average precision")
    rows, title = result["per_class"], f"{said.capitalize()} per class"
    if len(rows) > MOST_CLASSES:
        rows = sorted((r for r in rows if r["n"]), key=lambda r: r[figure])
        if len(rows) > MOST_CLASSES:
            rows, title = rows[:10] + rows[-10:], f"{title}: the ten worst and the ten best"
    display.table(
        title,
        ("class", "records", said),
        [(r["class"], f"{r['n']:,}", f"{r[figure]:.2%}" if r["n"] else "–") for r in rows],
    )
