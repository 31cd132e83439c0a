"""`dpfc import`: features that another program computed, into a feature set."""

from typing import Annotated, Any

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.extracted import report, unless_persons
from dpfc_cli.cli.typed import JSON
from dpfc_cli.extraction.request import Import


@command("import", Import, when_stopped="This run made nothing. What earlier runs finished is kept.")
def import_(as_json: Annotated[bool, JSON] = False, **asked: Any) -> None:
    """Make a feature set of features that another program computed, of pictures, of texts or of anything."""
    from dpfc_cli.extraction.importing import Imported, import_features

    def make(**more: bool) -> Imported:
        with display.stages("Opening", "records") as progress:
            return import_features(**asked | more, progress=progress, warn=display.warn)

    features, made = unless_persons(make)
    report(features.folder, features, made=made, as_json=as_json)
