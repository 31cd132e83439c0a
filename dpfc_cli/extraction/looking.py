"""Looking through the pictures of an extraction before it computes for hours: everything that needs no backbone."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from dpfc_cli.errors import GUARDED, Faults, bad_record, counted, parameter, secret
from dpfc_cli.extraction.extract import OPENING, checked, described, folder_of, opened
from dpfc_cli.extraction.fetching import Needed
from dpfc_cli.extraction.request import Extraction
from dpfc_cli.features.writer import complete
from dpfc_cli.images import catalogue, prefetch, sets
from dpfc_cli.images.sets import UnreadableError
from dpfc_cli.ledger.populations import check_new, check_same
from dpfc_cli.progress import Progress
from dpfc_cli.sources.nulls import Broken, naming

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

    Nothing is made, downloaded or charged.

    Raises:
        UserError: something is wrong: all of it at once (see `errors.Faults`).

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
                if complete(folder, manifest, partial(check_same, population=made_of.population)) is None:
                    check_new(folder, manifest, made_of.population)
        with faults.gathered():
            _decode(wanted, pictures, faults, tell)
        faults.refuse()
    return Looked(
        needs=made_of.needs,
        records={name: split.n for name, split in pictures.splits.items()},
        persons={name: grouping.groups for name, grouping in groupings.items()} or None,
        classes=pictures.classes,
    )


def _decode(wanted: Extraction, pictures: sets.ImageSet, faults: Faults, tell: Progress) -> None:
    """Decode all pictures. UserError if too many are broken."""
    splits = pictures.splits
    sizes = {name: split.n for name, split in splits.items()}
    broken = Broken("picture", sizes, lambda split, i: splits[split].pixels.title(i), wanted.share)
    done, unequal = 0, list[str]()
    for name, split in splits.items():
        progress = lambda now, before=done: tell(DECODING, before + now, sum(sizes.values()))  # noqa: E731
        with closing(prefetch.faulty(split.pixels, split.n, progress)) as found:
            for i, error in found:
                if isinstance(error, UnreadableError):
                    broken.add(name, i, {0: str(error.fields["reason"])})
                else:
                    unequal.append(split.pixels.title(i))
        done += split.n
    with faults.gathered():
        if unequal:
            raise bad_record(
                f"{counted(len(unequal), 'picture')} of another size than the first one: {secret(*unequal)}. {GUARDED}",
                f"Give a size that all images are resized and cropped to: {parameter('image_size')}.",
                parameter="image_size",
            )
    broken.approve({})
    if broken.said is not None:
        wanted.warned(broken.said)
