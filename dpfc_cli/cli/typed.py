"""From declared options (`dpfc_cli.options`) to what Typer parses, from what is typed to values, and back."""

import glob
import inspect
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dpfc_cli.cli.help import plain
from dpfc_cli.errors import UserError, conflict, parameter, spelled
from dpfc_cli.folders import LEDGER, beside, features_folder, heads_folder
from dpfc_cli.options import HEAD, Option, Options, Value, declared, of_type
from dpfc_cli.places import place_of

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

VALUES: dict[str, tuple[type, str]] = {
    "integer": (int, "N"),
    "number": (float, "NUMBER"),
    "switch": (bool, ""),
    "text": (str, "TEXT"),
    "choice": (str, "NAME"),
    "path": (Path, "PATH"),
    "place": (str, "PATH"),
    "set": (str, "SET"),
}
"""The type of a kind of value on the command line, and what stands for it where an option names nothing better."""
UNITS = {
    **{"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
}

JSON = Option("Print one JSON object.", flags=("--json",))
"""Of every command with a result."""
_SETS = ("SET", "SOURCE", "PUBLIC_SET")
"""What stands for the name of a feature set."""
NEWEST = Option(f"{HEAD} Default: the newest private.", argument=True, metavar="HEAD")
"""Of commands that take a head."""


class Typed(NamedTuple):
    """An option of a command. own: it is the command's own, and no part of the call. several: it may stand in the line
    several times, and its value is a tuple.
    """

    name: str
    said: Option
    hint: Value
    default: object
    own: bool
    several: bool = False

    @property
    def flag(self) -> str:
        """What messages call it: '--learning-rate', or 'HEAD' if it is positional."""
        if self.said.argument:
            return self.said.metavar or self.name.upper()
        return next((flag for flag in self.said.flags if flag.startswith("--")), flag_named(self.name))

    @property
    def reader(self) -> Callable[[str, str], object] | None:
        """What makes a value of its text; None where Typer does."""
        return None if self.said.kind in ("text", "path", "place") else READERS.get(self.said.metavar or "")

    def parameter(self, spell: Callable[[str], str]) -> inspect.Parameter:
        """As Typer wants it. spell: how a help text says the name of an option."""
        said, optional = self.said, self.default is None
        hint: Any
        hint, metavar = VALUES.get(said.kind, (self.hint, "NUMBER" if "float" in str(self.hint) else "TEXT"))
        hint = str if self.reader is not None else hint
        text = plain(spelled(said.text, spell)) + " Several times: several trainings." * self.several
        names = names_of(said)
        if said.argument:
            info = typer.Argument(help=text, metavar=said.metavar or self.name.upper(), autocompletion=names)
        else:
            flags = said.flags or (flag_named(self.name),)
            panel = said.group or None
            shown = said.metavar or metavar
            info = typer.Option(*flags, help=text, metavar=shown, rich_help_panel=panel, autocompletion=names)
        kind = hint | None if optional and said.kind != "switch" else hint
        default = False if optional and said.kind == "switch" else self.default
        default = inspect.Parameter.empty if default is MISSING else default
        default = ",".join(f"{each:g}" for each in default) if isinstance(default, tuple) else default
        if self.several:
            kind, default = list[hint] | None, None
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )

    def value(self, typed: Value) -> Value:
        if self.several:
            # Equal ones are one.
            return tuple(dict.fromkeys(self._replace(several=False).value(each) for each in typed or ()))
        if typed is None or (self.default is None and typed is False):
            return None
        found = typed if self.reader is None else self.reader(self.name, str(typed))
        # A set is looked for later, when a command says so.
        early = self.own or self.said.kind in ("number", "integer")
        return self.said.taken(self.name, found) if early else found


def typed(function: Callable[..., None], *calls: type[Options], several: Collection[str] = ()) -> dict[str, Typed]:
    """The options of a command by their Python names: those of its calls, and the function's own.

    An own option stands in the place of the call's option of that name. several: those of `Typed.several`.
    """
    own = {}
    for name, each in inspect.signature(function).parameters.items():
        if (said := next(iter(getattr(each.annotation, "__metadata__", ())), None)) is not None:
            hint, default = each.annotation.__origin__, MISSING if each.default is each.empty else each.default
            own[name] = Typed(name, of_type(said, hint), hint, default, own=True)
    found = {}
    for call in calls:
        types = {each.name: each for each in fields(call)}
        for name, said in declared(call).items():
            if said.typed or name in own:
                found[name] = own.pop(name, Typed(name, said, types[name].type, types[name].default, own=False))
    return {name: each._replace(several=name in several) for name, each in {**found, **own}.items()}


def with_sets(asked: dict[str, Value], call: type[Options]) -> dict[str, Value]:
    """What was typed, with the feature sets that it names opened: a command says when."""
    named = [name for name, said in declared(call).items() if said.kind == "set" and asked.get(name) is not None]
    return asked | {name: feature_set(asked[name]) for name in named}


def one_of(**given: object) -> None:
    """UserError if more than one of these options is given."""
    names = [parameter(name) for name, value in given.items() if value not in (None, False)]
    if len(names) > 1:
        raise conflict(f"{names[0]} and {names[1]} do not go together.", "Give one of them.")


def flag_named(name: str) -> str:
    return "--" + name.replace("_", "-")


