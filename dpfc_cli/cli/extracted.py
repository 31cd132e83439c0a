"""What is shown of a feature set that was made."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpfc_cli.cli import display, places

if TYPE_CHECKING:
    from dpfc_cli.features.manifest import SplitFacts
    from dpfc_cli.features.reader import FeatureSet

Made = TypeVar("Made")


def unless_persons(make: Callable[..., Made]) -> Made:
    """What make() makes. If some records seem to be of one person, a user at a terminal is asked first."""
    from dpfc_cli.sources.noticed import PersonsNoticedError

    try:
        return make()
    except PersonsNoticedError as noticed:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        question = f"{noticed.what} Go on, with each record as a person of its own?"
        if not display.confirmed(question, default=False):
            raise
    return make(each_record_is_a_person=True)


def report(folder: Path, features: "FeatureSet | None", *, made: bool, as_json: bool) -> None:
    """What a feature set is. features: None if other processes still make it. made: whether it was made now."""
    if as_json:
        display.as_json(_json(folder, features, made))
    if features is None:
        return
    if not made:
        display.say(f"'{folder}' is complete already; delete it to make it anew.")
    if not as_json:
        _show(features)
    _advise(features)


def _json(folder: Path, features: "FeatureSet | None", made: bool) -> dict[str, Any]:
    """A feature set for programs. sha256: of the manifest's file. It depends on the records, as the manifest does."""
    from dpfc_cli.features.manifest import MANIFEST
    from dpfc_cli.files import sha256_of

    if features is None:
        return {"path": str(folder), "name": folder.name, "complete": False, "made": made}
    manifest = features.manifest
    return {
        "path": str(folder),
        "name": features.name,
        "complete": True,
        "made": made,
        "sha256": sha256_of(folder / MANIFEST),
        "fingerprint": manifest.fingerprint,
        "records": {name: split.n for name, split in manifest.splits.items()},
        "persons": {name: split.groups for name, split in manifest.splits.items()} if manifest.grouped else None,
        "classes": list(manifest.classes),
        "classes_from": manifest.origin,
        "labels_per_record": manifest.labels_per_record,
        "dim": manifest.dim,
        "dtype": manifest.dtype,
    }


def _show(features: "FeatureSet") -> None:
    """A feature set as a table."""
    from dpfc_cli.errors import counted

    manifest = features.manifest
    imported = manifest.backbone.get("name") == "imported"
    splits = "; ".join(
        f"{name} {split.n:,}{_of_persons(split)} in {counted(len(split.shards), 'shard')}"
        for name, split in sorted(manifest.splits.items(), reverse=True)
    )
    said = {
        "asserted": "asserted by you",
        "inferred": "inferred from the data: assert with --classes" + (" and --labels-per-record" if imported else ""),
    }
    feature = manifest.backbone.get("feature") or f"pooling {manifest.backbone.get('pooling', 'unknown')}"
    origin = said.get(manifest.origin, "the data set's own")
    labels = counted(manifest.labels_per_record, "label")
    display.facts(
        f"Feature set {features.folder}",
        [
            ("backbone", str(manifest.backbone.get("name"))),
            ("feature", f"{feature}, {manifest.dim:,} dimensions, {manifest.dtype}"),
            ("records", splits),
            ("classes", f"{len(manifest.classes)} ({origin}); {labels} per record"),
        ],
    )


def _of_persons(split: "SplitFacts") -> str:
    """What is said of the persons of a split after its number of records."""
    from dpfc_cli.errors import counted

    return "" if split.groups is None else f" of {counted(split.groups, 'person')}"


def _advise(features: "FeatureSet") -> None:
    """Warnings about a feature set, and the next command."""
    from dpfc_cli.errors import GUARDED
    from dpfc_cli.sources.classes import first_names
    from dpfc_cli.training.calibrate import warnings_of_width

    for warning in warnings_of_width(features.manifest.dim):
        display.warn(warning)
    if "test" not in features.manifest.splits:
        remedy = "Extract with --hold-out 0.1."
        if features.manifest.backbone.get("name") == "imported":
            remedy = "Import test_x and test_y beside train_x and train_y, or with --hold-out 0.1."
        if features.manifest.backbone.get("from") == "slides":
            remedy = "Say in a column 'split' of the table which slides are for it, or import with --hold-out 0.1."
        display.warn(f"there is no test split for dpfc evaluate. {remedy}")
    if features.manifest.origin == "inferred":
        display.warn(
            f"nobody stated the classes. They follow from the records: {first_names(features.manifest.classes)}. Their "
            f"names will be in every head. 'dpfc train' refuses them, unless you insist. {GUARDED}"
        )
        display.say("Next: the same command with --classes. In this order nothing is computed anew.")
        return
    display.say(f"Next: dpfc train --epsilon 1 --features {places.said(features.folder)}")
