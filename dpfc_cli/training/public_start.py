"""Public starts: class vectors from a file, matched to the classes of a feature set before anything is charged.

A file of class vectors is one of these:

- a head of `dpfc train` on public records: its weights;
- .npz with `vectors` (classes × dimensions) and `classes` (their names);
- .safetensors with the tensor `vectors`, and in its metadata `classes`, a JSON list of names;
- .npy with one vector for each class of the feature set, in the set's order.

Whoever names it asserts that it is public: nothing in it may depend on records that must be protected. A private head
is refused: what it cost would not be in the claim of the new one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpfc_cli.annotations.classes import by_name
from dpfc_cli.arrays import BROKEN, arrays_in
from dpfc_cli.backbones import BACKBONES
from dpfc_cli.errors import UserError, conflict, parameter, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import json_of, sha256_of
from dpfc_cli.heads import hub
from dpfc_cli.heads.head import Head, located
from dpfc_cli.ledger.public import SPLIT, was_on
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.methods.public_head import PublicHead, directions
from dpfc_cli.methods.whitened import doubt
from dpfc_cli.privacy.chain import Linear
from dpfc_cli.records.card import Made
from dpfc_cli.structs import Open, Whole, decoded, encoded
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.public import check_method, recipe

HIDDEN = 0.05
"""Above this standard deviation of the agreement a start that is wrong as a whole may be taken for a good one: at 0.1
random vectors cost up to 7 points, and reversed ones up to 23 (docs/extensions/starts.md). Wrong vectors of some
classes may be missed below it, too: hence `REMARK`, at any noise.
"""
REMARK = (
    "Some vectors may be wrong, and the training may not notice it. Score them class by class on public records before "
    "(zero-shot)."
)
"""Said of every start."""


class _Origin(Open):
    """What a file of `dpfc zero-shot` says of itself: its prompts, or the rows of the classifier."""

    source: Literal["text", "classifier"]
    model: str
    prompts: tuple[str, ...] = ()
    classifier: Whole = 0

    @property
    def count(self) -> int:
        return len(self.prompts) if self.source == "text" else self.classifier


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Vectors (classes × dimensions) that a file declares, not yet read.

    shape: what it declares. read: reads them. names: of their classes; None: those of the feature set. made: how they
    were made. head: the head that they are the weights of.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    names: tuple[str, ...] | None = None
    made: Mapping[str, Any] = field(default_factory=dict)
    head: Head | None = None


def begin(calibrated: Calibrated, private: FeatureSet, given: Path | str, book: Ledger) -> Calibrated:
    """The same training from a public start. Plan and guarantee stay.

    given: a file of class vectors, or the name of a head. book: the ledger of the private records. UserError: the
    method has no use for a start, the file cannot be read, it does not fit the features, or it is a head of records
    that must be protected.
    """
    check(calibrated)
    known = vectors_for(private.classes, private.dim, given, (private, book))
    return replace(calibrated, options=replace(calibrated.options, public_head=known))


def check(calibrated: Calibrated) -> None:
    """UserError where the method has no use for a start.

    How far a start is trusted is read off the first gradients, in a space where records are centred and white. Other
    methods have no such gradients.
    """
    why = "Only dp-whitened can tell from its releases how good a start is."
    check_method(calibrated, "public_head", "public_head", why)


def warnings_of(calibrated: Calibrated) -> list[str]:
    known: PublicHead | None = calibrated.options.public_head
    if known is None:
        return []
    said = []
    missing = known.origin["without"]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        said.append(f"{len(missing)} of {calibrated.facts.m} classes have no public vector and start at zero: {shown}.")
    if doubt(calibrated.facts, calibrated.options) > HIDDEN:
        said.append(
            f"at this noise a useless public start may be taken for a good one. Be sure that "
            f"'{known.origin['name']}' has the right vectors for the classes."
        )
    return said


def vectors_for(
    classes: tuple[str, ...], dim: int, given: Path | str, private: tuple[FeatureSet, Ledger] | None = None
) -> PublicHead:
    """Class vectors for these classes, of so many dimensions.

    private: the private records and their ledger. UserError: see `begin`; or it is a head, and no private record is at
    hand: nobody here could say of which records it is.
    """
    path = located(given)
    if not path.is_file():
        raise UserError(
            f"There is no file {quoted(path)}.",
            "Name a head, or a file of class vectors (.npz, .safetensors or .npy).",
            code="missing",
            parameter="public_head",
        )
    form = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}.get(path.suffix)
    if form is None:
        raise _unfit(path, "its name does not end in .npz, .safetensors or .npy")
    with ExitStack() as stack:
        with _whole(path):
            file = form(path, private, stack)
        names, count = file.names, len(classes)
        if len(file.shape) != 2 or file.shape[1] != dim:
            raise _unfit(path, f"its vectors are of shape {list(file.shape)}, not numbers of shape [classes, {dim}]")
        if names is None and file.shape[0] != count:
            raise _unfit(path, f"it has {file.shape[0]} vectors without names for {count} classes")
        if names is not None and file.shape[0] != len(names):
            raise _unfit(path, f"it has {len(names)} names for {file.shape[0]} vectors")
        # So they are as many as there are names, or classes: what a file declares beyond is not read.
        matched = {row: row for row in range(count)} if names is None else _matched(path, classes, names)
        digest = sha256_of(path)
        if file.head is not None and private is not None:
            _check_head(file.head, *private, digest)
        with _whole(path):
            read = file.read()
    if read.dtype.kind not in "fiu":
        raise _unfit(path, f"its vectors are {read.dtype} of shape {list(read.shape)}, not numbers")
    with np.errstate(over="ignore"):
        # A number of 80 bits may be infinite here.
        vectors = read.astype(np.float64)
    if not np.isfinite(vectors).all():
        raise _unfit(path, "it has numbers that are NaN or infinite")
    found = np.zeros((dim, count))
    for column, row in matched.items():
        vector = vectors[row]
        largest = np.abs(vector).max()
        # Long and short vectors say the same. Their squares must be numbers.
        found[:, column] = vector / largest if largest > 0 else 0.0
    without = [name for j, name in enumerate(classes) if not found[:, j].any()]
    if count - len(without) < 2:
        raise _unfit(path, f"only {count - len(without)} of the set's classes have a vector in it", known=names)
    if directions(found) is None:
        raise _unfit(path, "its vectors do not tell any two classes apart")
    origin = {
        "name": hub.origin(path) or path.name,
        "sha256": digest,
        "classes": count - len(without),
        "without": without,
    }
    return PublicHead(vectors=found, origin={**origin, **file.made})


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """UserError where a file turns out to be damaged."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, *BROKEN) as error:
        raise _unfit(path, f"it cannot be read as class vectors ({error})") from error


