"""Making a feature set of features that are there: in memory, or in files of another program."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfc_cli.annotations.broken import naming
from dpfc_cli.annotations.classes import Labels, check_names, class_names, coded, numbers_of, stated
from dpfc_cli.annotations.groups import GROUPS, check_apart
from dpfc_cli.annotations.person_hints import persons_noticed, refuse_both
from dpfc_cli.annotations.subgroups import subgroups_of
from dpfc_cli.errors import GUARDED, Faults, bad_record, conflict, counted, parameter, quoted, secret
from dpfc_cli.extensions.importing import slides
from dpfc_cli.extensions.importing.request import Import
from dpfc_cli.extensions.importing.table import Table, Tables
from dpfc_cli.extensions.importing.tables import Arrays, in_memory, opened
from dpfc_cli.extraction.arrays import Source, make_of
from dpfc_cli.features.lookup import new_folder
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.populations import check_name
from dpfc_cli.options import takes
from dpfc_cli.places import place_of

_HOT = frozenset(("0", "1", "0.0", "1.0", "False", "True"))
"""Labels of tables with a column for each class."""


ARRAYS = "arrays"
"""What manifests and messages call a source in memory."""


class Imported(NamedTuple):
    """What an import did. features: the set. made: whether it was made now; False if it was complete before."""

    features: FeatureSet
    made: bool


@takes(Import)
def import_features(wanted: Import) -> Imported:
    """Make a feature set of features in a file, in a folder, or in memory.

        texts = import_features("embeddings.npz", "texts", classes=["spam", "ham"]).features
        wards = import_features({"train_x": x, "train_y": y, "train_groups": patient}, "wards", classes=2).features

    The classes and the most labels of a record are public facts: every head has them. So they are stated, and do not
    follow from the records.

    Returns:
        The set, and whether it was made now. It is not made again if `out` already holds it.

    Raises:
        UserError: something cannot be imported, or some records seem to be of one person (`PersonsNoticedError`). No
            finished set is left behind then.

    """
    given, arrays = (ARRAYS, in_memory(wanted.path)) if isinstance(wanted.path, Mapping) else (wanted.path, None)
    folder = slides.folder_of(given)
    path = place_of(given) if folder is None else folder
    refuse_both(wanted.each_record_is_a_person, wanted.group_column is not None, "group_column")
    # Heads have the name. A path may be called after a patient.
    held = "" if wanted.hold_out is None else f"-holdout{wanted.hold_out:g}"
    out = new_folder(f"{'imported' if folder is None else 'slides'}{held}" if wanted.out is None else wanted.out)
    check_name(wanted.population)
    wanted.check_there(path=path if arrays is None else None)
    classes = stated(class_names(wanted.classes))
    with naming(out, wanted.tolerant), _tables(wanted, path, arrays, folder, classes) as found:
        for remark in found.remarks:
            wanted.warned(remark)
        labels = _checked(wanted, path, found, classes)
        source = Source(
            path=path,
            classes=classes,
            k=_labels_per_record(wanted, path, found.splits),
            labels=labels,
            person={
                "by": "column" if folder is None else "table",
                "column": found.person or wanted.group_column or GROUPS,
            },
            feature=None if folder is None else f"mean of the patches of each {wanted.pool_by or 'slide'}",
        )
        return Imported(*make_of(found.splits, source, out, wanted, wanted.dtype))


def _tables(
    wanted: Import, path: Path, arrays: Arrays | None, folder: Path | None, classes: tuple[str, ...]
) -> AbstractContextManager[Tables]:
    names = subgroups_of(wanted.subgroups)
    if folder is not None:
        if names:
            raise conflict("Of slides no columns are kept.", f"Leave out {parameter('subgroups')}.")
        return nullcontext(slides.pooled(folder, wanted, classes))
    slides.refuse(wanted)
    return opened(path, arrays, wanted.column, wanted.label_column, wanted.group_column, names)


def _checked(wanted: Import, path: Path, found: Tables, classes: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The numbers of the classes that labels mean. UserError: of all that is wrong with persons and labels."""
    tables, faults = found.splits, Faults()
    single, persons = wanted.each_record_is_a_person, {s: t.keys for s, t in tables.items() if t.keys is not None}
    refuse_both(single, bool(persons), "group_column")
    with faults.gathered():
        if not persons and not single and (seems := found.noticed()) is not None:
            raise persons_noticed(str(path), "group_column", seems)
    with faults.gathered():
        check_apart(persons)
    labels = _numbers(tables, found.classes, classes, faults)
    faults.refuse()
    return labels


def _labels_per_record(wanted: Import, path: Path, tables: Mapping[str, Table]) -> int:
    width, k = max(table.y.shape[1] for table in tables.values()), wanted.labels_per_record
    by_list = any(table.counted for table in tables.values())
    if k is None and (width > 1 or by_list):
        raise conflict(
            "Records may have several labels here, and nobody says how many. Each head says it, so it is public.",
            f"Say how many a record has at most: {parameter('labels_per_record')}.",
            parameter="labels_per_record",
        )
    if (k or 1) < width:
        raise conflict(
            f"{quoted(path)} has {f'a record with {width} labels' if by_list else f'{width} label columns'}, more than "
            f"{parameter('labels_per_record')} {k}.{f' {GUARDED}' if by_list else ''}",
            "Assert the larger number, or drop columns.",
        )
    return k or 1


def _numbers(
    tables: Mapping[str, Table], called: tuple[str, ...] | None, classes: tuple[str, ...], faults: Faults
) -> dict[str, np.ndarray]:
    """The numbers of classes that the labels mean. called: what numbers stand for, if the source says so.

    Added to the faults: a label means no class, a record has none, or the labels are zeros and ones for each class.
    """
    labels = {split: _labels(table, called) for split, table in tables.items()}
    for split, own in labels.items():
        # Of two classes, each record could have both. Whoever means that has columns of zeros and ones, too.
        if own.codes.shape[1] > 1 and _HOT.issuperset(own.texts[code] for code in np.unique(own.codes)):
            with faults.gathered():
                raise bad_record(
                    f"The {split} labels are a table of zeros and ones, as of a column for each class. {GUARDED}",
                    "Give the numbers of each record's classes instead, from 0, filled up with −1 to one length. For "
                    "one class in each record, in NumPy: y.argmax(axis=1).",
                )
        unlabelled = np.array([not text for text in own.texts])[own.codes].all(axis=1)
        if not tables[split].nulls and (lacking := np.flatnonzero(unlabelled).tolist()):
            what = f"{counted(len(lacking), f'{split} record')} without a label: {secret(*lacking)}. {GUARDED}"
            with faults.gathered():
                raise bad_record(what, "Label them, or leave them out before importing.")
    with faults.gathered():
        check_names(called or (), classes)
    return numbers_of(labels, classes, faults)


def _labels(table: Table, called: tuple[str, ...] | None) -> Labels:
    if table.names is None:
        return coded(table.y, called)
    own = coded([*table.names, None], called)
    # −1 is the last one.
    return Labels(own.texts, own.codes[table.y])
