"""How `--help` looks: options and values as they are typed, in lines that end between words."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.completion import install  # type: ignore[attr-defined]
from typer.core import TyperCommand, TyperGroup

from dpfc_cli.errors import UserError, near, unknown
from dpfc_cli.options import Option

Full = Annotated[bool, Option("Show all, and not the short form.")]
"""The option of commands that show a document."""
PANELS = ("Train a classifier", "Pictures and heads")
"""The panels of `dpfc --help` that come first, in their order. Extensions have others."""


SHELLS = ("bash", "zsh", "fish")
_LineError: Any = typer.BadParameter.__mro__[1]
"""What is wrong with a line: the class that Typer takes from click, or has itself in its later versions."""
_PARSED = re.compile(", unable to parse string as an? [a-z]+")
"""What the library that reads values adds to its messages, and what says nothing more."""
WIDEST, NARROWEST = 28, 20
"""The most columns for an option and its value (longer ones have a line of their own), and the fewest for what is said
of it.
"""


class _Ours:
    """How the help of `dpfc` and of a command begins."""

    help: str | None

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What completes a word. zsh shows each help in one line."""
        found: list[Any] = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        for each in found:
            each.help = each.help and textwrap.shorten(each.help.partition(". ")[0], 70, placeholder=" …")
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help no wider than the terminal: a formatter's own least width is 50."""
        formatter.width = min(formatter.width, shutil.get_terminal_size().columns - 2)
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what it does: paragraphs, indented as the options are."""
        for paragraph in (self.help or "").split("\n\n"):
            formatter.write("\n" + "".join(f"  {line}\n" for line in _wrapped(paragraph, formatter.width - 4)))


class Command(_Ours, TyperCommand):
    """A command whose help lists its options in the panels that they name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Each error knows which command they are of."""
        try:
            given: list[Any] = self.make_parser(ctx).parse_args(list(args))[2]
            for each in given:
                # A shell that completes a line wants no error.
                if given.count(each) > 1 and not each.is_flag and not ctx.resilient_parsing:
                    raise _LineError(f"'{each.opts[0]}' stands in the line more than once.")
            return super().parse_args(ctx, args)
        except _LineError as error:
            error.ctx = ctx
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """[OPTIONS], then every positional argument, in brackets if it may be left out."""
        names = [(p.metavar or str(p.name), p.required) for p in _arguments(self, ctx)]
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in names)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels = {"Arguments": [(p.metavar or str(p.name), _said(p)) for p in _arguments(self, ctx)]}
        for option in _options(self, ctx):
            panels.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(_record(option))
        for panel, records in panels.items():
            _write(formatter, panel, records)


class Group(_Ours, TyperGroup):
    """`dpfc` itself: help lists its options, and its commands in panels.

    A wrong line ends as other errors do. (Typer would write words of the line to the terminal as they are.)
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        words = kwargs.get("args") or sys.argv[1:]
        if len(words) > 1 and words[0] in ("--install-completion", "--show-completion"):
            # The library's own options are for the shell in which they are typed.
            if words[1] not in SHELLS:
                from dpfc_cli.cli import display

                sys.exit(display.fail(unknown("shell", words[1], SHELLS)))
            os.environ["_DPFC_COMPLETE"] = f"source_{words[1]}"
            if words[0] == "--install-completion":
                shell, path = install(words[1], "dpfc")
                print(f"The completion for {shell} is in '{path}'. It begins in a new terminal.")  # noqa: T201
                sys.exit()
        if "_DPFC_COMPLETE" in os.environ:
            return super().main(*args, **kwargs)
        try:
            # The library's own way would take Ctrl-C for an error of its own.
            with self.make_context("dpfc", list(words)) as ctx:
                code = self.invoke(ctx)
        except typer.Exit as end:
            code = end.exit_code
        except _LineError as error:
            from dpfc_cli.cli import display

            # Without any word, the help is the message.
            if error.ctx and error.message == error.ctx.get_help():
                sys.stderr.write(error.message + "\n")
                sys.exit(2)
            code = display.fail(_refused(error, words), as_json="--json" in words)
        sys.exit(code or 0)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write(formatter, "Options", [_record(option) for option in _options(self, ctx)])
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        for name, each in self.commands.items():
            panels.setdefault(str(getattr(each, "rich_help_panel", "")), []).append((name, str(each.short_help)))
        for panel, records in panels.items():
            _write(formatter, panel, records)


def _refused(error: Any, words: Sequence[str]) -> UserError:
    """What is said of a line that cannot be parsed. words: of it."""
    ctx = error.ctx
    line = ctx.command_path if ctx else "dpfc"
    more = f"'{line} --help' shows what it takes."
    if not hasattr(error, "possibilities"):
        said = _PARSED.sub("", error.format_message()).rstrip(".")
        about = ""
        if hasattr(error, "param_type") and error.param:
            # All that is missing is named at once. One alone is described.
            given = {word.partition("=")[0] for word in words}
            others = [p for p in _options(ctx.command, ctx) if p.required and p is not error.param]
            names = ", ".join(f"'{p.opts[0]}'" for p in others if given.isdisjoint(p.opts))
            said, about = (f"{said}, and {names}", "") if names else (said, f"{error.param.help} ")
        if said.startswith("Got unexpected extra") and any("--features" in p.opts for p in _options(ctx.command, ctx)):
            about = "A feature set is named with '--features'. "
        # Many write 0,5 where they live.
        said += ", such as 0.5" if said.endswith("a valid number") else ""
        return UserError(said if said.endswith("?") else f"{said}.", about + more)
    name = error.option_name
    flags = [flag for option in _options(ctx.command, ctx) for flag in option.opts if flag.startswith("--")]
    # Of '-epsilon' the name is '-e'.
    hint = near(f"--{name.lstrip('-')}", flags)
    return UserError(f"'{line}' has no option '{name}'.", hint + more, code="unknown-name", name=name, known=flags)


def _arguments(command: Any, ctx: Any) -> list[Any]:
    return [p for p in command.get_params(ctx) if p.param_type_name == "argument"]


def _options(command: Any, ctx: Any) -> list[Any]:
    return [p for p in command.get_params(ctx) if p.param_type_name == "option" and not getattr(p, "hidden", False)]


def _record(option: Any) -> tuple[str, str]:
    """'-q, --quiet' or '--steps N', and what is said of it."""
    flags = ", ".join(sorted(option.opts, key=lambda flag: flag.startswith("--")))
    return (flags if option.is_flag or not option.metavar else f"{flags} {option.metavar}"), _said(option)


def _said(param: Any) -> str:
    """A parameter's help, with its default unless that is nothing."""
    said = str(param.help or "")
    return said if param.default in (None, False) else f"{said} Default: {param.default}."


def _write(formatter: Any, title: str, records: list[tuple[str, str]]) -> None:
    """Write names with what is said of them, in two columns under a title."""
    if not records:
        return
    widest = min(WIDEST, formatter.width - NARROWEST - 6)
    column = max((len(name) for name, _ in records if len(name) <= widest), default=widest) + 2
    formatter.write(f"\n{title}:\n")
    for name, said in records:
        lines = _wrapped(said, formatter.width - 4 - column)
        # A name that is wider than its column stands above what is said of it.
        first = [name.ljust(column) + lines.pop(0)] if len(name) + 2 <= column and lines else [name]
        formatter.write("".join(f"  {line}\n" for line in [*first, *(" " * column + line for line in lines)]))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words: neither '--hold-out' nor a path is cut."""
    return textwrap.wrap(text, max(width, NARROWEST), break_long_words=False, break_on_hyphens=False)
