"""`dpfc extract`: pictures to a feature set."""

from typing import TYPE_CHECKING, Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.made import report, unless_persons
from dpfc_cli.cli.typed import flag_named, one_source
from dpfc_cli.errors import counted, missing, spelled
from dpfc_cli.extraction.request import SOURCES, WHAT, WORK, Extraction
from dpfc_cli.options import Option, Value, declared

if TYPE_CHECKING:
    from dpfc_cli.extraction.extract import Extracted


@command(
    "extract",
    Extraction,
    panel="Train a classifier",
    when_stopped="This run made nothing. What earlier runs finished is kept.",
    computes=True,
)
def extract(
    source: Annotated[str | None, declared(Extraction)["source"]] = None,
    dataset: Annotated[str | None, Option("The same as SOURCE.", WHAT, metavar="SOURCE", choices=SOURCES)] = None,
    dry_run: Annotated[
        bool,
        Option("Look through everything that needs no backbone, and name all that is wrong. Make nothing.", WORK),
    ] = False,
    **asked: Value,
) -> None:
    """Compute features of a data set's pictures and store them as a feature set.

    An interrupted run leaves the shards that it finished. The same command makes the others.
    """
    from dpfc_cli.extraction import extract as extraction

    wanted = one_source(source, dataset)
    if wanted is None:
        remedy = "Write dpfc extract SOURCE, such as digits or imagefolder:PATH."
        raise missing("No pictures are named.", remedy, parameter="source")

    def warn(said: str) -> None:
        display.warn(spelled(said, flag_named))

    if dry_run:
        from dpfc_cli.cli.fetch import show_needed
        from dpfc_cli.extraction.looking import look_through

        looked = look_through(Extraction(wanted, **asked, warn=warn))
        counts = {"records": looked.records, "persons": looked.persons}
        show_needed(looked.needs, {name: count for name, count in counts.items() if count is not None})
        return

    def make(**more: bool) -> extraction.Extracted:
        return extraction.extract(wanted, **asked | more, warn=warn)

    made = unless_persons(make)
    _remark(made)
    remedy = "Extract with --hold-out 0.1."
    report(made.folder, made.features, remedy, made=not made.was_complete)


def _remark(made: "Extracted") -> None:
    if made.was_complete:
        return
    if made.resumed is not None:
        display.say(f"Went on with '{made.folder}': {counted(made.resumed, 'shard')} were still to be made.")
    rate = made.images / max(made.seconds, 1e-9)
    display.say(f"{counted(made.images, 'image')} in {made.seconds:,.1f} s ({rate:,.0f} images/s).")
