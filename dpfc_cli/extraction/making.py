"""Making a feature set: one that is there is found; otherwise its shards are made, and it is written down and named."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dpfc_cli.annotations.broken import Broken
from dpfc_cli.annotations.groups import Grouping
from dpfc_cli.annotations.subgroups import Named
from dpfc_cli.backbones import Backbone
from dpfc_cli.errors import UserError, conflict, parameter
from dpfc_cli.extraction.request import Making
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter, complete, saying_what_is_kept
from dpfc_cli.images.sets import ImageSet
from dpfc_cli.ledger.populations import check_new, check_same, register

Advance = Callable[[int, int], None]
"""Told how many pictures are done, of how many."""


class Engine(Protocol):
    """What computes features on other processes or machines."""

    def make_shards(
        self,
        writer: FeatureWriter,
        source: ImageSet,
        load: Callable[[], Backbone],
        broken: Broken,
        advance: Advance,
        look: Advance,
    ) -> int:
        """Make the shards that the writer still lacks, and give it each as it is whole. As `extract.make_shards`, which
        computes one there.

        load: loads the backbone, in another process.
        """
        ...


class Made(NamedTuple):
    """What was made.

    Attributes:
        features: the set.
        records: how many the shards have that were made now.
        resumed: how many shards were still to be made when this call continued an earlier one; None if it began the
            set.

    """

    features: FeatureSet
    records: int
    resumed: int | None


def found(folder: Path, manifest: Manifest, population: str | None) -> FeatureSet | None:
    """The set if it is there. None: it may be made. UserError: it may not, or another one lies there."""
    there = complete(folder, manifest, partial(check_same, population=population))
    if there is None:
        check_new(folder, manifest, population)
    return there


def subgroups_in(values: Mapping[str, np.ndarray | None], asked: Named) -> dict[str, str] | None:
    """A digest of the subgroups of each split, for the identity of a set; None if none are asked for. UserError where
    the source has no such columns.
    """
    if not asked:
        return None
    known = {split: each for split, each in values.items() if each is not None}
    if len(known) < len(values):
        raise conflict(
            "This source has no columns to keep.", f"Leave out {parameter('subgroups')}.", parameter="subgroups"
        )
    names = json.dumps(asked).encode()
    return {split: hashlib.sha256(names + each.astype("<i4").tobytes()).hexdigest() for split, each in known.items()}


def make(
    wanted: Making,
    folder: Path,
    manifest: Manifest,
    write: Callable[[FeatureWriter], int],
    broken: Broken,
    *,
    groupings: Mapping[str, Grouping],
    subgroups: Mapping[str, np.ndarray],
    population: str | None,
    keep: bool,
) -> Made:
    """Make a set that is not there.

    Args:
        wanted: whom to warn.
        folder: where it is to lie.
        manifest: what it is made of.
        write: writes shards that the writer lacks, and says how many records they have.
        broken: what knows of null records, and how many there may be.
        groupings: whose the records of each split are, if that is known.
        subgroups: the numbers of their values in the columns that are kept, if any are.
        population: whose records they are.
        keep: whether finished shards are kept if a record was refused. Once that is corrected, it is another source.

    Raises:
        UserError: the set cannot be made.

    """
    groups = {split: grouping.ids for split, grouping in groupings.items()} or None
    writer = FeatureWriter(folder, manifest, broken, groups, population, subgroups or None)
    with saying_what_is_kept(folder), closing(writer):
        try:
            count = write(writer)
            writer.finish(partial(register, population=population))
        except UserError as error:
            if not keep and error.code in ("bad-record", "conflict"):
                writer.discard()
            raise
    if broken.said is not None:
        wanted.warned(broken.said)
    return Made(FeatureSet(folder), count, writer.resumed)
