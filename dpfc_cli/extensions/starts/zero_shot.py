"""Class vectors from what is public about the classes: their names, or the classifier that the backbone was trained
with.

**No record is read to make them.** They depend on the names of the classes and on the weights of the backbone alone. So
a training may start from them at no cost in privacy (`vectors`), if the names are public and the weights
know nothing of the private records. Only scoring them reads records.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli import backbones, outputs
from dpfc_cli.annotations.classes import by_name, class_names
from dpfc_cli.backbones import BACKBONES, Wanted
from dpfc_cli.errors import conflict, counted, missing, parameter, printable, quoted
from dpfc_cli.evaluation.exact import Evaluation, figures
from dpfc_cli.extensions.starts import text
from dpfc_cli.extensions.starts.classifier_rows import (
    Chosen,
    below,
    check_count,
    labelled,
    labels_in,
    stated,
)
from dpfc_cli.extensions.starts.means import mean_of
from dpfc_cli.extensions.starts.request import ClassVectors
from dpfc_cli.extensions.starts.wordnet import DATA, INDEX, WordNet
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Scorer, ordered
from dpfc_cli.ledger.public import SPLIT, check_public, protected
from dpfc_cli.methods.whitened import unit_chain
from dpfc_cli.options import takes
from dpfc_cli.progress import Progress
from dpfc_cli.reading import lines_in
from dpfc_cli.training.public import differing


@dataclass(frozen=True, eq=False, kw_only=True)
class ZeroShot:
    """Class vectors in a file.

    Attributes:
        path: the file. `train` takes it as `public_head`.
        made: whether it was written now; False: a file with the same bytes was there.
        classes: the names of all classes.
        known: the names of those that have a vector.
        vectors: a row for each of these.
        origin: how they were made, JSON-able; the file has it, too.
        evaluation: how good they are on the split that was named; None if none was.
        warnings: sentences about them, for whoever uses them.

    """

    path: Path
    made: bool
    classes: tuple[str, ...]
    known: tuple[str, ...]
    vectors: np.ndarray
    origin: Mapping[str, Any]
    evaluation: Evaluation | None
    warnings: tuple[str, ...]

    @property
    def without(self) -> tuple[str, ...]:
        """The names of the classes without a vector."""
        known = set(self.known)
        return tuple(name for name in self.classes if name not in known)


@takes(ClassVectors)
def zero_shot(wanted: ClassVectors) -> ZeroShot:
    """Make a file of class vectors, from which a training can start at no cost in privacy.

    Returns:
        The vectors and their file.

    Raises:
        UserError: something must be corrected. No file is left then.

    Examples:
        start = dpfc.zero_shot(features, source="text")
        dpfc.train(features, epsilon=0.1, public_head=start.path)

    """
    features, source, on, split, progress = wanted.features, wanted.source, wanted.on, wanted.split, wanted.progress
    network = replace(_network(features, wanted.model), progress=progress)
    names = _names(features, wanted.classes)
    stem = printable(network.name if features is None else features.name)
    path = Path(f"{stem}-{source}.safetensors" if wanted.out is None else wanted.out)
    outputs.check(path, (".safetensors",))
    own = tuple(names)
    warnings = [] if on is None else _check_scoring(on, split, features)
    if source == "text":
        vectors, origin, notes = _of_text(network, names, wanted.prompts)
        known = own
        warnings += notes
    else:
        found, chosen, origin = _of_classifier(network, names, wanted)
        known, vectors = tuple(found), np.array(list(found.values()))
        warnings += _told(chosen)
    if len(known) < 2:
        raise conflict(
            f"Only {len(known)} of {len(own)} classes have a vector, so nothing can be told apart.",
            f"Say which rows the classes have: {parameter('rows')}, {parameter('labels')} or {parameter('wordnet')}.",
        )
    if features is not None and features.dim != vectors.shape[1]:
        before = " Those of CLIP are taken before its projection." if source == "text" else ""
        raise conflict(
            f"The vectors of {network.name} have {vectors.shape[1]} dimensions, the features have {features.dim}.",
            f"Name the backbone of the features: {parameter('model')}.{before}",
        )
    origin = {"source": source, "model": network.name, **origin, "without": sorted(set(own) - set(known))}
    if any(names[name] != name for name in own):
        origin["called"] = names
    scored = None if on is None else _scored(vectors, known, origin, on, split, progress)
    data = ordered(
        {"vectors": vectors.astype(np.float32)},
        {"classes": json.dumps(known), "origin": json.dumps(origin, sort_keys=True)},
    )
    return ZeroShot(
        path=path,
        made=outputs.write(path, data),
        classes=own,
        known=known,
        vectors=vectors.astype(np.float32),
        origin=origin,
        evaluation=scored,
        warnings=tuple(warnings),
    )


def _network(features: FeatureSet | None, model: str | None) -> Wanted:
    """The backbone: as the manifest states it, or as the user does."""
    if features is None or features.manifest.backbone.get("name") not in BACKBONES:
        if model is None:
            assert features is not None, "the request says it otherwise"
            raise missing(
                f"'{features.folder}' does not say its backbone, so it is not known what the vectors are to fit.",
                f"Name the backbone of the features: {parameter('model')}.",
            )
        return Wanted(name=model)
    stated = features.manifest.backbone
    name = str(stated["name"])
    if model not in (None, name):
        raise conflict(
            f"The features of '{features.folder}' are from {name}, not from {model}.",
            f"Leave out {parameter('model')}.",
        )
    known = stated.get("weights") or {}
    return Wanted(name=name, pool=stated.get("pooling"), expected=known.get("sha256"))


def _names(features: FeatureSet | None, classes: int | Sequence[str] | Path | None) -> dict[str, str]:
    called = class_names(classes)
    if features is None:
        return {name: name for name in called or ()}
    if called is not None and len(called) != len(features.classes):
        raise conflict(
            f"{len(called)} names are given for the {len(features.classes)} classes of '{features.folder}'.",
            f"Name each class, in the order of the set: {parameter('classes')}.",
        )
    return dict(zip(features.classes, called or features.classes, strict=True))


def _of_text(
    network: Wanted, names: Mapping[str, str], prompts: Sequence[str] | Path | None
) -> tuple[np.ndarray, dict[str, Any], tuple[str, ...]]:
    """The vectors of names, how they were made, and what to know of them."""
    if isinstance(prompts, str | Path):
        prompts = tuple(filter(str.strip, lines_in(Path(prompts), "prompts")))
    found = text.class_vectors(network, list(names.values()), text.PROMPTS if prompts is None else tuple(prompts))
    notes = found.notes
    if all(name.isdecimal() for name in names.values()):
        notes += ("the names of the classes are numbers. They say nothing of the pictures: name the classes in words.",)
    return found.vectors, found.origin, notes


def _of_classifier(
    network: Wanted,
    names: Mapping[str, str],
    wanted: ClassVectors,
) -> tuple[dict[str, np.ndarray], Chosen, dict[str, Any]]:
    """The vectors of the classes that have rows, which rows they are, and how they were made.

    The mean of all rows is subtracted from each: it says nothing about a class. A class has the mean of its rows.
    """
    rows, labels, wordnet, called = wanted.rows, wanted.labels, wanted.wordnet, list(names.values())
    # These files are small. If one is missing, nothing large was fetched.
    chosen = None if rows is None else stated(Path(rows), called)
    said = None if labels is None else labels_in(Path(labels))
    nouns = None if wordnet is None else WordNet(Path(wordnet))
    by: dict[str, Any] = {
        name: {"name": Path(path).name, "sha256": sha256_of(Path(path))}
        for name, path in (("file", rows), ("labels", labels))
        if path is not None
    }
    if nouns is not None:
        by["wordnet"] = {name: sha256_of(nouns.folder / name) for name in (INDEX, DATA)}
    found = backbones.classifier(network)
    origin: dict[str, Any] = {
        "pooling": found.pool,
        "weights": {"id": found.id, "sha256": found.sha256},
        "classifier": len(found.rows),
        **by,
    }
    if rows is not None and chosen is not None:
        check_count(Path(rows), chosen, len(found.rows))
    else:
        assert said is not None, "the request says it otherwise"
        if len(said) != len(found.rows):
            raise conflict(
                f"'{labels}' has {len(said):,} lines for the {len(found.rows):,} rows of the classifier of "
                f"'{found.id}'.",
                f"Give {parameter('labels')} a line for each row, in the order of the rows.",
            )
        chosen = labelled(called, said) if nouns is None else below(called, said, nouns)
    origin["rows"] = {name: chosen.rows[called] for name, called in names.items()}
    centred = found.rows - found.rows.mean(axis=0)
    vectors = {name: centred[taken].mean(axis=0) for name, taken in origin["rows"].items() if taken}
    # A class that has all rows is like no other one: what is left of them is rounding.
    least = 1e-9 * np.linalg.norm(centred, axis=1).max()
    return {name: each for name, each in vectors.items() if np.linalg.norm(each) > least}, chosen, origin


def _told(chosen: Chosen) -> list[str]:
    said = []
    if chosen.several:
        shown = "; ".join(f"{name} ({' / '.join(each)})" for name, each in list(chosen.several.items())[:5])
        more = f"; and {len(chosen.several) - 5} more" if len(chosen.several) > 5 else ""
        said.append(
            f"all meanings were taken of names with several, each with its rows: {shown}{more}. To choose, say which "
            "rows the classes have."
        )
    if chosen.unplaced:
        said.append(
            f"{counted(chosen.unplaced, 'row')} of the classifier cannot be placed in WordNet: their names have no "
            "meaning or several. Only classes with the same name got them."
        )
    return said


# How good they are: the vectors alone, on a labelled split, as a training would start from them. Records and vectors
# have length 1, and the mean of each is subtracted. This reads records, without noise. It costs nothing only if they
# are public, which is the caller's assertion. What is seen to be false is refused: training records of a private set.


def _check_scoring(on: FeatureSet, split: str, features: FeatureSet | None) -> list[str]:
    """What to beware of. Raises UserError for private training records, for other features than those of the set that
    the vectors are for, if there is no such split, or if the ledger is damaged.
    """
    on.split(split)
    if features is not None:
        _refuse(on, differing(features, on))
    check_public(on, "on", split=split, private=features)
    if protected(on, on.splits):
        return [f"'{on.folder}' was trained on with a guarantee. It does not cover these figures of its {split} split."]
    return []


def _scored(
    vectors: np.ndarray,
    known: Sequence[str],
    origin: Mapping[str, Any],
    on: FeatureSet,
    split: str,
    progress: Progress | None,
) -> Evaluation:
    """How good the vectors alone are. known: the names of their classes, to which those of the set are matched. A class
    without a vector has the score 0, as at the start of a training. Raises UserError if the vectors do not fit the set,
    or if it is damaged.
    """
    stated, pool, digest = on.manifest.backbone, origin["pooling"], origin["weights"]["sha256"]
    made = {"dimensions": vectors.shape[1] == on.dim}
    if stated.get("name") in BACKBONES:
        made["pooling"] = stated.get("pooling") == pool
        made["weights"] = (stated.get("weights") or {}).get("sha256") == digest
    _refuse(on, [name for name, fits in made.items() if not fits])
    rows = by_name(on.classes, ((name, row) for row, name in enumerate(known)))
    matched = {column: found[0] for column, found in enumerate(rows.values()) if len(found) == 1}
    if len(matched) < 2:
        raise conflict(
            f"{len(matched)} of the classes of {quoted(on.folder)} have a vector, so nothing can be told apart.",
            f"Score on a set with the same classes: {parameter('on')}.",
        )
    units = vectors[list(matched.values())].astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    weight = np.zeros((on.dim, len(on.classes)))
    weight[:, list(matched)] = (units - units.mean(axis=0)).T
    on.verify(split)
    mean = mean_of(on, split, (lambda *far: progress("Reading the records", *far)) if progress else None)
    chain = unit_chain(mean, float(mean @ mean))
    head = _Named(chain=chain, weight=weight, bias=np.zeros(len(on.classes)), names=on.classes)
    return figures((head,), on, split, split == SPLIT, progress)[0][0]


@dataclass(frozen=True, kw_only=True, repr=False)
class _Named(Scorer):
    names: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names


def _refuse(on: FeatureSet, differ: list[str]) -> None:
    if differ:
        raise conflict(
            f"{quoted(on.folder)} has features of another backbone. They differ in {', '.join(differ)}.",
            f"Score on features that were made as those to be trained on: {parameter('on')}.",
        )
