"""`dpfc import`: features of another program to a feature set."""

from typing import Any

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.made import report, unless_persons
from dpfc_cli.extensions.importing.request import Import


@command(
    "import",
    Import,
    panel="Pictures and heads",
    when_stopped="This run made nothing. What earlier runs finished is kept.",
)
def import_(**asked: Any) -> None:
    """Make a feature set of features that another program computed, of pictures, of texts or of anything."""
    from dpfc_cli.extensions.importing.importing import Imported, import_features

    def make(**more: bool) -> Imported:
        return import_features(**asked | more, warn=display.warn)

    features, made = unless_persons(make)
    remedy = "Import test_x and test_y beside train_x and train_y, or with --hold-out 0.1."
    if "feature" in features.manifest.backbone:
        remedy = "Say in a column 'split' of the table which slides are for it, or import with --hold-out 0.1."
    report(features.folder, features, remedy, made=made)
