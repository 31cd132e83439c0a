"""`dpfc extract` and `dpfc import`: pictures, or features from elsewhere, to a feature set."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import flag_named, set_named, source_named, tell_ledger
from dpfc_cli.errors import UserError, conflict, counted, missing, parameter, spelled
from dpfc_cli.extraction.request import SOURCES, WHAT, WORK, Extraction, Import
from dpfc_cli.options import Option, declared

if TYPE_CHECKING:
    from dpfc_cli.extraction.extract import Extracted
    from dpfc_cli.features.reader import FeatureSet

Made = TypeVar("Made")
FEW = 30
"""Records or persons of a test split: of fewer, figures are rough."""


@command(
    "extract",
    Extraction,
    panel="Train a classifier",
    when_stopped="This run made nothing. What earlier runs finished is kept.",
)
def extract(
    source: Annotated[str | None, declared(Extraction)["source"]] = None,
    dataset: Annotated[str | None, Option("The same as SOURCE.", WHAT, metavar="SOURCE", choices=SOURCES)] = None,
    dry_run: Annotated[
        bool,
        Option("Look through everything that needs no backbone, and name all that is wrong. Make nothing.", WORK),
    ] = False,
    usable: Annotated[
        Path | None,
        Option(
            "With ‹dry_run›: a new file for the table of the pictures, without the lines that cannot be used. Name it "
            "with ‹table› afterwards.",
            WORK,
            metavar="FILE",
        ),
    ] = None,
    **asked: Any,
) -> None:
    """Compute features of a data set's pictures and store them as a feature set.

    An interrupted run leaves the shards that it finished. The same command makes the others.
    """
    from dpfc_cli.extraction import extract as extraction

    wanted = source_named(source, dataset)
    if usable is not None and not dry_run:
        raise conflict(f"{parameter('usable')} needs {parameter('dry_run')}.", "Add it.", parameter="usable")
    if wanted is None:
        remedy = "Write dpfc extract SOURCE, such as digits or imagefolder:PATH."
        raise missing("No pictures are named.", remedy, parameter="source")

    def warn(said: str) -> None:
        display.warn(spelled(said, flag_named))

    if dry_run:
        from dpfc_cli.cli.fetch import show_needed
        from dpfc_cli.extraction.looking import look_through

        looked = look_through(Extraction(wanted, **asked, warn=warn), usable)
        counts = {"records": looked.records, "persons": looked.persons}
        show_needed(looked.needs, {name: count for name, count in counts.items() if count is not None})
        return

    def make(**more: bool) -> extraction.Extracted:
        return extraction.extract(wanted, **asked | more, warn=warn)

    made = _unless_persons(make)
    _remark(made)
    _report(made.folder, made.features, made=not made.was_complete)


@command(
    "import",
    Import,
    panel="Pictures and heads",
    when_stopped="This run made nothing. What earlier runs finished is kept.",
)
def import_(**asked: Any) -> None:
    """Make a feature set of features that another program computed, of pictures, of texts or of anything."""
    from dpfc_cli.extraction.importing import Imported, import_features

    def make(**more: bool) -> Imported:
        return import_features(**asked | more, warn=display.warn)

    features, made = _unless_persons(make)
    _report(features.folder, features, made=made)


def _remark(made: "Extracted") -> None:
    if made.was_complete:
        return
    if made.resumed is not None:
        display.say(f"Went on with '{made.folder}': {counted(made.resumed, 'shard')} were still to be made.")
    rate = made.images / max(made.seconds, 1e-9)
    display.say(f"{counted(made.images, 'image')} in {made.seconds:,.1f} s ({rate:,.0f} images/s).")
    if made.features is None:
        display.say("Other processes still make shards of it: the last to end completes the set.")


def _unless_persons(make: Callable[..., Made]) -> Made:
    """What make() makes. If some records seem to be of one person, a user at a terminal is asked first."""
    from dpfc_cli.sources.person_hints import PersonsNoticedError

    try:
        return make()
    except PersonsNoticedError as noticed:
        if not display.can_ask():
            raise
        display.warn(" ".join(noticed.text(flag_named)))
        if not display.confirmed("Go on, with each record as a person of its own?"):
            raise UserError("Nothing was made.", "Name the persons.", code="declined") from None
    return make(each_record_is_a_person=True)


def _report(folder: Path, features: "FeatureSet | None", *, made: bool) -> None:
    """What a feature set is. features: None if other processes still make it. made: whether it was made now."""
    if features is not None:
        if not made:
            display.say(f"'{folder}' is there already. Its shards were not read. Delete it to make it anew.")
        else:
            _tell_ledger(features)
        if not display.program:
            _show(features)
        _advise(features)
    if display.program:
        display.as_json(_json(folder, features, made))


def _tell_ledger(features: "FeatureSet") -> None:
    from dpfc_cli.ledger.file import ledger_path, read

    tell_ledger(features.folder)
    book = read(ledger_path(features.folder))
    if len(book.facts) == 1:
        place = book.path.resolve()
        display.say(f"A new ledger: '{place}'. What another one has of the same people is not in its sums.")


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


def _advise(features: "FeatureSet") -> None:
    from dpfc_cli.training.calibrate import warnings_of_width

    for warning in warnings_of_width(features.manifest.dim):
        display.warn(warning)
    if "test" not in features.manifest.splits:
        remedy, backbone = "Extract with --hold-out 0.1.", features.manifest.backbone
        if backbone.get("name") == "imported":
            remedy = "Import test_x and test_y beside train_x and train_y, or with --hold-out 0.1."
            if "feature" in backbone:
                remedy = "Say in a column 'split' of the table which slides are for it, or import with --hold-out 0.1."
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
