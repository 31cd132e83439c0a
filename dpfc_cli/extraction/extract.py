"""Extraction: pictures in, a feature set out.

`extract` is what `dpfc extract` calls. The bytes of a shard depend only on its own pictures and on the number of its
first record. So a run that was killed ends with the same files as an undisturbed one on the same kind of device.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from dpfc_cli import backbones
from dpfc_cli.annotations.broken import Broken, naming
from dpfc_cli.annotations.classes import class_names
from dpfc_cli.annotations.groups import Grouping, Rule, rule_of
from dpfc_cli.annotations.person_hints import persons_noticed, refuse_both
from dpfc_cli.annotations.subgroups import subgroups_of
from dpfc_cli.backbones import Backbone
from dpfc_cli.errors import GUARDED, Faults, Note, conflict, counted, parameter
from dpfc_cli.extraction import making
from dpfc_cli.extraction.fetching import Needed, fetch, needed
from dpfc_cli.extraction.making import Advance, subgroups_in
from dpfc_cli.extraction.request import AUTO, Extraction
from dpfc_cli.features.lookup import new_folder
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard, ShardSink
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.geometry import Geometry
from dpfc_cli.images import catalogue, prefetch, sets
from dpfc_cli.images.pictures import Notice, Preparation
from dpfc_cli.ledger.facts import RESERVED
from dpfc_cli.ledger.populations import check_name
from dpfc_cli.options import engine_named, takes
from dpfc_cli.places import place_of
from dpfc_cli.progress import Progress
from dpfc_cli.structs import Values

LIBRARIES = ("jax", "numpy", "pillow", "simplejpeg", "h5py")
OPENING, LOADING, EXTRACTING = "Opening the data set", "Loading the model", "Extracting"
LOOKING = "Looking for more broken pictures"
"""The stages that progress is told. More words may follow after a colon."""


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """What an extraction did.

    folder: where the feature set is. features: the set.
    was_complete: whether it was complete before, so that nothing was computed. images, seconds: how many pictures this
    call computed, and how long that took. resumed: how many shards were still to be made when this call continued an
    earlier one; None if it began the set.
    """

    folder: Path
    features: FeatureSet
    was_complete: bool = False
    images: int = 0
    seconds: float = 0.0
    resumed: int | None = None


@takes(Extraction)
def extract(wanted: Extraction) -> Extracted:
    """Compute the features of a data set's pictures and store them as a feature set.

    A call that was interrupted leaves the shards that it finished. The same call makes the others. Progress is told the
    stage (`OPENING`, `LOADING`, `EXTRACTING` or `LOOKING`, and details after a colon), how much of it is done, and how
    much it is in all, if that is known.

    Returns:
        The feature set and what was done.

    Raises:
        UserError: a parameter makes no sense, a file is missing or damaged, some pictures seem to be of one person
            (`PersonsNoticedError`), or the folder holds another set. Nothing was computed then, unless the message
            names a picture or a feature.

    Examples:
        >>> extract("digits", model="scattering").features.manifest.dim
        324

    """
    made_of = checked(wanted)
    folder = folder_of(wanted)
    with naming(folder, wanted.tolerant):
        return _extracted(wanted, made_of, folder)


def folder_of(given: Extraction) -> Path:
    """Where the set is made. A set without a name is called after its kind of source, its model, and what is not the
    default. Heads have that name, so it says nothing of a path, which may be called after a patient.
    """
    if given.out:
        return new_folder(given.out)
    model = given.model
    parts = [
        given.source.partition(":")[0],
        "persons" if given.group_by else None,
        model.replace(":", "-").replace("/", "-"),
        given.pool,
    ]
    parts += [None if given.preprocess == backbones.own_recipe(model) else given.preprocess]
    parts += [f"holdout{given.hold_out:g}" if given.hold_out else None, f"limit{given.limit}" if given.limit else None]
    return new_folder("-".join(filter(None, parts)))


def _extracted(wanted: Extraction, made_of: "Extractable", folder: Path) -> Extracted:
    tell = wanted.progress or (lambda stage, done, total: None)
    tell(OPENING, 0, None)
    if catalogue.files_of(wanted.source, made_of.data_dir)[1]:
        # What is missing is said at once.
        fetch(made_of.needs, _within(LOADING, tell))
    faults = Faults()
    pictures, groupings = opened(wanted, made_of, faults, tell)
    with faults.gathered():
        unusable = broken_of(wanted, pictures)
        for name, split in pictures.splits.items():
            unusable.add(name, 0, split.pixels.unusable)
        unusable.approve({})
    faults.refuse()
    backbone, manifest = described(wanted, made_of, pictures, groupings, tell)
    features = making.found(folder, manifest, made_of.population)
    if features is not None:
        return Extracted(folder=folder, features=features, was_complete=True)
    notices, told = made_of.asked.preparation.notices, set[Notice]()
    broken, started = broken_of(wanted, pictures), time.monotonic()

    def write(writer: FeatureWriter) -> int:
        stage = EXTRACTING if writer.resumed is None else f"{EXTRACTING}: {counted(writer.resumed, 'shard')} left"

        def advance(done: int, total: int) -> None:
            for what in notices - told:
                told.add(what)
                wanted.warned(f"At least one picture {_NOTICED[what]} {GUARDED}")
            tell(stage, done, total)

        look = partial(tell, LOOKING)
        missing = writer.missing
        if wanted.on is None or not missing:
            return make_shards(missing, writer.shard, pictures, backbone, broken, advance, look)
        engine: making.Engine = engine_named(wanted.on)
        shape = next(iter(pictures.splits.values())).pixels.shape
        network = replace(made_of.network, image_shape=shape)
        load = partial(loaded, network, backbone.describe())
        return engine.make_shards(writer, pictures, load, broken, advance, look)

    whose = made_of.population
    values = {name: split.subgroups for name, split in pictures.splits.items() if split.subgroups is not None}
    given: dict[str, Any] = {"groupings": groupings, "subgroups": values, "population": whose}
    made = making.make(wanted, folder, manifest, write, broken, **given, keep=True)
    seconds = time.monotonic() - started
    return Extracted(folder=folder, features=made.features, images=made.records, seconds=seconds, resumed=made.resumed)


def opened(
    wanted: Extraction, made_of: "Extractable", faults: Faults, tell: Progress
) -> tuple[sets.ImageSet, dict[str, Grouping]]:
    """The pictures that are wanted, and whose they are. What is wrong with them is added to the faults. UserError: with
    that they cannot be looked through.
    """
    hold_out, limit = wanted.hold_out, wanted.limit
    asked = replace(made_of.asked, progress=_within(OPENING, tell))
    pictures = catalogue.open_images(wanted.source, made_of.data_dir, asked, faults)
    for remark in pictures.remarks:
        wanted.warned(remark)
    with faults.gathered():
        unasked = asked.group_by is None and not wanted.each_record_is_a_person
        if unasked and (noticed := pictures.noticed()) is not None:
            raise persons_noticed(wanted.source, "group_by", noticed)
    with faults.gathered():
        pictures = pictures if hold_out is None else sets.held_out(pictures, hold_out)
    if limit is not None:
        pictures = replace(pictures, splits={name: split.spread(limit) for name, split in pictures.splits.items()})
    with faults.gathered():
        if all(split.keys is not None for split in pictures.splits.values()):
            return sets.by_person(pictures)
    return pictures, {}


def broken_of(wanted: Extraction, pictures: sets.ImageSet) -> Broken:
    """What knows of broken pictures. None of them is known yet."""
    splits, null = pictures.splits, f"{parameter('on_error')} null"
    if wanted.image_size is None and backbones.geometry_of(wanted.model, wanted.preprocess) is None:
        null += f", and {parameter('image_size')}, which brings all to one size; with another {parameter('out')}"
    sizes = {name: split.n for name, split in splits.items()}
    return Broken("picture", sizes, lambda split, i: splits[split].pixels.title(i), wanted.share, null)


def described(
    wanted: Extraction,
    made_of: "Extractable",
    pictures: sets.ImageSet,
    groupings: dict[str, Grouping],
    tell: Progress,
) -> tuple[Backbone, Manifest]:
    """What computes the features, and the manifest of the set."""
    tell(LOADING, 0, None)
    shape = next(iter(pictures.splits.values())).pixels.shape
    backbone = backbones.load(replace(made_of.network, image_shape=shape, progress=_within(LOADING, tell)))
    # The listing is that of the source. So the ledger knows the pictures, with persons and without.
    who = {name: grouping.digest for name, grouping in groupings.items()} or None
    kept = subgroups_in({name: split.subgroups for name, split in pictures.splits.items()}, made_of.asked.subgroups)
    options = {"spread": wanted.limit, "hold_out": wanted.hold_out, "groups": who, "subgroups": kept}
    asked = made_of.asked
    manifest = manifest_of(pictures, backbone, wanted.dtype, asked.preparation, asked.group_by, **options)
    return backbone, structs.replace(manifest, subgroups=asked.subgroups or None)


def loaded(network: backbones.Wanted, said: Values) -> Backbone:
    """A backbone in another process. said: what it says of itself in the first one. UserError: another thing."""
    fetch(needed(None, None, network))
    backbone = backbones.load(network)
    if backbone.describe() != said:
        raise conflict(
            f"The backbone {network.name} is another one here than in the process that writes the set.",
            "Install the same libraries on all machines, and give them the same weights.",
        )
    return backbone


class Extractable(NamedTuple):
    """An extraction that may be possible, and what it needs on this machine."""

    network: backbones.Wanted
    data_dir: Path | None
    asked: sets.Request
    population: str | None
    needs: list[Needed]


def checked(wanted: Extraction) -> Extractable:
    """What is wanted. What can be refused before a single byte is fetched or read is refused here."""
    source, model, preprocess = wanted.source, wanted.model, wanted.preprocess
    network = backbones.Wanted(
        name=model,
        pool=wanted.pool,
        preprocess=preprocess,
        weights=wanted.weights,
        batch=wanted.batch,
        precision=backbones.fast_precision(model) if wanted.precision == AUTO else wanted.precision,
    )
    backbones.check(network)
    data_dir = None if wanted.data_dir is None else Path(wanted.data_dir)
    refuse_both(wanted.each_record_is_a_person, wanted.group_by is not None, "group_by")
    rule = None if wanted.group_by is None else rule_of(wanted.group_by)
    place = catalogue.files_of(source, data_dir)[0] if data_dir is not None or ":" in source else None
    wanted.check_there(**{"source" if data_dir is None else "data_dir": place})
    asked = sets.Request(
        preparation=Preparation(window=wanted.window, exif=wanted.exif),
        classes=class_names(wanted.classes),
        label_column=wanted.label_column,
        table=None if wanted.table is None else place_of(wanted.table).expanduser(),
        file_column=wanted.file_column,
        group_by=rule,
        subgroups=subgroups_of(wanted.subgroups),
    )
    catalogue.check(source, data_dir, asked)
    whose = _population_of(wanted.population, catalogue.catalogued(source, data_dir))
    geometry = _geometry_of(model, preprocess, wanted.image_size)
    if wanted.tolerant and geometry is None:
        raise conflict(
            "Pictures that have another size than the first one would become null records.",
            f"Give {parameter('image_size')}, or leave out {parameter('on_error')}.",
        )
    asked = replace(asked, preparation=replace(asked.preparation, geometry=geometry))
    return Extractable(network, data_dir, asked, whose, needed(source, data_dir, network))


def manifest_of(
    source: sets.ImageSet,
    backbone: Backbone,
    dtype: str,
    preparation: Preparation,
    rule: Rule | None = None,
    **other: object,
) -> Manifest:
    """The manifest of a set that is still to be made: it has no shards.

    Its identity is what the set is made of, and how. A run continues only a set of the same identity.

    rule: how persons were found. other: further options that change the features or the records. None stands for a
    default, and is left out.
    """
    from dpfc_cli.version import __version__

    described = backbone.describe()
    identity = {
        "dataset": source.name,
        "listing": {name: split.listing for name, split in source.splits.items()},
        "backbone": described,
        "preparation": preparation.describe(),
        "dtype": dtype,
        **{name: value for name, value in other.items() if value is not None},
    }
    return Manifest(
        classes=source.classes,
        dim=backbone.dim,
        dtype=dtype,
        labels_per_record=1,
        origin=source.origin,
        splits={},
        backbone=described,
        source={"dataset": source.name, "identity": identity},
        versions={"dpfc": __version__, **{name: version(name) for name in LIBRARIES}},
        grouped_by=None if rule is None else rule.describe(),
    )


def _geometry_of(model: str, preprocess: str | None, image_size: int | None) -> Geometry | None:
    """How pictures are resized and cropped; None if they are not."""
    own = backbones.geometry_of(model, preprocess)
    if image_size is None:
        return own
    if own is None:
        return Geometry(resize=image_size, crop=image_size)
    raise conflict(
        f"'{model}' looks at squares of {own.crop} pixels.",
        f"Leave out {parameter('image_size')}: it is for models that take any size. Or choose another "
        f"{parameter('preprocess')}.",
    )


def _population_of(given: str | None, catalogued: str | None) -> str | None:
    """The population of a set that is to be made. catalogued: the name of the public data set that it is made of.
    UserError: the name cannot be that of a population, or the data set has one of its own.
    """
    check_name(given)
    if given is not None and catalogued is not None:
        what = f"{catalogued} is a public data set with a population of its own."
        raise conflict(what, "Leave it out.", parameter="population")
    return given if catalogued is None else RESERVED + catalogued


_NOTICED: dict[Notice, str] = {
    "dark": "uses less than a quarter of the grey values that its file can hold, so it becomes nearly one shade. "
    f"If the device gives fewer bits, say so: {parameter('window')} 0,4095 for 12 bits. Take these numbers from "
    "the device, not from the pictures.",
    "frames": "has several frames or pages, and only the first is taken.",
    "rescaled": "says what its grey values mean (DICOM with a slope and an intercept, or with a table), and is read "
    "without a window. If these differ between pictures, as between devices, one shade has several meanings. Name the "
    f"values that become black and white: {parameter('window')} -1000,400 (for computed tomography, Hounsfield units).",
    "turned": "has an EXIF orientation, and is read as its pixels lie. If pictures should be turned as cameras "
    f"mean it: {parameter('exif')}.",
}
"""What the user is told, once, of at least one picture."""


def _within(stage: str, tell: Progress) -> Progress:
    """Progress of what goes on inside a stage, told as 'stage: what'."""
    return lambda what, done, total: tell(f"{stage}: {what}", done, total)


# The shards: while the device computes a batch, the next ones are decoded and the last one is written


class _UnfinishedError(Exception):
    """A shard is not to be finished."""


def make_shards(
    missing: Sequence[PlannedShard],
    shard: Callable[[PlannedShard], AbstractContextManager[ShardSink]],
    source: sets.ImageSet,
    backbone: Backbone,
    broken: Broken,
    advance: Advance | None = None,
    look: Advance | None = None,
) -> int:
    """Make these shards.

    If too many pictures are broken, the set cannot be made. Then nothing more is computed: features are expensive, and
    would be made in vain if the pictures are corrected. The pictures that are left are decoded, so that the user learns
    of all broken ones at once. The shards that were finished stay.

    shard: a context with a sink for the rows of one. broken: that of the writer. The pictures that cannot be decoded
    are added to it. advance: told the pictures done and those to be done; look: the same while they are only decoded.
    Returns how many were computed. UserError: too many are broken. It says where they are named.
    """
    total, done, seen = sum(planned.rows for planned in missing), 0, 0
    wanted = (
        (planned, source.splits[planned.split].pixels, start, min(start + backbone.batch, planned.stop))
        for planned in missing
        for start in range(planned.start, planned.stop, backbone.batch)
    )

    def sound() -> Iterator[tuple[tuple[PlannedShard, prefetch.Batch], np.ndarray]]:
        """What is to be computed: each batch, until too many pictures are broken. The others are only looked at."""
        nonlocal seen
        for planned, batch in decoded:
            broken.add(planned.split, batch.start, batch.broken)
            seen += len(batch.pixels)
            if not broken.too_many:
                yield (planned, batch), batch.pixels
            elif broken.full:
                break
            elif look:
                look(seen, total)

    try:
        with closing(prefetch.batches(wanted)) as decoded:
            found = backbones.computed(backbone, sound())
            for planned, computed in itertools.groupby(found, key=lambda each: each[0][0]):
                split = source.splits[planned.split]
                with suppress(_UnfinishedError), shard(planned) as sink:
                    for (_, batch), features in computed:
                        stop = batch.start + len(features)
                        sink.append(features, split.labels[batch.start : stop], batch.null)
                        done += len(features)
                        if advance:
                            advance(done, total)
                    if broken.too_many and sink.filled < planned.rows:
                        raise _UnfinishedError
        if broken.too_many:
            raise broken.refusal()
    except KeyboardInterrupt as stopped:
        if broken.too_many:
            stopped.add_note(Note(f"{broken.number} so far. {GUARDED}"))
        raise
    return done
