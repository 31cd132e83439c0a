"""A head: one safetensors file with its preprocessing chain, its weights and its card.

The card says how the head was made and what it cost in privacy. Everything in the file is public, or came through
`oracle.release`.
"""

import errno
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dpfc_cli.errors import UserError, bad_record, counted, missing, near, parameter, printable, quoted, unsupported
from dpfc_cli.features.manifest import fingerprint_of
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import check_plain, json_of, make, sha256_of, temporary_beside, write_synced, written_at
from dpfc_cli.folders import heads_folder
from dpfc_cli.heads import hub
from dpfc_cli.memory import check_fits
from dpfc_cli.methods.unlabelled import ARRAYS, NUMBERS, Evidence
from dpfc_cli.outputs import unwritable
from dpfc_cli.places import local
from dpfc_cli.privacy.accounting import Claim
from dpfc_cli.privacy.chain import Chain, arrays, from_json, run, to_json
from dpfc_cli.reading import unread
from dpfc_cli.records import findings, statement
from dpfc_cli.records.card import Card, card_of
from dpfc_cli.show.document import Told, Values

if TYPE_CHECKING:
    import jax

FORMAT = "dpfc-head-1"
PRIVATE = ".safetensors"
SUFFIXES: Mapping[Claim, str] = {
    "private": PRIVATE,
    "research": ".research.safetensors",
    "non-private": ".nonprivate.safetensors",
}
"""How the name of a head's file ends, by what it claims."""
_EVIDENCE = "evidence."
_SIMILARITY = f"{_EVIDENCE}similarity"
"""How the names of these tensors begin."""
LARGEST_HEADER = 100 * 10**6
"""Bytes of the largest header that safetensors reads. It writes larger ones, too."""
_SMALL = 100_000
"""Bytes that the rest of a header may take beside the card."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Scorer:
    """A linear classifier of feature vectors.

    chain: what is done to a feature vector first. weight: d × m. bias: m. Scores are chain(x)·weight + bias.
    """

    chain: Chain
    weight: np.ndarray
    bias: np.ndarray

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the scores."""
        return tuple(map(str, range(len(self.bias))))

    @property
    def dim(self) -> int:
        """d: the dimensions of the feature vectors that it takes."""
        return len(self.weight)

    @overload
    def scores(self, x: np.ndarray) -> np.ndarray: ...
    @overload
    def scores(self, x: "jax.Array") -> "jax.Array": ...
    def scores(self, x: Any) -> Any:
        """The scores of feature vectors. The largest score names the class. Scores are no probabilities.

        Args:
            x: n × d, floating-point numbers, from the backbone that the head was trained on. Of JAX: see `apply`.

        Returns:
            n × m, float64. Of an array of JAX: one of JAX.

        Raises:
            UserError: x has another shape or no numbers, or a number in it is NaN or infinite.

        """
        if _of_jax(x) or _of_jax(self.weight):
            return self.apply(self, x)
        return np.asarray(run(self.chain, self._taken(x), np) @ self.weight + self.bias)

    @staticmethod
    def apply(params: "Scorer", x: Any) -> "jax.Array":
        """The scores as a pure function, for `jax.jit`, `jax.vmap` and `jax.grad`.

        A head is a pytree of its numbers, if JAX was imported before it was loaded. What JAX makes of one has no card:
        nothing is claimed of it.

        Args:
            params: a head, or what JAX has made of one.
            x: … × d, from the backbone that the head was trained on. Where it is NaN or infinite, scores are NaN.

        Returns:
            … × m, in JAX's own precision: float32, unless `jax_enable_x64` says otherwise.

        Raises:
            UserError: the last axis of x has another length.

        """
        from dpfc_cli.heads import pytree

        params._check_shape(np.shape(x), several=True)
        return pytree.scores(params.chain, params.weight, params.bias, x)

    def _check_shape(self, shape: tuple[int, ...], *, several: bool = False) -> None:
        if shape[-1:] != (self.dim,) or not (several or len(shape) == 2):
            raise UserError(
                f"This head takes features of shape n × {self.dim}, not {' × '.join(map(str, shape)) or 'one'}.",
                "Give features of the backbone that the head was trained on, a row for each record.",
            )

    def _taken(self, x: "np.ndarray | jax.Array") -> np.ndarray:
        given = np.asarray(x)
        if given.dtype.kind not in "fiu":
            raise UserError(f"Features are numbers, not {given.dtype}.", "Give an n × d array of floats.")
        self._check_shape(given.shape)
        with np.errstate(over="ignore"):
            taken = given.astype(np.float32, copy=False)
        bad = ~np.isfinite(taken).all(axis=1)
        if bad.any():
            raise bad_record(
                f"{int(bad.sum())} of {len(taken)} feature vectors have a number that is NaN, infinite or beyond "
                f"float32, first row {int(bad.argmax())}.",
                "Leave them out, or compute them again.",
            )
        return taken


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Head(Scorer, Told):
    """A linear classifier of feature vectors, with its card.

    card: how it was made and what is claimed of it. path: the file that it was read from, if it was. evidence: what
    `methods.unlabelled` needs, if the training left it.

    Examples:
        head = Head.load("heads/digits-scattering-dp-whitened-eps1.safetensors")
        names = head.predict(features)  # n × d → n names of classes

    """

    card: Card
    path: Path | None = None
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        # Who does not use JAX does not wait for it.
        if "jax" in sys.modules:
            from dpfc_cli.heads import pytree

            pytree.register(Head)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name == "card":
                what = "JAX made this head of another one, so it has no card: nothing is claimed of it."
                raise unsupported(what, "Use the head that you loaded.")
            raise AttributeError(f"'Head' object has no attribute '{name}'", name=name, obj=self)

    @classmethod
    def load(cls, path: Path | str) -> "Head":
        """Read a head.

        Args:
            path: its file, or its name in the folder for heads ($DPFC_HEADS, or ./heads), as `dpfc list` shows it. Or
                `hf:OWNER/NAME[/FILE][@REVISION]`: it is then fetched from the Hugging Face hub.

        Raises:
            UserError: the file is missing or cannot be fetched, it is no head, or its card contradicts itself.

        """
        file = located(path)
        found = read(file)
        wrong = findings.contradictions(findings.findings(found.card))
        if wrong:
            raise findings.refused(file, wrong)
        return found

    def told(self) -> dict[str, str]:
        file = {} if self.path is None else {"file": printable(shown(self.path))}
        counts = f"{self.dim} dimensions to {counted(len(self.classes), 'class')}"
        if "card" not in vars(self):
            return {"claim": "none: JAX made it of a head", "takes": counts}
        return {**file, **dict(statement.brief(self.card)), "method": self.card.method, "takes": counts}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the scores."""
        return self.card.classes

    @cached_property
    def several_labels(self) -> bool:
        """Whether a record may have several labels. Each class then has a probability of its own."""
        return self.card.facts.k > 1

    def predict(self, x: "np.ndarray | jax.Array") -> list[str]:
        """The name of the best class for each feature vector, n × d. Errors: as for `scores`."""
        names = self.classes
        return [names[best] for best in np.asarray(self.scores(self._taken(x))).argmax(axis=1)]

    @overload
    def probabilities(self, x: np.ndarray, temperature: float = 1.0) -> np.ndarray: ...
    @overload
    def probabilities(self, x: "jax.Array", temperature: float = 1.0) -> "jax.Array": ...
    def probabilities(self, x: Any, temperature: float = 1.0) -> Any:
        """What the scores of feature vectors say as probabilities of the classes. They are not calibrated.

        Where a record has one label, they are the softmax of scores / temperature, and add up to 1. Where it may have
        several, each class has its own, the logistic function of score / temperature.

        Args:
            x: as for `scores`.
            temperature: scores are divided by it, see `prediction.calibration`. It does not change the order of
                classes.

        Returns:
            As for `scores`.

        Raises:
            UserError: as for `scores`; or the temperature is not a positive number.

        """
        if not 0 < temperature < np.inf:
            raise UserError(
                f"{parameter('temperature')} must be a positive number, not {temperature:g}.",
                "Give another one, or leave it out.",
            )
        return as_probabilities(self.scores(x) / temperature, self.several_labels)

    def statement(self, groups: Sequence[int] = statement.GROUPS) -> Values:
        """What is claimed of this head: sentences by topic. It needs the head's file for its SHA-256.

        Args:
            groups: for how many records of one person (or persons, if those are protected) an ε is given.

        """
        return Values(statement.document(self.card, sha256_of(self.file), groups).facts)

    @property
    def file(self) -> Path:
        """`path`. UserError where the head was not read from a file."""
        if self.path is None:
            raise missing("This head was not read from a file.", "Read it with Head.load.")
        return self.path


def _of_jax(array: object) -> bool:
    return isinstance(array, getattr(sys.modules.get("jax"), "Array", ()))


def as_probabilities(scores: Any, several: bool) -> Any:
    """Scores, n × m, as probabilities of the classes. several: whether a record may have several labels."""
    if _of_jax(scores):
        from jax import nn

        return nn.sigmoid(scores) if several else nn.softmax(scores)
    # Weights of a hostile head may make scores that float64 cannot hold. Probabilities are numbers all the same.
    scores = np.nan_to_num(scores)
    if several:
        # e^−|s| is never too large.
        small = np.exp(-np.abs(scores))
        return np.asarray(np.where(scores >= 0, 1.0, small) / (1.0 + small))
    with np.errstate(over="ignore"):
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def located(path: Path | str) -> Path:
    """The file of a head that is given by its path, by its name in the folder for heads, or as `hf:OWNER/NAME`. The
    ending may be left out.
    """
    if str(path).startswith(hub.PREFIX):
        return hub.fetch(str(path), tuple(SUFFIXES.values()))
    given = local(path, "The head", "It lies on a file system, or on the Hugging Face hub: hf:OWNER/NAME.")
    folder = given.parent if "/" in str(path) else heads_folder()
    named = folder / f"{given.name.removesuffix(PRIVATE)}{PRIVATE}"
    return named if not os.path.exists(given) and os.path.exists(named) else given


def shown(path: Path) -> str:
    """What a head is called: its file, or `hf:OWNER/NAME/FILE@COMMIT` if it was fetched."""
    return hub.origin(path) or str(path)


def ending(name: str) -> str:
    """The ending of a head's file, which says its claim. Empty for other files."""
    return max((each for each in SUFFIXES.values() if name.endswith(each)), key=len, default="")


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """folder/stem+suffix, numbered if that is taken. A head is never overwritten: its privacy was paid for."""
    for i in itertools.count(1):
        path = folder / (stem + suffix if i == 1 else f"{stem}-{i}{suffix}")
        if not path.exists():
            break
    return path


