"""`dpfc`: the commands and how they end.

Exit codes: 0 done; 2 the user can mend it; 1 a defect of ours; 130 stopped by Ctrl-C.
"""

import functools
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dpfc_cli.errors import UserError
from dpfc_cli.version import __version__

app = typer.Typer(
    name="dpfc",
    help="Train an image classifier on sensitive pictures with a proof of differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    # Locals would be private features.
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: dpfc extract --dataset digits, dpfc train --epsilon 1, dpfc evaluate",
)
_verbose = False


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dpfc {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks of defects.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    global _verbose
    _verbose = verbose


def command(
    name: str, when_stopped: str = "Nothing was changed.", cls: type[TyperCommand] = TyperCommand
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command whose every ending is one of the exit codes. when_stopped: said after Ctrl-C."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                function(*args, **kwargs)
            except UserError as error:
                _fail(*error.text(flag_of), error.exit_code)
            except KeyboardInterrupt as stopped:
                _fail("Stopped.", " ".join(getattr(stopped, "__notes__", [when_stopped])), 130)
            except MemoryError:
                _fail("The machine's memory ran out.", "Free some, or use fewer features (--pool mean) or classes.", 2)
            except (typer.Exit, typer.Abort):
                raise
            except Exception as error:
                if _verbose:
                    import traceback

                    traceback.print_exception(error)
                _fail(
                    f"A defect in dpfc: {type(error).__name__}.",
                    "Run again with 'dpfc -v …' for the traceback, and report it.",
                    1,
                )

        app.command(name, cls=cls)(guarded)
        return function

    return register


def flag_of(name: str) -> str:
    """A parameter as it is typed."""
    return "--" + name.replace("_", "-")


def _fail(what: str, remedy: str, code: int) -> None:
    from dpfc_cli.cli import display

    display.fail(what, remedy)
    raise typer.Exit(code) from None


class _Output(io.FileIO):
    """Standard output or error, which takes whatever it is given: a training that is paid for does not end because a
    line could not be written. failed: why one could not.
    """

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            taken = super().write(data)
            while taken is None:
                # A reader who wants no writer to wait, and is late.
                select.select([], [self], [])
                taken = super().write(data)
            return taken
        except BrokenPipeError:
            # Whoever read it has gone, and misses nothing.
            return len(data)
        except OSError as error:
            self.failed = error
            return len(data)


def _output(name: str, descriptor: int) -> _Output:
    """Put the stream `name` of `sys` upon an `_Output`; one that is closed leads nowhere, lest the next file that is
    opened take its place.
    """
    stream = getattr(sys, name)
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    raw = _Output(descriptor, "w", closefd=False)
    encoding, lines = stream.encoding if stream else "utf-8", name == "stderr" or raw.isatty()
    # A character that a terminal does not know is no reason to end, either.
    setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=lines))
    return raw


def main() -> None:
    """The console script."""
    results, _ = _output("stdout", 1), _output("stderr", 2)
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    # What is left is to say how it ended. A process that was started to ignore Ctrl-C still ignores it.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.stdout.flush()
    # Of remarks that could not be written there is nobody to tell.
    failed = results.failed
    if failed and not code:
        from dpfc_cli.cli import display

        code = UserError.exit_code
        display.fail(
            f"The output could not be written ({failed.strerror}).",
            "What the command made is in place. Make room, or send the output elsewhere.",
        )
    sys.exit(code)


def _run(words: list[str]) -> Any:
    """The exit code of a command line."""
    # Each module registers its command when imported; what computes is imported inside the commands.
    from dpfc_cli.cli import audit, budget, evaluate, extract, import_, statement, train  # noqa: F401

    try:
        if not _helped(words):
            app()
    except SystemExit as end:
        return end.code
    return 0


def _helped(words: list[str]) -> bool:
    """Show a command's help where nothing else is asked for. Typer would import pydantic to parse the line, which is a
    third of what such a line costs.
    """
    group: Any = typer.main.get_command(app)
    if len(words) != 2 or words[1] not in ("-h", "--help") or words[0] not in group.commands:
        return False
    command = group.commands[words[0]]
    outer = group.context_class(group, info_name="dpfc", **group.context_settings)
    print(command.get_help(command.context_class(command, info_name=words[0], parent=outer)))  # noqa: T201
    return True
