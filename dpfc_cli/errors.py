"""Errors that the user can correct: what is wrong and why, then what to do.

Every room raises `UserError`. The command line prints it and ends with its exit code (`ENDINGS`); a program reads its
`code` and its `fields`. A message may name files, parameters and public facts. It never contains a value of a record.

A message names a parameter as `parameter("learning_rate")`, perhaps with a value behind it, and a command as 'dpfc
train'. Python callers read what they can type, `learning_rate=0.5` and `dpfc.train` (`in_python`), and the command line
puts the flag in its place, `--learning-rate 0.5`. So the library knows no flags. A message names a file as
`quoted(path)`, and what tells of one record (a picture, a row's value, a label, a person) as `secret(text)`. That is
shown nowhere, and the message is then `GUARDED`.
`conflict(what, remedy)` is a `UserError` with that code, as `missing`, `damaged` and others are.

Messages have names of classes, files and folders, and texts of other libraries, which others chose. So `printable` is
applied where texts are shown: in `cli.display`, in `str(error)`, in notes of exceptions and in Python warnings.
Everywhere else names are kept as they are. They are not refused when they are read: an honest name may have a joiner or
a mark of direction.
"""

import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from os import PathLike
from typing import Literal

GUARDED = "This message says something about a private record: do not publish it."
"""Added to a message that depends on the records. Whoever holds the records may read it, and nobody else."""

Code = Literal[
    "unknown-name",  # a name that is in no table: a method, model, data set, class …
    "bad-value",  # a parameter's value makes no sense by itself
    "conflict",  # parameters, or files, that do not fit together
    "missing",  # a file, folder, split, column … that is not there
    "damaged",  # a file whose contents are not what they must be
    "unreadable",  # the system does not let us read
    "unreachable",  # a download failed
    "unwritable",  # the system does not let us write
    "exists",  # something that would be overwritten, or charged again
    "busy",  # another process holds it
    "over-cap",  # more privacy than a cap allows
    "private-records",  # private records where public ones belong
    "bad-record",  # a record that cannot be used
    "memory",  # more memory than there is or was allowed
    "unsupported",  # what dpfc or this machine cannot do
    "lost",  # another process of the same training has failed or is gone
    "declined",  # the user was asked, and said no
    "stopped",  # Ctrl-C
    "terminated",  # SIGTERM
    "defect",  # a mistake in dpfc
]
ENDINGS = {
    0: "Done.",
    1: "A defect of dpfc.",
    2: "Something in the line, or in what it names, must be changed.",
    3: "A cap allows no such charge.",
    4: "The network, or another process, does not answer: try again.",
    5: "A file is damaged, or not what it must be.",
    6: "It is there already, or another process holds it.",
    7: "The system does not let dpfc read or write: a disk is full or fails, or rights lack.",
    130: "Stopped by Ctrl-C.",
    143: "Stopped by SIGTERM.",
}
"""What each exit code of the command line says."""
_ENDINGS: dict[Code, int] = {
    **{"defect": 1, "over-cap": 3, "unreachable": 4, "lost": 4, "exists": 6, "busy": 6},
    **{"damaged": 5, "unreadable": 7, "unwritable": 7, "stopped": 130, "terminated": 143},
}

_PARAMETER = re.compile("‹([a-z_]+)›")
_GIVEN = re.compile("‹([a-z_]+)› (?=[0-9'(])")
_TUPLE = re.compile("(?<=› )[0-9.]+(,[0-9.]*[0-9])+")
CALLS = {
    **{name: name for name in ("export", "extract", "forecast", "predict", "push", "train", "verify")},
    **{"budget": "spent", "cap": "set_cap", "import": "import_features", "merge": "merge_ledgers"},
    **{"population": "set_population", "report": "write_report", "zero-shot": "zero_shot"},
    **{"evaluate": "evaluate", "evaluate --epsilon": "evaluate_privately", "evaluate --released": "released"},
}
"""The function of the library that does what a command does."""
_COMMAND = re.compile(f"'dpfc ({'|'.join(CALLS)})(?: ([A-Za-z]+))?'")
MOST_MARKS = 6
"""Marks in a row (accents, vowel signs) that are shown. More of them would cover the lines above and below."""
_QUOTED = re.compile("\0'(.*?)'\0", re.DOTALL)
_SECRET = re.compile("\0\"(['\n].*?['\n])\"\0", re.DOTALL)
_CREDENTIALS = re.compile(r"(://)(?:[^\s'/…]*:[^\s']*|[^\s'/]+)(?=@)|(://[^\s'?]*\?)[^\s'/]*=[^\s']*")
_EMPTY = "\u115f\u1160\u3164\uffa0"
"""Letters that look like nothing."""


