"""What commands that make a feature set ask before, and say after."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dpfc_cli.cli import display
from dpfc_cli.cli.typed import flag_named, set_named, tell_ledger
from dpfc_cli.errors import UserError, counted

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

Made = TypeVar("Made")
FEW = 30
"""Records or persons of a test split: of fewer, figures are rough."""


def unless_persons(make: Callable[..., Made]) -> Made:
    """What make() makes. If some records seem to be of one person, a user at a terminal is asked first."""
    from dpfc_cli.annotations.person_hints import PersonsNoticedError

    try:
        return make()
    except PersonsNoticedError as noticed:
        if not display.can_ask():
            raise
        display.warn(" ".join(noticed.text(flag_named)))
        if not display.confirmed("Go on, with each record as a person of its own?"):
            raise UserError("Nothing was made.", "Name the persons.", code="declined") from None
    return make(each_record_is_a_person=True)


def report(folder: Path, features: "FeatureSet", remedy: str, *, made: bool) -> None:
    """What a feature set is. made: whether it was made now. remedy: what to do if it has no test split."""
    if not made:
        display.say(f"'{folder}' is there already. Its shards were not read. Delete it to make it anew.")
    else:
        _tell_ledger(features)
    if not display.program:
        _show(features)
    _advise(features, remedy)
    if display.program:
        display.as_json(_json(folder, features, made))


def _tell_ledger(features: "FeatureSet") -> None:
    from dpfc_cli.ledger.file import ledger_path, read

    tell_ledger(features.folder)
    book = read(ledger_path(features.folder))
    if len(book.facts) == 1:
        place = book.path.resolve()
        display.say(f"A new ledger: '{place}'. What another one has of the same people is not in its sums.")


def _json(folder: Path, features: "FeatureSet", made: bool) -> dict[str, object]:
    """A feature set for programs. sha256: of the manifest's file. It depends on the records, as the manifest does."""
    from dpfc_cli.features.manifest import MANIFEST

    manifest = features.manifest
    return {
        "path": str(folder),
        "name": features.name,
        "made": made,
        "sha256": hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
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
    manifest = features.manifest
    splits = []
    for name, split in sorted(manifest.splits.items(), reverse=True):
        persons = "" if split.groups is None else f" of {counted(split.groups, 'person')}"
        splits.append(f"{name} {split.n:,}{persons}")
    pooling = f"pooling {manifest.backbone['pooling']}" if "pooling" in manifest.backbone else "of another program"
    feature = manifest.backbone.get("feature") or pooling
    origin = "asserted by you" if manifest.origin == "asserted" else "the data set's own"
    labels = counted(manifest.labels_per_record, "label")
    display.facts(
        f"Feature set {features.folder}",
        [
            ("backbone", str(manifest.backbone.get("name"))),
            ("feature", f"{feature}, {manifest.dim:,} dimensions, {manifest.dtype}"),
            ("records", "; ".join(splits)),
            ("classes", f"{len(manifest.classes)} ({origin}); {labels} per record"),
        ],
    )


def _advise(features: "FeatureSet", remedy: str) -> None:
    from dpfc_cli.training.calibrate import warnings_of_width

    for warning in warnings_of_width(features.manifest.dim):
        display.warn(warning)
    if "test" not in features.manifest.splits:
        display.warn(f"there is no test split for dpfc evaluate. {remedy}")
    else:
        test = features.split("test")
        units = counted(test.n, "record") if test.groups is None else counted(test.groups, "person")
        if (test.groups or test.n) < FEW:
            display.warn(f"the test split has {units} only: what dpfc evaluate finds will be rough.")
    facts = features.split("train")
    protected = f"record of {facts.n:,}" if facts.groups is None else f"person of {facts.groups:,}"
    line = f"dpfc train --epsilon 1 --features {set_named(features.folder)}"
    display.say(f"A training protects one {protected}. Next: {line}")
