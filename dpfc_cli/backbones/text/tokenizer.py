"""From texts to numbers of tokens, as CLIP and SigLIP were trained.

The vocabulary comes from a file beside the weights: `tokenizer.json`, or the older `vocab.json` and `merges.txt` (CLIP)
or `spiece.model` (SigLIP). How a text is prepared is fixed by the model and stands here, not in the file. So each form
of the file gives the same numbers, and no file brings patterns or programs of its own. The tokenizers package does the
search for tokens.

**CLIP** (Radford et al. 2021): NFC, lower case, words by a fixed pattern, byte pairs inside a word. A text is a start
token, its tokens and an end token. It is cut so that the end token stays.

**SigLIP** (Zhai et al. 2023, `c4_en` in big_vision): lower case, ASCII punctuation removed, the rules for characters
that the vocabulary was trained with, then the most probable tokens of the whole text (unigram model). A text is its
tokens and an end token, and is filled up with more end tokens.
"""

import base64
import binascii
import math
import string
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfc_cli import schema
from dpfc_cli.backbones import hub
from dpfc_cli.backbones.family import Progress
from dpfc_cli.backbones.vision_transformer.models import Model
from dpfc_cli.errors import UserError
from dpfc_cli.files import check_plain, json_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Search


START, END = "<|startoftext|>", "<|endoftext|>"
"""CLIP's."""
CLOSE = "</s>"
"""SigLIP's end token, which it also fills up with."""
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SPACE = "▁"
"""What stands for a space in a unigram vocabulary."""
_LARGEST = 2**27
"""Bytes of the largest vocabulary that is read."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Texts in tokens.

    Attributes:
        ids: int32 (texts, context).
        ends: the position of the end token, (texts,).
        cut: the numbers of the texts that were too long.

    """

    ids: np.ndarray
    ends: np.ndarray
    cut: list[int]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A vocabulary and its rules.

    Attributes:
        description: what the origin of vectors says about it.
        tokens: from a text to numbers, without a start or end token.
        start: the numbers that each text begins with.
        end: the number of the token that each text ends with.

    """

    description: dict[str, str]
    tokens: Callable[[str], list[int]]
    start: tuple[int, ...]
    end: int

    def __call__(self, texts: Sequence[str], context: int, source: str, vocabulary: int) -> Encoded:
        """The tokens of texts.

        Args:
            texts: any texts.
            context: tokens that the tower reads.
            source: what messages call its weights.
            vocabulary: tokens that the tower knows.

        Raises:
            UserError: the tower does not know one of the tokens, or has no room for any.

        """
        id = self.description["id"]
        room = context - len(self.start) - 1
        if room < 1:
            raise UserError(
                f"The text tower of '{source}' reads {context} tokens only. A text does not fit.",
                "Use other weights.",
                code="damaged",
                source=source,
            )
        ids = np.full((len(texts), context), self.end, np.int32)
        ends, cut = np.empty(len(texts), np.int32), []
        for i, text in enumerate(texts):
            with _refused(id):
                found = self.tokens(text)
            if len(found) > room:
                cut.append(i)
            row = [*self.start, *found[:room], self.end]
            if max(row) >= vocabulary:
                raise UserError(
                    f"The tokenizer '{id}' has the token {max(row)}, but the text tower of '{source}' knows "
                    f"{vocabulary} tokens only.",
                    "Put the tokenizer beside the weights that belongs to them.",
                    code="conflict",
                    source=id,
                    token=max(row),
                )
            ids[i, : len(row)] = row
            ends[i] = row.index(self.end)
        return Encoded(ids=ids, ends=ends, cut=cut)


def load(model: Model, weights: str, pin: hub.Pin | None = None, progress: Progress | None = None) -> Tokenizer:
    """Read the tokenizer that lies beside weights, and fetch it if it is not on this machine.

    Args:
        model: the row of the table.
        weights: a file, a folder or `hf:owner/name[/file]`.
        pin: the version of the weights. None: the newest.
        progress: it is told how many bytes of a file were downloaded.

    Raises:
        UserError: there is none, it cannot be fetched or read, or it is not one of this kind of model.

    """
    older = ("vocab.json", "merges.txt") if model.text == "clip" else ("spiece.model",)
    located = hub.beside(weights, ["tokenizer.json"], progress, pin) or hub.beside(weights, older, progress, pin)
    if located is None:
        raise UserError(
            f"There is no tokenizer beside the weights '{weights}': neither tokenizer.json nor {' and '.join(older)}.",
            "Get it from the repository of the weights, and put it into their folder.",
            code="missing",
            parameter="weights",
            source=weights,
            known=["tokenizer.json", *older],
        )
    with _refused(located.id):
        read = _clip if model.text == "clip" else _siglip
        return read(located.files, {"id": located.id, "sha256": located.digest()})


@contextmanager
def _refused(id: str) -> Iterator[None]:
    """UserError in place of whatever a damaged tokenizer raises."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except OSError as error:
        raise UserError(
            f"The tokenizer '{id}' cannot be read: {error}.", "Check its permissions.", code="unreadable", source=id
        ) from error
    except Exception as error:  # The tokenizers package raises nothing more exact.
        own = isinstance(error, ValueError) or type(error) is Exception
        said = str(error).splitlines()[0][:200].rstrip(".") if own and str(error) else "it is damaged"
        raise UserError(
            f"The tokenizer '{id}' cannot be used: {said}.",
            "Get it again from the repository of the weights.",
            code="damaged",
            parameter="weights",
            source=id,
        ) from error


