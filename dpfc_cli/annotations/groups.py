"""Which records belong to one person: the rules that say so, and the order in which groups are stored.

A *group* is all records of one person. A *key* is what the source calls a person: a text, a number, the name of a
folder. Keys stay in memory. What is stored of them are numbers, 0 to P - 1, in the order of the keys' SHA-256. So the
numbers say nothing about names.

A *rule* says how the key of a picture is found: by a folder, by its name, or in a column.

Two keys are the same if their words are equal but for capitals, what stands between the words, and the form of Unicode.
The number 7 and the texts "7", "007" and "7.0" are the same. If in doubt, two keys are made one: the guarantee holds
for both persons together then, so it holds for each of them.
"""

import hashlib
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, bad_record, counted, parameter, quoted, secret

Integers = NDArray[np.int64]
GROUPS = "groups"
"""The usual name of what names the person of each record, in imports."""


By = Literal["folder", "name", "column"]
"""How a rule finds the person of a picture."""
PERSONS = ("person", "patient", "subject", "participant", "individual", "donor", "case")
"""What a person is called in names of columns."""
USUAL_NAMES = (*(name for word in PERSONS for name in (word, f"{word}_id")), "group")
"""Usual names of the column of persons. The first one that is there is taken."""
LONGEST = 200
"""Letters of the name of a column that are looked at."""
_WORD = f"({'|'.join(PERSONS)})s?"
_NAMING = re.compile(
    f"{_WORD}|.*{_WORD}.*(id|no|nr|num|number|name|key|code)|groups?|(p|pt|e|r|record|usubj)?id|sub|mrn"
)
RULES = ("folder:LEVEL", "name:REGEX", "column:NAME")
"""The rules as a user writes them."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How the person of a picture is found."""

    by: By
    level: int = 0  # folder: how many folders below the class name the person
    pattern: re.Pattern[str] | None = None  # name: its first capture group, searched for in the name, is the person
    column: str | None = None  # column: its name

    def describe(self) -> dict[str, int | str]:
        """The rule as manifests state it. A regular expression may have names in it, so it is left out."""
        found: dict[str, int | str] = {"by": self.by}
        found |= {"level": self.level} if self.by == "folder" else {}
        return found | ({"column": self.column} if self.column is not None else {})

    def of_name(self, name: str, below: str) -> str | None:
        """The key of a picture by its path, with slashes; None if it has no person. below: its part below the class
        folder, or the same if there are no class folders.
        """
        if self.pattern is not None:
            found = self.pattern.search(_plain(name))
            return None if found is None else found[1]
        folders = _plain(below).split("/")[:-1]
        return "/".join(folders[: self.level]) if len(folders) >= self.level else None

    @property
    def remedy(self) -> str:
        if self.by == "folder":
            return f"Each picture must lie {counted(self.level, 'folder')} deep or deeper, below its class."
        if self.by == "name":
            return "The first group in parentheses must match something in the name of each picture."
        return "Each picture needs a person in the column: a text that is not empty, or an integer."


