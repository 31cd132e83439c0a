"""Looking through the pictures of an extraction before it computes for hours: everything that needs no backbone."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli import outputs
from dpfc_cli.annotations.metadata import without
from dpfc_cli.annotations.nulls import naming
from dpfc_cli.errors import GUARDED, Faults, Note, UserError, conflict, parameter
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


def look_through(wanted: Extraction, usable: Path | None = None) -> Looked:
    """Look through all that an extraction needs: tables, files, decoding, persons, splits, weights, and the ledger.

    No set is made, and nothing is downloaded or charged.

    Args:
        wanted: the extraction.
        usable: a new file for the table of labels without the lines that cannot be records, or whose picture cannot be
            used. For its owner alone (mode 0600).

    Raises:
        UserError: something is wrong: all of it at once (see `errors.Faults`).

    """
    made_of = checked(wanted)
    if usable is not None:
        outputs.check(usable, (".csv", ".jsonl", ".ndjson"))
        if made_of.asked.preparation.geometry is None:
            what = "Pictures that have another size than the first one would be left out of the table."
            raise conflict(what, f"Give {parameter('image_size')}.", parameter="image_size")
    tell = wanted.progress or (lambda stage, done, total: None)
    folder, faults = folder_of(wanted), Faults()
    here = all(remote.place.is_file() for remote in catalogue.files_of(wanted.source, made_of.data_dir)[1])
    if not here:
        return Looked(needs=made_of.needs)
    with naming(folder, wanted.tolerant):
        tell(OPENING, 0, None)
        pictures, groupings = opened(wanted, made_of, faults, tell)
        with faults.gathered():
            if usable is not None and pictures.table is None:
                raise conflict(
                    f"No table names the pictures, or several do: there is none to write to '{usable}'.",
                    f"Leave that out. Or name one table of all pictures: {parameter('table')}.",
                    parameter="usable",
                )
        with faults.gathered():
            if all(each.here() for each in made_of.needs):
                _, manifest = described(wanted, made_of, pictures, groupings, tell)
                making.found(folder, manifest, made_of.population)
        broken = _decode(wanted, pictures, faults, tell)
        left = None if usable is None or pictures.table is None else _written(usable, pictures.table, broken)
        try:
            faults.refuse()
        except UserError as refused:
            if left is not None:
                refused.add_note(Note(left))
            raise
        if left is not None:
            wanted.warned(left)
    return Looked(
        needs=made_of.needs,
        records={name: split.n for name, split in pictures.splits.items()},
        persons={name: grouping.groups for name, grouping in groupings.items()} or None,
        classes=pictures.classes,
    )


def _written(usable: Path, table: sets.LabelTable, broken: Collection[str]) -> str:
    """Write the table without the lines of these pictures, and say what that means."""
    dropped = {*table.wrong, *(table.lines[name] for name in broken)}
    data, kept = without(table.path, dropped)
    outputs.write(usable, data, mode=0o600)
    return (
        f"'{usable}' has {kept:,} of the {kept + len(dropped):,} lines. A set that is made with it has that many "
        f"records, which is public: each head states it. Null records would keep the number. {GUARDED}"
    )


def _decode(wanted: Extraction, pictures: sets.ImageSet, faults: Faults, tell: Progress) -> list[str]:
    """Decode all pictures. What is wrong with them is added to the faults. The titles of those that are broken."""
    broken, titles, done = broken_of(wanted, pictures), list[str](), 0
    total = sum(split.n for split in pictures.splits.values())
    pieces = (
        (name, split.pixels, at, min(at + prefetch.PIECE, split.n))
        for name, split in pictures.splits.items()
        for at in range(0, split.n, prefetch.PIECE)
    )
    with closing(prefetch.batches(pieces, most=cores())) as found:
        for name, batch in found:
            broken.add(name, batch.start, batch.broken)
            titles += (pictures.splits[name].pixels.title(batch.start + row) for row in batch.broken)
            tell(DECODING, done := done + len(batch.pixels), total)
    with faults.gathered():
        broken.approve({})
    if broken.said is not None:
        wanted.warned(broken.said)
    return titles
