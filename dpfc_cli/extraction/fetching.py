"""What a command needs of the network: what of it is here, and how to get the rest, before anything begins."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli import backbones, downloads
from dpfc_cli.downloads import Remote
from dpfc_cli.errors import UserError
from dpfc_cli.images import catalogue
from dpfc_cli.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The files of a data set or of a model.

    of: it, as the user names it. words: with which options. here: whether the files are on this machine. fetch: fetches
    them. remotes: what they are.
    """

    of: str
    words: tuple[str, ...]
    here: Callable[[], bool]
    fetch: Callable[[Progress | None], object]
    remotes: Callable[[], Sequence[Remote]]


def needed(
    source: str | None, data_dir: Path | None, network: backbones.Wanted | None, *, text: bool = False
) -> list[Needed]:
    """What must be on this machine to read a data set and to run a model. text: the model's text tower, too.

    Raises UserError for unknown names.
    """
    found = [] if source is None else _of_source(source, data_dir)
    return found + ([] if network is None else _of_model(network, text))


def _of_source(source: str, data_dir: Path | None) -> list[Needed]:
    _, remotes = catalogue.files_of(source, data_dir)
    if not remotes:
        return []
    return [
        Needed(
            of=source,
            words=("--dataset", source),
            here=lambda: all(each.place.is_file() for each in remotes),
            fetch=lambda progress: downloads.fetch(remotes, progress),
            remotes=lambda: remotes,
        )
    ]


def _of_model(network: backbones.Wanted, text: bool) -> list[Needed]:
    files = backbones.files(network, text=text)
    if not files:
        return []
    return [
        Needed(
            of=network.name,
            words=("--model", network.name),
            here=lambda: all(each.here() for each in files),
            fetch=lambda progress: [each.local(progress) for each in files],
            remotes=lambda: [each.remote() for each in files],
        )
    ]


def fetch(needs: Sequence[Needed], progress: Progress | None = None) -> None:
    """Fetch what is not here. UserError if it cannot be fetched: one for all (code "unreachable")."""
    failed: list[tuple[Needed, str]] = []
    for each in needs:
        if each.here():
            continue
        try:
            each.fetch(progress)
        except UserError as error:
            if error.code != "unreachable":
                raise
            failed.append((each, str(error.fields["problem"])))
    if failed:
        words = shlex.join([word for each, _ in failed for word in each.words])
        raise UserError(
            f"What is missing cannot be downloaded: {'; '.join(f'{each.of} ({why})' for each, why in failed)}.",
            f"'dpfc fetch {words} --dry-run' lists addresses, bytes, SHA-256 and where to put the files.",
            code="unreachable",
            missing=[each.of for each, _ in failed],
        )