def _plain(name: str) -> str:
    """The same name however it is written: an archive may call a folder 'p1', './p1' or 'p1/'."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def names_persons(column: str) -> bool:
    """Whether a column of this name may name persons, such as PatientID, case-number, anon_subject_id or id."""
    return _NAMING.fullmatch("".join(filter(str.isalnum, column[:LONGEST].casefold()))) is not None


def rule_of(text: str) -> Rule:
    """The rule that a user wrote. UserError if it is none of `RULES`."""
    by, _, what = text.partition(":")
    if by not in get_args(By) or not what:
        raise _bad_rule(text, f"Write {', '.join(RULES[:-1])} or {RULES[-1]}.")
    if by == "folder":
        if not (what.isascii() and what.isdigit() and 1 <= int(what[:4]) <= 64 and len(what) < 4):
            raise _bad_rule(text, "LEVEL is 1 for the folders in the class folders, 2 for the folders in these, …")
        return Rule(by="folder", level=int(what))
    if by == "name":
        try:
            with warnings.catch_warnings():
                # Of what later versions of Python may read in another way.
                warnings.simplefilter("ignore", FutureWarning)
                pattern = re.compile(what)
        except (re.error, RecursionError, OverflowError) as error:
            raise _bad_rule(text, f"It is no regular expression: {error}.") from error
        if not pattern.groups:
            raise _bad_rule(text, "Put the part that names the person in parentheses, as in 'name:(p[0-9]+)_'.")
        return Rule(by="name", pattern=pattern)
    return Rule(by="column", column=what)


def _bad_rule(text: str, remedy: str) -> UserError:
    return UserError(f"{parameter('group_by')} '{text}' does not say how persons are found.", remedy)


@dataclass(frozen=True, eq=False)
class Keys:
    """The key of each of n records."""

    names: list[str]  # the different keys
    codes: Integers  # for each record the number of its key in `names`, (n,)

    def part(self, records: Integers) -> "Keys":
        return Keys(self.names, self.codes[records])


@dataclass(frozen=True, eq=False, kw_only=True)
class Grouping:
    """The records of a split in the order in which they are stored: group by group."""

    order: Integers  # the numbers of the records, (n,); inside a group they ascend
    ids: Integers  # the group of each of them, (n,): 0, …, 0, 1, …, P - 1

    @property
    def groups(self) -> int:
        return int(self.ids[-1]) + 1

    @property
    def digest(self) -> str:
        """SHA-256 in hex of who belongs together, and of the order. It depends on the records."""
        digest = hashlib.sha256(self.order.astype("<i8").tobytes())
        digest.update(self.ids.astype("<i8").tobytes())
        return digest.hexdigest()


class _Letters(dict[int, int | str | None]):
    """What a character counts as, for `str.translate`: spaces and signs as a space, invisible ones as nothing."""

    def __missing__(self, code: int) -> int | str | None:
        kind = unicodedata.category(chr(code))
        self[code] = None if kind == "Cf" else " " if kind[0] in "PSZ" or kind == "Cc" else code
        return self[code]


_LETTERS = _Letters()
_NUMBER = re.compile(r"(-?)0*([0-9]+)(\.0*)?")
_NOBODY = re.compile(r"#\D*(0!)?|n/a|nan|null")
"""What spreadsheets of all languages (#N/A, #NV, #DIV/0!) and tables write where there is no value."""


def key_of(value: object) -> str | None:
    """The key that a value stands for. None, for no person: it is neither a text nor an integer, or a text without a
    letter or digit, or one that stands for no value.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str):
        return None
    text = unicodedata.normalize("NFKC", value).casefold().strip()
    number = _NUMBER.fullmatch(text)
    if number:
        return number[1] + number[2]
    if _NOBODY.fullmatch(text):
        return None
    return " ".join(unicodedata.normalize("NFC", text).translate(_LETTERS).split()) or None


NO_PERSON = "Give each record a text with a letter or digit, or an integer."


def keys_of(
    values: Iterable[object],
    source: str,
    called: Callable[[int], str],
    remedy: str = NO_PERSON,
    codes: Integers | None = None,
) -> Keys:
    """The keys that these values stand for.

    Args:
        values: texts and integers; what is something else names no person. Several may stand for the same key.
        source: what the user calls the source, for messages.
        called: called(i) is what a message calls record i: a number of a line, or a `secret` name.
        remedy: what to do about a record without a person, a sentence.
        codes: for each record the number of its value, −1 for no person, (n,). Default: a value for each record.

    Raises:
        UserError: a record has no person (code "bad-record"). It is not given a group of its own: two such records may
            be of one person, who would then be protected as two.

    """
    number: dict[str | None, int] = {}
    found = [number.setdefault(key_of(value), len(number)) for value in values]
    found.append(number.setdefault(None, len(number)))
    own = np.array(found, np.int64)
    own = own[:-1] if codes is None else own[codes]
    lacking = own == number[None]
    if lacking.any():
        named = [called(i) for i in np.flatnonzero(lacking).tolist()]
        these = f"{counted(len(named), 'record')} of {quoted(source)} {'has' if len(named) == 1 else 'have'}"
        others = f", the others {secret(*named[1:])}" if named[1:] else ""
        raise bad_record(
            f"{these} no person. The first is {named[0]}{others}. {GUARDED}",
            f"{remedy} dpfc does not guess: two records without a person may be of the same one.",
        )
    return Keys([key or "" for key in number], own)


def keys_in(values: NDArray[np.generic], source: str, name: str) -> Keys:
    """The keys in an array of integers, texts, or bytes of UTF-8, (n,), as imports have them: see `keys_of`."""
    different, codes = np.unique(values, return_inverse=True)
    if values.dtype.kind == "S":
        different = np.char.decode(different, "utf-8", "surrogateescape")
    return keys_of(different.tolist(), source, lambda i: f"row {i} of {name}", codes=codes.ravel())


def joined(parts: list[Keys]) -> Keys:
    """The keys of several parts of a source, one after the other."""
    number: dict[str, int] = {}
    codes = [
        np.array([number.setdefault(name, len(number)) for name in part.names], np.int64)[part.codes] for part in parts
    ]
    return Keys(list(number), np.concatenate(codes))


def check_apart(keys: Mapping[str, Keys]) -> None:
    """UserError if a person has records in two splits: the account of each split would be too small for them. keys: of
    each split.
    """
    seen, both = set[str](), set[str]()
    for split in keys.values():
        own = {split.names[code] for code in np.unique(split.codes).tolist()}
        both |= seen & own
        seen |= own
    if both:
        raise bad_record(
            f"{counted(len(both), 'person')} {'has' if len(both) == 1 else 'have'} records in two splits: "
            f"{secret(*sorted(both))}. {GUARDED}",
            "Put all records of a person into one split. If these are different persons, such as numbers that begin "
            "again in each split, give them different names.",
        )


def grouped(keys: Keys) -> Grouping:
    """The records by group. The groups have the order of the SHA-256 of their keys."""
    present = np.unique(keys.codes)
    ranked = sorted(present.tolist(), key=lambda code: sha256_of_key(keys.names[code]))
    rank = np.zeros(len(keys.names), np.int64)
    rank[ranked] = np.arange(len(ranked))
    ids = rank[keys.codes]
    order = np.argsort(ids, kind="stable")
    return Grouping(order=order, ids=ids[order])


def sha256_of_key(key: str) -> bytes:
    """SHA-256 of a key. A name of a file may have bytes that are no UTF-8."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