class UserError(Exception):
    """Something that the user can correct.

    Args:
        what: what is wrong and why, one or two sentences.
        remedy: what to do about it.
        code: the kind of error, for programs.
        fields: what a program does something with, as JSON-able values: `parameter` and `path`, which are those that
            the message names first unless they are said; the unknown `name` and what is `known`; what is `left` …

    `str(error)` is both texts, `printable`, the remedy as `in_python` says it. `full` is `what` with all that
    is `secret`, for a file of whoever holds the records (`annotations.broken`); None if nothing is. `problems`: of
    several errors in one (`Faults`) what is wrong and what to do about it, a line each. `causes`: these errors.

    """

    problems: tuple[str, ...] = ()
    causes: tuple["UserError", ...] = ()

    def __init__(self, what: str, remedy: str, *, code: Code = "bad-value", **fields: object) -> None:
        named = {"parameter": _PARAMETER.search(f"{what} {remedy}"), "path": _QUOTED.search(f"{what} {remedy}")}
        what, self.remedy = (_QUOTED.sub(r"'\1'", text) for text in (what, remedy))
        self.what = _SECRET.sub("'…'", what)
        self.full = _SECRET.sub(r"\1", what) if self.what != what else None
        if self.full is not None and GUARDED not in self.what:
            self.what += f" {GUARDED}"
        self.code = code
        self.fields: dict[str, object] = {name: found[1] for name, found in named.items() if found} | fields
        super().__init__(self.what, self.remedy)

    @property
    def exit_code(self) -> int:
        codes = {each.exit_code for each in self.causes} or {_ENDINGS.get(self.code, 2)}
        return codes.pop() if len(codes) == 1 else 2

    def __str__(self) -> str:
        remedies = map(in_python, self.problems or (self.remedy,))
        return "\n".join(map(printable, (spelled(self.what, str), *remedies)))

    def text(self, spell: Callable[[str], str]) -> tuple[str, str]:
        """(what, remedy) with every parameter spelled by `spell`, a function of its Python name."""
        return spelled(self.what, spell), spelled(self.remedy, spell)

    def listed(self, spell: Callable[[str], str]) -> list[dict[str, object]]:
        """`causes` as JSON-able values, spelled like `text`."""
        named = ((each, *each.text(spell)) for each in self.causes)
        return [
            {"code": each.code, "message": what.replace(GUARDED, "").strip(), "remedy": remedy, "fields": each.fields}
            for each, what, remedy in named
        ]


conflict = partial(UserError, code="conflict")
missing = partial(UserError, code="missing")
damaged = partial(UserError, code="damaged")
bad_record = partial(UserError, code="bad-record")
unsupported = partial(UserError, code="unsupported")
unwritable = partial(UserError, code="unwritable")
"""The errors of the frequent codes."""


class Faults:
    """What is wrong with what a user brings. It is gathered, so that all of it is said at once."""

    def __init__(self) -> None:
        self.found: list[UserError] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep the UserError that ends the block, and go on behind it."""
        try:
            yield
        except UserError as error:
            self.found.append(error)

    def refuse(self) -> None:
        """Raise what was gathered: a UserError as it is, or one for all, with the code and the fields of the first. In
        its `problems` each has its own.
        """
        if len(self.found) < 2:
            for error in self.found:
                raise error
            return
        listed = [(error.what.replace(GUARDED, "").strip(), error) for error in self.found]
        lines = tuple(f"{number}. {what} {error.remedy}" for number, (what, error) in enumerate(listed, 1))
        guarded = any(GUARDED in error.what for error in self.found)
        found = UserError(
            f"{len(listed)} things are wrong.{f' {GUARDED}' if guarded else ''}",
            " ".join(lines),
            code=self.found[0].code,
            **self.found[0].fields,
        )
        found.problems, found.causes = lines, tuple(self.found)
        found.fields["problems"] = found.listed(str)
        fulls = [error.full or what for what, error in listed]
        found.full = "\n".join(fulls) if any(error.full for error in self.found) else None
        raise found


class Note(str):
    """A note of an exception (`add_note`) that says what stands, and nothing of a record.

    Other libraries add notes to their exceptions, too. Those may have values of records, as texts of exceptions may.
    """


def notes(error: BaseException) -> list[str]:
    """The notes of an exception that may be shown, whoever raised it."""
    return [note for note in getattr(error, "__notes__", []) if isinstance(note, Note)]


def warned(text: str, kind: type[Warning]) -> None:
    """Warn of what the line of the caller outside of dpfc will do badly."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(in_python(text)), kind, stacklevel=level)