_REMEDY = f"Name a file of class vectors: {parameter('public_head')}."


def _npy(path: Path, private: object, stack: ExitStack) -> _Found:
    [array] = arrays_in(path, stack, remedy=_REMEDY).values()
    return _Found(shape=array.shape, read=lambda: array.whole(path, path.stem))


def _npz(path: Path, private: object, stack: ExitStack) -> _Found:
    arrays = arrays_in(path, stack, remedy=_REMEDY)
    vectors, names = arrays["vectors"], arrays["classes"].whole(path, "classes")
    return _Found(shape=vectors.shape, read=lambda: vectors.whole(path, "vectors"), names=tuple(map(str, names)))


def _safetensors(path: Path, private: tuple[FeatureSet, Ledger] | None, stack: ExitStack) -> _Found:
    from safetensors import safe_open

    file = stack.enter_context(safe_open(path, framework="numpy"))
    metadata = file.metadata() or {}
    if "card" in metadata:
        if private is None:
            raise _unfit(path, "it is a head, and several sites start from class vectors alone")
        head = Head.load(path)
        vectors = _vectors(head, private[0])
        return _Found(shape=vectors.shape, read=lambda: vectors, names=head.classes, head=head)
    return _Found(
        shape=tuple(file.get_slice("vectors").get_shape()),
        read=lambda: np.asarray(file.get_tensor("vectors")),
        names=tuple(map(str, json_of(metadata["classes"]))),
        made=_made(metadata.get("origin", "")),
    )


def _made(said: str) -> Mapping[str, Any]:
    """How the file says that `dpfc zero-shot` made it. Of a file by others, only known words and numbers are taken."""
    try:
        origin = decoded(json_of(said), _Origin)
    except ValueError:
        return {}
    if not origin.count or origin.model not in BACKBONES:
        return {}
    return {"made": encoded(Made(source=origin.source, model=origin.model, count=origin.count))}


def _vectors(head: Head, private: FeatureSet) -> np.ndarray:
    """The weights of a head in the space of the features, classes × dimensions."""
    assert head.path is not None
    mine, other = recipe(private.manifest), {**head.card.features.backbone, "dimensions": head.dim}
    differ = sorted(name for name in mine if mine[name] != other.get(name))
    if differ:
        raise _unfit(head.path, f"it was trained on features of another backbone (they differ in {', '.join(differ)})")
    weight = head.weight
    for step in reversed(head.chain):
        if isinstance(step, Linear):
            weight = step.matrix @ weight
    return weight.T


def _check_head(head: Head, private: FeatureSet, book: Ledger, digest: str) -> None:
    """UserError where a head is of records that must be protected: it is private, or was trained on the private ones.

    digest: the SHA-256 of its file.
    """
    assert head.path is not None
    seen = any(was_on(book, each, private, SPLIT) for each in book.written(digest))
    if head.card.private:
        why = "It is a private head, and what it cost would not be in the claim of the new one."
    elif seen or (head.card.features.name, head.card.records) == (private.name, private.split(SPLIT).n):
        why = "It was trained on the private records without privacy."
    else:
        return
    raise UserError(
        f"The training cannot start from {quoted(head.path.name)}. {why}",
        "Start from class vectors, or from a head that was trained on public records without noise.",
        code="private-records",
        parameter="public_head",
    )


def _matched(path: Path, classes: tuple[str, ...], names: tuple[str, ...]) -> dict[int, int]:
    """For each class that has one: its vector. By the exact name, or by the name without regard to case and spaces."""
    if len(set(names)) != len(names):
        raise _unfit(path, "it has a class twice")
    found = {}
    for column, (name, rows) in enumerate(by_name(classes, ((name, row) for row, name in enumerate(names))).items()):
        if len(rows) > 1:
            raise _unfit(path, f"its classes {', '.join(repr(names[row]) for row in rows)} could all be {name!r}")
        if rows:
            found[column] = rows[0]
    return found


def _unfit(path: Path, why: str, **fields: Any) -> UserError:
    return conflict(
        f"{quoted(path)} cannot be a public start: {why}.",
        "Give vectors over the features of the private set, with the names of its classes.",
        parameter="public_head",
        **fields,
    )
