"""Parsers of command lines that take each option once, and what is said of a line that cannot be parsed.

Help and completion are Typer's.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dpfc_cli.errors import UserError, near
from dpfc_cli.options import Option

Full = Annotated[bool, Option("Show all, and not the short form.")]
"""The option of commands that show a document."""
Click = Any
"""An object of click. Typer has a copy of click inside, whose classes have no public names."""
_LineError: Click = typer.BadParameter.__mro__[1]
"""What is wrong with a line: the class that Typer takes from click, or has itself in its later versions."""
_PARSED = re.compile(", unable to parse string as an? [a-z]+")
"""What the library that reads values adds to its messages, and what says nothing more."""


def plain(text: str) -> str:
    """A text as Rich's markup that shows it as it is."""
    return text.replace("[", r"\[")


class Command(TyperCommand):
    """A command that refuses an option that stands in its line twice, unless it may have several values."""

    def make_parser(self, ctx: Click) -> Click:
        parser: Click = super().make_parser(ctx)
        parse = parser.parse_args

        def once(args: list[str]) -> Click:
            found = parse(args)
            for each in found[2]:
                # A shell that completes a line wants no error.
                if found[2].count(each) > 1 and not (each.is_flag or each.multiple) and not ctx.resilient_parsing:
                    raise _LineError(f"'{each.opts[0]}' stands in the line more than once.", ctx)
            return found

        parser.parse_args = once
        return parser


class Group(TyperGroup):
    """`dpfc` itself. A wrong line ends as other errors do: Typer would write its words to the terminal as they are."""

    def main(self, *args: Click, **kwargs: Click) -> Click:
        words = list(kwargs.get("args") or sys.argv[1:])
        if "_DPFC_COMPLETE" in os.environ:
            return super().main(*args, **kwargs)
        try:
            # The library's own way would take Ctrl-C for an error of its own.
            with self.make_context("dpfc", words) as ctx:
                code = self.invoke(ctx)
        except typer.Exit as end:
            code = end.exit_code
        except _LineError as error:
            from dpfc_cli.cli import display

            # Without any word, the help is the message, and was shown.
            shown = type(error).__name__ == "NoArgsIsHelpError"
            code = 2 if shown else display.fail(_refused(error, words), as_json="--json" in words)
        sys.exit(code or 0)


def _refused(error: Click, words: Sequence[str]) -> UserError:
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
            others = [p for p in _options(ctx) if p.required and p is not error.param]
            names = ", ".join(f"'{p.opts[0]}'" for p in others if given.isdisjoint(p.opts))
            said, about = (f"{said}, and {names}", "") if names else (said, f"{error.param.help} ")
        if said.startswith("Got unexpected extra") and any("--features" in p.opts for p in _options(ctx)):
            about = "A feature set is named with '--features'. "
        # Many write 0,5 where they live.
        said += ", such as 0.5" if said.endswith(("a valid number", "a valid float")) else ""
        return UserError(said if said.endswith("?") else f"{said}.", about + more)
    name = error.option_name
    flags = [flag for option in _options(ctx) for flag in option.opts if flag.startswith("--")]
    # Of '-epsilon' the name is '-e'.
    hint = near(f"--{name.lstrip('-')}", flags)
    return UserError(f"'{line}' has no option '{name}'.", hint + more, code="unknown-name", name=name, known=flags)


def _options(ctx: Click) -> list[Click]:
    return [p for p in ctx.command.get_params(ctx) if p.param_type_name == "option" and not getattr(p, "hidden", False)]
