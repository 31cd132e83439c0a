"""`dpfc fetch`: what a command would download, downloaded before or listed; for machines without a network."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import one_source
from dpfc_cli.errors import UserError
from dpfc_cli.extraction.request import SOURCES, Extraction
from dpfc_cli.options import Option, declared
from dpfc_cli.progress import show
from dpfc_cli.show.document import Block, Rows, page

if TYPE_CHECKING:
    from dpfc_cli.extraction.fetching import Needed


WHERE = SOURCES[1:5]
"""The data sets that come from the network."""


@command("fetch", panel="Pictures and heads", when_stopped="The same command fetches what is missing.")
def fetch(
    source: Annotated[str | None, Option("A data set that can be downloaded.", argument=True, choices=WHERE)] = None,
    dataset: Annotated[str | None, Option("The same as SOURCE.", metavar="SOURCE", choices=WHERE)] = None,
    model: Annotated[str | None, declared(Extraction)["model"]] = None,
    dry_run: Annotated[bool, Option("List the files and where to put them. Fetch nothing.")] = False,
) -> None:
    """Fetch all that a data set and a model take from the network, or list it: addresses, bytes, SHA-256, places.

    Without a network, get the listed files elsewhere and put them where the list says. Or fetch on another machine with
    DPFC_CACHE and HF_HOME set to folders, and carry these. Mirrors: DPFC_MIRROR and HF_ENDPOINT.
    """
    from dpfc_cli.backbones import Wanted
    from dpfc_cli.extraction import fetching

    wanted = one_source(source, dataset)
    if wanted is None and model is None:
        remedy = "Write for instance dpfc fetch cifar10 --model vit-b16."
        raise UserError("Neither a data set nor a model is named.", remedy, code="missing")
    needs = fetching.needed(wanted, None, None if model is None else Wanted(name=model), text=True)
    if not dry_run:
        fetching.fetch(needs, show)
    show_needed(needs)


def show_needed(needs: "Sequence[Needed]", counts: Mapping[str, Mapping[str, int]] | None = None) -> None:
    """What is on this machine, and what is not and where it would have to be. counts: of records and of persons in each
    split, if the pictures were looked through.
    """
    counts = counts or {}
    state = {each.of: each.here() for each in needs}
    files = [(each.of, remote) for each in needs for remote in each.remotes()]
    missing = [of for of, here in state.items() if not here]
    listed = [{"of": of, **each._asdict(), "path": str(each.place), "here": state[of]} for of, each in files]
    rows = [(of, "here" if here else "missing") for of, here in state.items()]
    found = [(what, ", ".join(f"{split} {n:,}" for split, n in splits.items())) for what, splits in counts.items()]
    blocks: list[Block] = [Rows(found, title="Nothing is wrong with the pictures")] if found else []
    blocks += [Rows(rows or [("all", "here: nothing comes from the network")], title="What it needs")]
    for of, each in files:
        if not state[of]:
            facts = [("address", url) for url in each.urls]
            facts += [] if each.size is None else [("bytes", f"{each.size:,}")]
            facts += [] if each.sha256 is None else [("SHA-256", each.sha256)]
            facts.append(("put it at", str(each.place)))
            blocks.append(Rows(facts, title=f"{each.place.name}, of {of}"))
    display.show(page("", *blocks, values={"missing": missing, "files": listed, **counts}))
