"""`dpfc extract`: pictures through a frozen backbone into a feature set."""

from typing import Annotated, Any

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.extracted import report, unless_persons
from dpfc_cli.cli.help import listed
from dpfc_cli.cli.typed import JSON, flag_named
from dpfc_cli.extraction.request import WHAT, Extraction
from dpfc_cli.options import Option


@command("extract", Extraction, when_stopped="This run made nothing. What earlier runs finished is kept.")
def extract(
    source: Annotated[
        str | None,
        Option(
            "The pictures: ‹images.DATASETS›. parquet and webdataset also take patterns, such as "
            "'train-{0000..0099}.tar'.",
            argument=True,
        ),
    ] = None,
    dataset: Annotated[str | None, Option("The same as SOURCE.", WHAT, metavar="SOURCE")] = None,
    as_json: Annotated[bool, JSON] = False,
    **asked: Any,
) -> None:
    """Compute features of a data set's pictures and store them as a feature set.

    An interrupted run leaves the shards that it finished. The same command makes the others.
    """
    from dpfc_cli import images
    from dpfc_cli.extraction import extract as extraction

    wanted = _the_source(source, dataset)
    units = {extraction.OPENING: "B" if images.small(wanted) else "files", extraction.LOADING: "B"}
    units[extraction.EXTRACTING] = units[extraction.LOOKING] = "images"

    def make(**more: bool) -> extraction.Extracted:
        with display.stages(extraction.OPENING, lambda stage: units[stage.partition(":")[0]]) as progress:
            return extraction.extract(wanted, **asked | more, progress=progress, warn=_warn)

    made = unless_persons(make)
    _remark(made)
    report(made.folder, made.features, made=not made.was_complete, as_json=as_json)


def _the_source(source: str | None, dataset: str | None) -> str:
    """SOURCE or --dataset SOURCE."""
    from dpfc_cli.errors import UserError

    if source is not None and dataset is not None:
        raise UserError(
            f"The pictures are named twice, as '{source}' and as --dataset '{dataset}'.",
            "Name them once: dpfc extract SOURCE.",
            code="conflict",
            parameter="source",
        )
    found = source if source is not None else dataset
    if found is None:
        from dpfc_cli.images import DATASETS

        raise UserError(
            "No pictures are named.",
            f"Write dpfc extract SOURCE. SOURCE is {listed(DATASETS)}.",
            code="missing",
            parameter="source",
        )
    return found


def _warn(text: str) -> None:
    from dpfc_cli.errors import spelled

    display.warn(spelled(text, flag_named))


def _remark(made: Any) -> None:
    """What an extraction did, on stderr."""
    from dpfc_cli.errors import counted

    if made.was_complete:
        return
    if made.resumed is not None:
        display.say(f"Went on with '{made.folder}': {counted(made.resumed, 'shard')} still to be made.")
    rate = made.images / max(made.seconds, 1e-9)
    display.say(f"{counted(made.images, 'image')} in {made.seconds:,.1f} s ({rate:,.0f} images/s).")
    for line in made.null[:1]:
        display.warn(line)
    for line in made.null[1:]:
        display.say(line)
    if made.features is None:
        display.say("This part is done. The other parts are not: the last to end completes the set.")