def set_named(folder: Path) -> str:
    """How the user names a feature set in that folder on the command line."""
    return shlex.quote(folder.name if folder.parent == features_folder() else str(folder))


def head_named(path: Path) -> str:
    return shlex.quote(path.name.removesuffix(".safetensors") if path.parent == heads_folder() else str(path))


def feature_set(given: str | None) -> "FeatureSet":
    """The feature set given by path or name, or the newest one. A remark says so, if there are others."""
    from dpfc_cli.cli import display
    from dpfc_cli.features.lookup import finished, open_features

    found = open_features(given)
    if given is None and (sets := len(finished(features_folder()))) > 1:
        display.say(f"Features: {found.folder} (the newest of {sets} sets; --features names another)")
    return found


def tell_ledger(of: Path) -> None:
    """Warn where a set is not charged to the ledger of the features folder: nobody adds what two ledgers have."""
    from dpfc_cli.cli import display

    own, usual = (place.resolve() / LEDGER for place in (beside(of.resolve()), features_folder()))
    if own != usual and usual.exists():
        display.warn(
            f"'{own}' is another ledger than '{usual}', and neither adds what is spent in the other. If both are of "
            f"the same people, bring the sets into one folder: 'dpfc merge {shlex.quote(str(own.parent))}', "
            "then move them."
        )


def head_or_newest(given: Path | str | None, features: "FeatureSet | None" = None) -> Path:
    """The head that was named, or the newest private one. features: one that takes them."""
    from dpfc_cli.cli import display
    from dpfc_cli.heads.head import newest

    if given is not None:
        return Path(given)
    found = newest(heads_folder(), features, lambda error: display.warn(error.what))
    display.say(f"Head: {found} (the newest private one{'' if features is None else ' for these features'})")
    return found


def names_of(said: Option) -> Callable[[str], list[str]] | None:
    """What gives a shell the names that begin so, of an option whose values have names; None for others. Where it gets
    no name, a shell completes files.
    """
    if not said.choices and said.kind != "set" and said.metavar not in ("HEAD", *_SETS):
        return None

    def known() -> Iterable[str]:
        if said.choices:
            return said.choices
        if said.metavar == "HEAD":
            return (path.stem for path in heads_folder().glob("*.safetensors"))
        return (path.parent.name for path in features_folder().glob("*/manifest.json"))

    def begun(incomplete: str) -> list[str]:
        # bash takes what it gets as it would be typed. zsh and fish quote names themselves.
        bash = os.environ.get("_DPFC_COMPLETE", "").endswith("bash")
        return [re.sub(r"([^\w@%+=:,./~-])", r"\\\1", name) if bash else name for name in fitting(incomplete)]

    def fitting(incomplete: str) -> list[str]:
        kind, colon, path = incomplete.partition(":")
        if not colon or f"{kind}:" not in known():
            return sorted(name for name in known() if name.startswith(incomplete))
        # zsh does not complete the path in imagefolder:PATH itself.
        paths = glob.glob(f"{path}*/") + [each for each in glob.glob(f"{path}*.*") if os.path.isfile(each)]
        if len(paths) == 1:
            # A space follows the only name, but for what is in that folder.
            paths += glob.glob(f"{paths[0]}*/")
        return sorted(f"{kind}:{each}" for each in paths)

    return begun


def typed_classes(text: str | None) -> int | tuple[str, ...] | Path | None:
    """'10' is a number. A file's path or URL, and a single word, is a path. Anything else is names, between commas."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    # Names may be longer together than a path can be. Then `os.path.isfile` says no, and `Path.is_file` raises.
    if os.path.isfile(text) or "://" in text or ("," not in text and text.strip()):
        return place_of(text)
    return tuple(name.strip() for name in text.split(","))


def _reader(read: Callable[[str], object], what: str, remedy: str) -> Callable[[str, str], object]:
    """What reads a value, by the name of its option and its text. read: ValueError if the text is not `what`."""

    def value(name: str, text: str) -> object:
        try:
            return read(text)
        except ValueError:
            raise UserError(f"{parameter(name)} '{text}' is not {what}.", remedy) from None

    return value


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part.strip())


def _bytes(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *([A-Za-z]+)", text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise ValueError
    return float(match[1]) * UNITS[match[2].upper()]


_LIST = _reader(_numbers, "a list of numbers", "Write it like 0.15,0.85.")
READERS: dict[str, Callable[[str, str], object]] = {
    "PATH": lambda _, text: text,
    "CLASSES": lambda _, text: typed_classes(text),
    "NAMES": lambda _, text: typed_classes(text),
    "FILE": lambda _, text: place_of(text),
    "SHARES": _LIST,
    "LIST": _LIST,
    "LOW,HIGH": _reader(_numbers, "LOW,HIGH", "Give the grey values that are black and white, such as 0,4095."),
    "SIZE": _reader(_bytes, "a size", "Write it like 8GB or 512MiB."),
}
"""How a value is typed, by what stands for it."""


def one_source(source: str | None, dataset: str | None) -> str | None:
    """SOURCE or --dataset SOURCE. UserError if both are there."""
    if source is not None and dataset is not None:
        what = f"The pictures are named twice, as '{source}' and as --dataset '{dataset}'."
        raise conflict(what, "Name them once: SOURCE.", parameter="source")
    return source or dataset
