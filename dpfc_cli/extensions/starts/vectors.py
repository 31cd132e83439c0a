"""Public starts: class vectors from a file, matched to the classes of a feature set before anything is charged.

A file of class vectors is a safetensors file: a head of `dpfc train` on public records, whose weights they are; or the
tensor `vectors` (classes × dimensions), and in the metadata `classes`, a JSON list of their names.

Whoever names it asserts that it is public: nothing in it may depend on records that must be protected. A private head
is refused: what it cost would not be in the claim of the new one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from dpfc_cli.annotations.classes import by_name
from dpfc_cli.arrays import BROKEN
from dpfc_cli.backbones import BACKBONES
from dpfc_cli.errors import UserError, conflict, missing, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import json_of, sha256_of
from dpfc_cli.heads import hub
from dpfc_cli.heads.head import Head, located
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.public import SPLIT, was_on
from dpfc_cli.methods.public_head import PublicHead, directions
from dpfc_cli.methods.whitened import doubt
from dpfc_cli.privacy.chain import Linear
from dpfc_cli.records.card import Made
from dpfc_cli.structs import Open, Values, Whole, decoded, encoded
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.public import recipe

HIDDEN = 0.05
"""Above this standard deviation of the agreement a start that is wrong as a whole may be taken for a good one: at 0.1
random vectors cost up to 7 points, and reversed ones up to 23 (docs/extensions/starts.md). Wrong vectors of some
classes may be missed below it, too.
"""


class _Origin(Open):
    """What a file of `dpfc zero-shot` says of itself: its prompts, or the rows of the classifier."""

    source: Literal["text", "classifier"]
    model: str
    prompts: tuple[str, ...] = ()
    classifier: Whole = 0

    @property
    def count(self) -> int:
        return len(self.prompts) if self.source == "text" else self.classifier


def warnings_of(begun: Calibrated) -> list[str]:
    """What its start lacks, and what noise hides."""
    origin, said = begun.options.public_head.origin, []
    if lacking := origin["without"]:
        shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        said.append(f"{len(lacking)} of {begun.facts.m} classes have no public vector and start at zero: {shown}.")
    if doubt(begun.facts, begun.options) > HIDDEN:
        said.append(
            f"at this noise a useless public start may be taken for a good one. Be sure that "
            f"'{origin['name']}' has the right vectors for the classes."
        )
    return said


def vectors_for(classes: tuple[str, ...], dim: int, given: Path | str, private: FeatureSet | None = None) -> PublicHead:
    """Class vectors for these classes, of so many dimensions.

    given: a file, or the name of a head. private: the private records. UserError: the file cannot be read, or does not
    fit; it is a head of records that must be protected; or it is a head, and no private record is at hand: nobody here
    could say of which records it is.
    """
    path = located(given)
    if not path.is_file():
        raise missing(
            f"There is no file {quoted(path)}.",
            "Name a head, or a file of class vectors (.safetensors).",
            parameter="public_head",
        )
    made: Mapping[str, Values] = {}
    with _whole(path), safe_open(path, framework="numpy") as file:
        said = file.metadata() or {}
        if "card" not in said:
            names, made = tuple(map(str, json_of(said["classes"]))), _made(said.get("origin", ""))
            shape = tuple(file.get_slice("vectors").get_shape())
            if shape != (len(names), dim):
                raise _unfit(path, f"its vectors are of shape {list(shape)}, not {[len(names), dim]}")
            # What a file declares beyond the names of its classes is not read.
            read = file.get_tensor("vectors")
        elif private is None:
            raise _unfit(path, "it is a head, and several sites start from class vectors alone")
        else:
            head = Head.load(path)
            _check_head(path, head, private)
            names, read = head.classes, _weights(path, head, private)
    matched = _matched(path, classes, names)
    if read.dtype.kind not in "fiu" or not np.isfinite(read).all():
        raise _unfit(path, f"its vectors are {read.dtype}, not numbers, or some are NaN or infinite")
    found = np.zeros((dim, len(classes)))
    for column, row in matched.items():
        vector = read[row].astype(np.float64)
        largest = np.abs(vector).max()
        # Long and short vectors say the same. Their squares must be numbers.
        found[:, column] = vector / largest if largest > 0 else 0.0
    without = [name for j, name in enumerate(classes) if not found[:, j].any()]
    known = len(classes) - len(without)
    if known < 2:
        raise _unfit(path, f"only {known} of the set's classes have a vector in it", known=names)
    if directions(found) is None:
        raise _unfit(path, "its vectors do not tell any two classes apart")
    origin = {"name": hub.origin(path) or path.name, "sha256": sha256_of(path), "classes": known, "without": without}
    return PublicHead(vectors=found, origin={**origin, **made})


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """UserError where a file turns out to be damaged."""
    try:
        yield
    except (OSError, SafetensorError, *BROKEN) as error:
        raise _unfit(path, f"it cannot be read as class vectors ({error})") from error


def _made(said: str) -> Mapping[str, Values]:
    """How the file says that `dpfc zero-shot` made it. Of a file by others, only known words and numbers are taken."""
    try:
        origin = decoded(json_of(said), _Origin)
    except ValueError:
        return {}
    if not origin.count or origin.model not in BACKBONES:
        return {}
    return {"made": encoded(Made(source=origin.source, model=origin.model, count=origin.count))}


def _weights(path: Path, head: Head, private: FeatureSet) -> np.ndarray:
    """The weights of a head in the space of the features, classes × dimensions."""
    mine, other = recipe(private.manifest), {**head.card.features.backbone, "dimensions": head.dim}
    differ = sorted(name for name in mine if mine[name] != other.get(name))
    if differ:
        raise _unfit(path, f"it was trained on features of another backbone (they differ in {', '.join(differ)})")
    weight = head.weight
    for step in reversed(head.chain):
        if isinstance(step, Linear):
            weight = step.matrix @ weight
    return weight.T


def _check_head(path: Path, head: Head, private: FeatureSet) -> None:
    """UserError where a head is private, or was trained on the private records."""
    book = read(ledger_path(private.folder))
    seen = any(was_on(book, each, private, SPLIT) for each in book.written(sha256_of(path)))
    if head.card.private:
        why = "It is a private head, and what it cost would not be in the claim of the new one."
    elif seen or (head.card.features.name, head.card.records) == (private.name, private.split(SPLIT).n):
        why = "It was trained on the private records without privacy."
    else:
        return
    raise UserError(
        f"The training cannot start from {quoted(path.name)}. {why}",
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
        "Give vectors over the features of the private set, with the names of its classes (.safetensors).",
        parameter="public_head",
        **fields,
    )
