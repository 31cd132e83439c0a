"""Looking through the pictures of an extraction before it computes for hours: everything that needs no backbone."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from dpfc_cli.annotations.broken import naming
from dpfc_cli.errors import Faults
from dpfc_cli.extraction import making
from dpfc_cli.extraction.extract import OPENING, broken_of, checked, described, folder_of, opened
from dpfc_cli.extraction.fetching import Needed
from dpfc_cli.extraction.request import Extraction
from dpfc_cli.images import catalogue, prefetch, sets
from dpfc_cli.progress import Progress
from dpfc_cli.threads import cores

DECODING = "Decoding"
"""The stage that progress is told."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What an extraction would do.

    Attributes:
        needs: what comes from the network, for the pictures and for the model.
        records: how many records each split would have; None: the pictures are not here yet.
        persons: how many persons each split would have; None: nobody asked for persons.
        classes: their names.

    """

    needs: list[Needed]
    records: Mapping[str, int] | None = None
    persons: Mapping[str, int] | None = None
    classes: tuple[str, ...] = ()


def look_through(wanted: Extraction) -> Looked:
    """Look through all that an extraction needs: tables, files, decoding, persons, splits, weights, and the ledger.

    No set is made, and nothing is downloaded or charged. UserError: something is wrong: all of it at once (see
    `errors.Faults`).
    """
    made_of = checked(wanted)
    tell = wanted.progress or (lambda stage, done, total: None)
    folder, faults = folder_of(wanted), Faults()
    here = all(remote.place.is_file() for remote in catalogue.files_of(wanted.source, made_of.data_dir)[1])
    if not here:
        return Looked(needs=made_of.needs)
    with naming(folder, wanted.tolerant):
        tell(OPENING, 0, None)
        pictures, groupings = opened(wanted, made_of, faults, tell)
        with faults.gathered():
            if all(each.here() for each in made_of.needs):
                _, manifest = described(wanted, made_of, pictures, groupings, tell)
                making.found(folder, manifest, made_of.population)
        _decode(wanted, pictures, faults, tell)
        faults.refuse()
    return Looked(
        needs=made_of.needs,
        records={name: split.n for name, split in pictures.splits.items()},
        persons={name: grouping.groups for name, grouping in groupings.items()} or None,
        classes=pictures.classes,
    )


def _decode(wanted: Extraction, pictures: sets.ImageSet, faults: Faults, tell: Progress) -> None:
    """Decode all pictures. What is wrong with them is added to the faults."""
    broken, done = broken_of(wanted, pictures), 0
    total = sum(split.n for split in pictures.splits.values())
    pieces = (
        (name, split.pixels, at, min(at + prefetch.PIECE, split.n))
        for name, split in pictures.splits.items()
        for at in range(0, split.n, prefetch.PIECE)
    )
    with closing(prefetch.batches(pieces, most=cores())) as found:
        for name, batch in found:
            broken.add(name, batch.start, batch.broken)
            tell(DECODING, done := done + len(batch.pixels), total)
    with faults.gathered():
        broken.approve({})
    if broken.said is not None:
        wanted.warned(broken.said)
