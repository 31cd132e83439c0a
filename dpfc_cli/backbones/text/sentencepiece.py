"""The file of SentencePiece: a vocabulary with its weights, and the rules for characters that it was trained with."""

import math
import struct
from collections.abc import Iterator
from typing import Any

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