def printable(text: str) -> str:
    r"""The text with an escape, such as \x1b, in place of each character that is no visible one.

    These are line ends, control characters (a terminal obeys them), marks of direction (they reorder a line), other
    characters without a look of their own, halves of characters (bytes of a file's name that are no UTF-8), and marks
    beyond `MOST_MARKS`. Letters of all scripts stay, those that are written from right to left too. Different texts
    stay different, unless one holds an escape already. Twice is the same as once. Users, passwords and queries of URLs
    are left out: whoever types a wrong command may have typed them, too.
    """
    if "://" in text:
        text = _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}…", text)
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category[0] == "M" else 0
        seen = (character.isprintable() or category == "Zs") and character not in _EMPTY and marks <= MOST_MARKS
        shown.append(character if seen else character.encode("unicode_escape").decode())
    return "".join(shown)


def parameter(name: str) -> str:
    """A parameter's name inside a message: `spelled` puts there what the reader calls it."""
    return f"‹{name}›"


def quoted(path: str | PathLike[str]) -> str:
    """The name of a file or folder inside a message of a `UserError`, in quotation marks.

    No file's name holds the zero bytes around it. The error takes them out.
    """
    return f"\0'{path}'\0"


def secret(*texts: object) -> str:
    """What tells of records, inside `what` of a `UserError`, in quotation marks. Readers see '…' in its place.

    In `full` each of several texts has a line of its own, and nothing else is on it. A text may have secrets itself.
    """
    lines = [printable(_SECRET.sub(r"\1", str(text)).replace("\0", "")) for text in texts]
    return f"\0\"'{lines[0]}'\"\0" if len(lines) == 1 else '\0"' + "\n".join(["", *lines, ""]) + '"\0'


def spelled(text: str, spell: Callable[[str], str]) -> str:
    """The text with every `parameter` in it replaced by spell(its Python name)."""
    return _PARAMETER.sub(lambda match: spell(match[1]), text)


def in_python(text: str) -> str:
    """The text as Python callers type what it names: arguments in place of parameters, functions of commands."""

    def called(match: re.Match[str]) -> str:
        name, given = f"dpfc.{CALLS[match[1]]}", match[2]
        return name if given is None else f"{name}({given if given.isupper() else repr(given)})"

    return spelled(_GIVEN.sub(r"\1=", _TUPLE.sub(r"(\g<0>)", _COMMAND.sub(called, text))), str)


def unknown(kind: str, name: str, known: Sequence[str], **about: object) -> UserError:
    """The error for a name that is not in a table. It suggests near names."""
    known = list(known)
    about |= {"name": name, "known": known}
    remedy = f"{near(name, known)}Known: {', '.join(known)}."
    return UserError(f"Unknown {kind} '{name}'.", remedy, code="unknown-name", **about)


def near(name: str, known: Sequence[str]) -> str:
    """A question for a remedy, "Did you mean …?", with known names that begin so, or end so after a dash, or else the
    one that looks most like it. An empty text if there is none.
    """
    from difflib import get_close_matches

    found = [each for each in known if name and (each.startswith(name) or each.endswith(f"-{name}"))][:3]
    found = found or get_close_matches(name, known, n=1, cutoff=0.7)
    return f"Did you mean {' or '.join(map(repr, found))}? " if found else ""


def check_installed(package: str, extra: str, purpose: str) -> None:
    """UserError where a package is not installed. extra: of dpfc, which installs it. purpose: what it is for, the
    beginning of a sentence.
    """
    if find_spec(package) is None:
        what = f"{purpose}, dpfc needs {package}, which is not installed."
        raise unsupported(what, f"Install it: {installing(extra)}.", package=package, extra=extra)


def installing(extra: str) -> str:
    """What installs an extra of dpfc, as part of a sentence. The package is in no index: it comes from its source."""
    return f"pip install '.[{extra}]' in the folder of dpfc's source code"


def check_new_name(name: str) -> None:
    """Refuse the name of a file or folder that is to be made, if a listing or a log could not show it, or no command
    could take it. UserError: it has characters that are not `printable`, or begins as an option does.
    """
    if printable(name) != name or name.startswith("-"):
        raise UserError(
            f"'{name}' begins with '-', or has characters that cannot be seen, or that a terminal obeys.",
            f"Give it another name: {parameter('out')}.",
            name=name,
        )


def counted(n: int, noun: str) -> str:
    """'1 image', '2 images', '1,000 classes'."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{'' if n == 1 else plural}"


def sentence(error: Exception) -> str:
    text = str(error).rstrip(".")
    return text[:1].upper() + text[1:] + "."