def try_place(path: Path, d: int, m: int) -> None:
    """UserError where a head of d dimensions and m classes cannot be written: a file of its size is, and is removed. It
    lies in the innermost folder that there is, and no folder is made: others may be about to use or to remove it.
    """
    temporary = temporary_beside(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        for folder in path.parents:
            temporary = folder / temporary.name
            with suppress(FileNotFoundError):
                folder.lstat()
                break
        # Some file systems have room for any number of zeros.
        # The weight, the evidence of the method that leaves most, and the chain.
        write_synced(temporary, os.urandom(8 * (d + 1) * (4 * (m + 1) + d) + _SMALL))
    except OSError as error:
        refused = unwritable(path, error)
        refused.what += " Nothing was charged now."
        raise refused from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def encoded(head: Head) -> bytes:
    """The bytes of a head's file. The same head always gives the same bytes."""
    metadata = {"format": FORMAT, "card": head.card.json, "chain": json.dumps(to_json(head.chain))}
    tensors = {"weight": head.weight, "bias": head.bias}
    tensors |= {f"chain.{i}": value for i, value in enumerate(arrays(head.chain))}
    if (left := head.evidence) is not None:
        tensors |= {f"{_EVIDENCE}{name}": getattr(left, name) for name in ARRAYS}
        tensors |= {} if left.similarity is None else {_SIMILARITY: left.similarity}
        tensors[f"{_EVIDENCE}numbers"] = np.array([*(getattr(left, name) for name in NUMBERS), left.steps], float)
    return ordered({name: np.ascontiguousarray(value) for name, value in tensors.items()}, metadata)


def ordered(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """The bytes of a safetensors file. The same values always give the same bytes."""
    from safetensors.numpy import save as to_bytes

    data = to_bytes(tensors, metadata)
    # The library writes metadata in an order that chance decides. The header is therefore written again in ours.
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps({**json.loads(data[8:start]), "__metadata__": metadata}, sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[start:]


def save(data: bytes, path: Path) -> Path:
    """Write a head's bytes, all of them or nothing. Returns where the head is.

    A head is never overwritten. If another one has the name, it gets a number. UserError: it cannot be written, though
    there was room for it (`try_place`).
    """
    suffix, named = ending(path.name), path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while make(named, data) == "other":
            named = free_name(path.parent, path.name.removesuffix(suffix), suffix)
        return named
    except OSError as error:
        raise unwritable(path, error) from error


def check_card(card: Card) -> None:
    """Check that a head with this card can be read again. UserError: the card is too large. ValueError: it is no card
    that a training writes. This is a defect.
    """
    size = len(json.dumps(card.json))
    if size + _SMALL > LARGEST_HEADER:
        raise unsupported(
            f"The card of the head would take {size / 1e6:.0f} MB, because it names all classes. A head can "
            f"hold {LARGEST_HEADER / 1e6:.0f} MB.",
            f"Give the classes shorter names: {parameter('classes')} of 'dpfc extract' and 'dpfc import'.",
        )
    findings.check(card_of(json_of(card.json)))


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """A copy of a head's file that nobody else can change: what is checked in it is what is read from it."""
    with tempfile.TemporaryDirectory(prefix="dpfc-") as folder:
        copy = Path(folder, "head")
        try:
            check_plain(path)
            shutil.copyfile(path, copy)
        except OSError as error:
            raise _unread(path, error) from error
        yield copy


def read(path: Path, copy: Path | None = None) -> Head:
    """Read a head whose card may contradict itself. UserError for what cannot be read. copy: of the file, to read it
    from there.
    """
    try:
        with _opened(copy or path) as (file, metadata, card):
            check_fits(path, "its arrays", path.stat().st_size, copies=2)
            weight, bias = _numbers(file, "weight", 2), _numbers(file, "bias", 1)
            held = [file.get_tensor(f"chain.{i}") for i in range(sum(k.startswith("chain.") for k in file.keys()))]  # noqa: SIM118
            chain = from_json(json_of(metadata["chain"]), held, len(weight))
            evidence = _evidence(file, *weight.shape)
        d, m = weight.shape
        if bias.shape != (m,) or len(card.classes) != m or card.facts.d != d:
            raise ValueError("its weight, bias and classes do not fit together")
    except (OSError, ValueError) as error:
        raise _unread(path, error) from error
    return Head(chain=chain, weight=weight, bias=bias, card=card, path=path, evidence=evidence)


def _unread(path: Path, error: OSError | ValueError) -> UserError:
    if isinstance(error, FileNotFoundError):
        hint = near(path.name, [each.stem for each in sorted(heads_folder().glob(f"*{PRIVATE}"))])
        remedy = f"{hint}Train one with 'dpfc train', or name the file of one."
        return missing(f"There is no head {quoted(path)}.", remedy)
    return unread(
        path,
        error,
        "a head",
        "Name a file made by 'dpfc train'. If it is one, it is damaged: restore it from a backup.",
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, str], Card]]:
    """The file of a head, its metadata and its card, whose form is checked. Raises OSError, or ValueError if it is
    damaged, also for what is read from the file afterwards.
    """
    from safetensors import SafetensorError, safe_open

    try:
        check_plain(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {str(metadata.get('format'))[:40]!r}, not {FORMAT!r}")
            yield file, metadata, card_of(json_of(metadata["card"]))
    # The library raises these for damaged files, and other ones for types of numbers that it does not know.
    except (SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
    except MemoryError as error:
        # The library says so where the system has no memory to open the file. The message should name the file.
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error


def _numbers(file: Any, name: str, axes: int) -> np.ndarray:
    """An array of finite numbers from the file. Raises ValueError for anything else."""
    found: np.ndarray = file.get_tensor(name)
    if found.dtype not in (np.float32, np.float64) or found.ndim != axes or not found.size:
        raise ValueError(f"'{name}' has shape {found.shape} and dtype {found.dtype}")
    if not np.isfinite(found).all():
        raise ValueError(f"'{name}' has a number that is NaN or infinite")
    return found


def _evidence(file: Any, d: int, m: int) -> Evidence | None:
    """What the method left beside the head, if the file has it. Raises ValueError where it does not fit."""
    if not any(name.startswith(_EVIDENCE) for name in file.keys()):  # noqa: SIM118
        return None
    held: dict[str, Any] = {name: _numbers(file, _EVIDENCE + name, axes) for name, axes in ARRAYS.items()}
    similarity = _numbers(file, _SIMILARITY, 2) if _SIMILARITY in file.keys() else None  # noqa: SIM118
    *numbers, steps = _numbers(file, f"{_EVIDENCE}numbers", 1).tolist()
    found = Evidence(**held, **dict(zip(NUMBERS, numbers, strict=True)), steps=int(steps), similarity=similarity)
    if steps != found.steps or not found.fits(d, m):
        raise ValueError("its evidence does not fit the weight")
    return found


def check_heads(*heads: object) -> None:
    for head in heads:
        if not isinstance(head, Head):
            what = f"{parameter('head')} is a {type(head).__name__}, not a Head."
            raise UserError(what, "Open a file with Head.load. A PrivateClassifier has its head as .head_.")


def misfit(head: Head, features: FeatureSet) -> str | None:
    """Why a head is none of these features, as a sentence."""
    if head.dim != features.dim:
        return f"The head takes {head.dim} dimensions, the features have {features.dim}."
    if head.classes != features.classes:
        return "The head's classes are not those of the features, in the same order."
    return None


def of_training(head: Head, features: FeatureSet) -> bool:
    """Whether a set is the one that a head was trained on, as far as its name, hold-out and number of records tell."""
    own = head.card.features
    said = own.name, own.hold_out, head.card.records
    # A set of the same name that was made anew with persons holds out other pictures.
    return said == (features.name, features.manifest.hold_out, features.splits.get(own.split))


def made_otherwise(head: Head, features: FeatureSet, what: str) -> tuple[str, ...]:
    """A warning where features were made in another way than those that a head was trained on, or, of another imported
    set, where nobody can know. what: may mean little then.
    """
    there = features.manifest
    preparation = there.identity.preparation
    # That of a set whose classes are those of the head.
    made = fingerprint_of(there.backbone, head.classes, there.dim, there.dtype, preparation)
    other = "were made in another way than those that the head was trained on"
    if made == head.card.features.fingerprint:
        if there.backbone.get("name") != "imported" or of_training(head, features):
            return ()
        other = "were imported, and the head was trained on another imported set. Their backbones may differ"
    return (f"the features of '{features.name}' {other}, so {what} may mean little.",)


def cards(folder: Path, skipped: Callable[[UserError], None] = lambda error: None) -> Iterator[tuple[Path, Card]]:
    """The cards of the heads in a folder, with their files. No weight is read. What is no head is left out. skipped:
    told of it.
    """
    for path in sorted(folder.glob(f"*{PRIVATE}")):
        try:
            with _opened(path) as (_, _, card):
                pass
        except (OSError, ValueError) as error:
            skipped(_unread(path, error))
            continue
        yield path, card


def newest(
    folder: Path, features: FeatureSet | None = None, skipped: Callable[[UserError], None] = lambda error: None
) -> Path:
    """The newest private head in a folder, by the date in its card. Non-private and research heads are chosen only when
    they are named.

    features: it is one of their backbone. One of their fingerprint comes before others. skipped: told of what is no
    head.
    """
    found = {path: card for path, card in cards(folder, skipped) if card.private}
    if not found:
        raise missing(
            f"No private head found in {quoted(folder)}.",
            f"Name one that lies elsewhere ('dpfc budget' says what was trained), or train one with 'dpfc train' and "
            f"{parameter('epsilon')} 1. A private training that was stopped resumes with its own command.",
        )
    if features is None:
        return max(found, key=lambda path: (found[path].date, written_at(path)))
    made = features.manifest
    of = {
        path: (card.features.fingerprint == made.fingerprint, card.date, written_at(path))
        for path, card in found.items()
        if (card.facts.d, card.features.backbone.get("name")) == (made.dim, made.backbone.get("name"))
    }
    if not of:
        raise missing(
            f"No private head in {quoted(folder)} takes features such as those of {quoted(features.folder)}.",
            "Train one on this set, or name a head: 'dpfc list' shows them.",
        )
    return max(of, key=lambda path: of[path])