_NUMBER = schema.whole(0, 2**31 - 1)
_ADDED = schema.each(schema.record({"id": _NUMBER, "content": schema.text}))
_PAIR = schema.test(lambda each: type(each) is list and len(each) == 2 and all(type(part) is str for part in each))


def _model_of(files: Sequence[Path], kind: str, check: schema.Check) -> dict[str, Any]:
    """The content of a tokenizer.json. Raises ValueError if it is not one of this kind."""
    content = json_in(files[0])
    found = content.get("model") if isinstance(content, dict) else None
    if isinstance(found, dict) and found.get("type", kind) != kind:
        raise ValueError(f"it is a {str(found['type'])[:40]} tokenizer, and that of this model is {kind}")
    inside = schema.record({"model": check}, added_tokens=_ADDED)
    place = schema.fault(content, inside)
    if place is not None:
        raise ValueError(f"'{place}' is missing or makes no sense")
    assert isinstance(content, dict)
    return content


def _clip(files: Sequence[Path], description: dict[str, str]) -> Tokenizer:
    merges: list[tuple[str, str]]
    if len(files) == 1:
        pairs = schema.either(schema.each(schema.text), schema.each(_PAIR))
        content = _model_of(files, "BPE", schema.record({"vocab": schema.mapping(_NUMBER), "merges": pairs}))
        vocabulary = content["model"]["vocab"]
        vocabulary |= {each["content"]: each["id"] for each in content.get("added_tokens", [])}
        merges = [_pair(each) for each in content["model"]["merges"]]
    else:
        vocabulary = json_in(files[0])
        if schema.fault(vocabulary, schema.mapping(_NUMBER)) is not None:
            raise ValueError("vocab.json is no table of tokens and their numbers")
        lines = _bytes(files[1]).decode().split("\n")
        merges = [_pair(line) for line in lines if line and not line.startswith("#version")]
    # The tokenizers package ends in a panic, which is no Exception, if a pair makes a token that is not there.
    needed = chain((START, END), (each for pair in merges for each in (*pair, "".join(pair))))
    missing = next((each for each in needed if each not in vocabulary), None)
    if missing is not None:
        raise ValueError(f"it lacks the token {missing[:40]}")
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Search

    search = Search(models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", unk_token=END))
    search.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    search.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    search.add_special_tokens([START, END])
    return Tokenizer(description=description, tokens=_numbers(search), start=(vocabulary[START],), end=vocabulary[END])


def _pair(merge: Any) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _numbers(search: "Search") -> Callable[[str], list[int]]:
    return lambda text: list(search.encode(text, add_special_tokens=False).ids)


def _siglip(files: Sequence[Path], description: dict[str, str]) -> Tokenizer:
    if files[0].suffix == ".json":
        piece = schema.test(
            lambda each: (
                type(each) is list and len(each) == 2 and type(each[0]) is str and type(each[1]) in (int, float)
            )
        )
        model = schema.record({"vocab": schema.each(piece, 1), "unk_id": _NUMBER})
        content = _model_of(files, "Unigram", model)
        pieces = [(text, float(score)) for text, score in content["model"]["vocab"]]
        unknown, rules = content["model"]["unk_id"], _rules_in(content.get("normalizer"))
    else:
        pieces, unknown, rules = vocabulary_in(_bytes(files[0]))
    end = next((i for i, (text, _) in enumerate(pieces) if text == CLOSE), None)
    if end is None:
        raise ValueError(f"it lacks the token {CLOSE}")
    from tokenizers import Tokenizer as Search
    from tokenizers import models

    number = _numbers(Search(models.Unigram(pieces, unknown)))

    def tokens(text: str) -> list[int]:
        # Without characters that could be a space, punctuation or a special token.
        plain = " ".join(text.replace(_SPACE, " ").lower().translate(_PUNCTUATION).split())
        words = [word for word in rules(plain).split(" ") if word]
        return number("".join(_SPACE + word for word in words)) if words else []

    return Tokenizer(description=description, tokens=tokens, start=(), end=end)


def _rules_in(normalizer: Any) -> "Rules":
    """The rules for characters in the normalizer of a tokenizer.json."""
    if not isinstance(normalizer, dict):
        return Rules(b"")
    steps = normalizer.get("normalizers", [normalizer])
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "Precompiled":
            text = step.get("precompiled_charsmap")
            try:
                return Rules(base64.b64decode(text or "", validate=True))
            except (TypeError, binascii.Error) as error:
                raise ValueError("its rules for characters are damaged") from error
    return Rules(b"")


def _bytes(file: Path) -> bytes:
    check_plain(file)
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
    return file.read_bytes()


_LONGEST = 1024
"""Bytes of the longest text that a rule for characters makes. Unicode's own rules make 33 of one character."""


class Rules:
    """Rules for characters in the form of sentencepiece: the longest text that has a rule is replaced.

    The file has a trie (a double array of 32-bit units, Aoe 1989, in the layout of Darts-clone), and the new texts,
    each with a zero byte behind it. The tokenizers package has such rules, too. But it looks at whole graphemes, which
    gives other texts than sentencepiece does, and it fails on damaged ones without an exception.

    Args:
        content: the bytes of the rules; none: there are no rules.

    """

    def __init__(self, content: bytes) -> None:
        size = struct.unpack_from("<I", content)[0] if content else 0
        if content and (size % 4 or len(content) < 4 + size):
            raise ValueError("its rules for characters are damaged")
        self._units = struct.unpack_from(f"<{size // 4}I", content, 4) if content else ()
        self._texts = content[4 + size :]

    def __call__(self, text: str) -> str:
        if not self._units:
            return text
        data, done, at = text.encode(), [], 0
        while at < len(data):
            try:
                length, new = self._longest(data, at)
            except (IndexError, ValueError) as error:
                raise ValueError("its rules for characters are damaged") from error
            if length == 0:
                # No rule: the character stays. Its first byte says how many bytes it has.
                first = data[at]
                length = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
                new = data[at : at + length]
            done.append(new)
            at += length
        return b"".join(done).decode("utf-8", "replace")

    def _longest(self, data: bytes, at: int) -> tuple[int, bytes]:
        """How many bytes the longest rule at a place takes, and what it puts there. (0, b"") if there is none."""
        units, found = self._units, (0, b"")
        node = _offset(units[0])
        for i in range(at, len(data)):
            node ^= data[i]
            unit = units[node]
            if unit & 0x800000FF != data[i]:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                start = units[node] & 0x7FFFFFFF
                found = (i + 1 - at, self._texts[start : self._texts.index(b"\0", start, start + _LONGEST)])
        return found


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def vocabulary_in(content: bytes) -> tuple[list[tuple[str, float]], int, Rules]:
    """The pieces with their scores, the number of the unknown one, and the rules, of a spiece.model.

    It is a message of protocol buffers. Field 1 is a piece (1: text, 2: score, 3: its kind, where 2 is the unknown
    one), field 3 is the normalizer (2: the rules).
    """
    pieces: list[tuple[str, float]] = []
    unknown, rules = None, b""
    for field, value in _fields(content):
        if field == 1:
            piece = dict(_fields(value))
            text, score = piece.get(1, b"").decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0]
            if not math.isfinite(score):
                raise ValueError("it has scores that are no numbers")
            if piece.get(3) == 2:
                unknown = len(pieces)
            pieces.append((text, score))
        elif field == 3:
            rules = dict(_fields(value)).get(2, b"")
    if unknown is None:
        raise ValueError("it has no unknown token")
    return pieces, unknown, Rules(rules)


def _fields(content: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a message of protocol buffers. Raises ValueError if it is damaged."""
    if not isinstance(content, bytes):
        raise ValueError("it is no file of sentencepiece")
    at = 0

    def whole() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            byte = content[at : at + 1]
            if not byte:
                break
            at += 1
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise ValueError("it is no file of sentencepiece")

    while at < len(content):
        key = whole()
        form = key & 7
        if form == 0:
            yield key >> 3, whole()
            continue
        size = {1: 8, 5: 4}.get(form)
        size = whole() if form == 2 else size
        if size is None or at + size > len(content):
            raise ValueError("it is no file of sentencepiece")
        yield key >> 3, content[at : at + size]
        at += size
