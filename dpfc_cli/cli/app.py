"""`dpfc`: the commands and how they end.

The exit codes are `errors.ENDINGS`. With --json the object has the warnings. An error is one on stderr, with them.

`display` is imported inside functions: it looks at the output streams, and `main` may have to repair them first.
"""

import contextlib
import functools
import importlib
import inspect
import io
import os
import re
import select
import stat
import sys
import warnings
from collections.abc import Callable, Collection
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from dpfc_cli import points, progress
from dpfc_cli.cli import stop
from dpfc_cli.cli.help import Command, Group, plain
from dpfc_cli.cli.typed import flag_named, typed
from dpfc_cli.errors import Code, UserError, notes, printable, unwritable
from dpfc_cli.folders import cache_folder
from dpfc_cli.options import Options
from dpfc_cli.version import __version__

app = typer.Typer(
    name="dpfc",
    cls=Group,
    help="Train an image classifier on sensitive pictures with a proof of differential privacy.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    # Locals would be private features.
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: dpfc extract digits; dpfc train --epsilon 1; dpfc evaluate. Options: dpfc train --help",
)
COMMANDS = {
    **{name: name for name in ("extract", "train", "evaluate", "budget", "fetch", "predict", "verify")},
    **dict.fromkeys(("cap", "population", "merge"), "changes"),
    **{"list": "list_", "statement": "verify"},
}
"""The commands of the core, each with its module in `dpfc_cli.cli`. Others are added by `dpfc.commands`."""
COMMON: dict[str, OptionInfo] = {
    "quiet": typer.Option("--quiet", "-q", metavar="", help="Show only results, warnings and errors."),
    "verbose": typer.Option("--verbose", "-v", metavar="", help="Show the traceback of a defect."),
    "as_json": typer.Option("--json", metavar="", help="Print one JSON object, also of an error."),
}
"""Options that may stand before the command or after it."""
_computing: set[str] = set()
"""The commands that compute with JAX."""
_before: dict[str, bool] = {}
"""Those that stood before it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dpfc {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _common(
    quiet: Annotated[bool, COMMON["quiet"]] = False,
    verbose: Annotated[bool, COMMON["verbose"]] = False,
    as_json: Annotated[bool, COMMON["as_json"]] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    _before.update(quiet=quiet, verbose=verbose, as_json=as_json)


def register(name: str = "") -> None:
    """Import the module of a command, which registers it; or all of them, if there is no such command."""
    others = points.added("dpfc.commands")
    if name in COMMANDS:
        importlib.import_module(f"dpfc_cli.cli.{COMMANDS[name]}")
    elif name in others:
        points.load("dpfc.commands", name)
    else:
        for each in (*COMMANDS, *others):
            register(each)


def command(
    name: str,
    *calls: type[Options],
    panel: str,
    when_stopped: str = "Nothing was changed.",
    computes: bool = False,
    several: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command that always ends with one of the exit codes.

    calls: whose options it takes, beside the function's own. panel: of `dpfc --help`, which shows the begin of its
    docstring, up to a full stop or a colon. when_stopped: said after Ctrl-C, as long as nothing has happened that it
    must say (`stop.stands`). computes: with JAX, whose compiled programs are kept then.
    several: options that may stand in the line several times.
    """
    if computes:
        _computing.add(name)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        options = typed(function, *calls, several=several)

        def spell(parameter: str) -> str:
            return options[parameter].flag if parameter in options else flag_named(parameter)

        @functools.wraps(function)
        def guarded(**words: object) -> None:
            from dpfc_cli.cli import display

            common = {each: bool(_before.get(each) or words.get(each)) for each in COMMON}
            stop.stands = when_stopped
            display.begin(common["as_json"], common["quiet"], spell)
            if "as_json" in words:
                words["as_json"] = common["as_json"]
            try:
                function(**{each.name: each.value(words[each.name]) for each in options.values()})
            except (typer.Exit, typer.Abort):
                raise
            except (Exception, KeyboardInterrupt) as error:
                found = _error_of(error)
                progress.close()
                if common["verbose"] and found.code == "defect":
                    _show_traceback(error)
                said = [] if found.code in ("stopped", "terminated") else notes(error)
                raise typer.Exit(display.fail(found, said, spell, common["as_json"])) from None
            finally:
                display.begin()

        parameters = [each.parameter(spell) for each in options.values()]
        own = {each.name for each in parameters}
        parameters += [_common_option(each) for each in COMMON if each not in own]
        guarded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        guarded.__annotations__ = {each.name: each.annotation for each in parameters}
        said = plain(inspect.getdoc(function) or "")
        short = re.split("[.:]", said)[0] + "."
        app.command(name, cls=Command, help=said, short_help=short, rich_help_panel=panel)(guarded)
        return function

    return register


def _common_option(name: str) -> inspect.Parameter:
    """A common option as one of a command. The help of dpfc tells of it; --json is in that of each command, too."""
    said = copy(COMMON[name])
    said.hidden = name != "as_json"
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, said])


def _error_of(error: BaseException) -> UserError:
    # Others, of libraries too, may come of a KeyboardInterrupt.
    if isinstance(error, KeyboardInterrupt) or stop.pressed:
        code: Code = "terminated" if stop.code == 143 else "stopped"
        return UserError("Stopped.", " ".join(notes(error) or [stop.stands]), code=code)
    if isinstance(error, UserError):
        return error
    if isinstance(error, MemoryError):
        remedy = "Free some, or use fewer features (--pool mean) or classes."
        return UserError("The machine's memory ran out.", remedy, code="memory")
    if isinstance(error, OSError):
        # No room has put it into words.
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        about = f"'{os.fsdecode(error.filename)}'" if isinstance(error.filename, str | bytes) else "a file"
        what = f"The system does not let dpfc use {about}: {reason}."
        return UserError(what, "Look at the disk and the rights.", code="unreadable")
    remedy = "Run again with 'dpfc -v …' for the traceback, and report it."
    return UserError(f"A defect in dpfc: {type(error).__name__}.", remedy, code="defect")


def _show_traceback(error: BaseException) -> None:
    """The traceback on stderr, indented: a message in it may have lines that look like ours."""
    import traceback

    for line in "".join(traceback.format_exception(error)).splitlines():
        print(f"  {printable(line)}", file=sys.stderr)  # noqa: T201


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    from dpfc_cli.cli import display

    display.warn(f"{category.__name__}: {message}")


class _Output(io.FileIO):
    """Standard output or standard error. It accepts everything, even what it cannot write.

    So a training that has spent its budget does not end because a line could not be written. failed: why it could not.
    ended: whether its reader has ended.
    """

    failed: OSError | None = None
    ended = False

    def write(self, data: Any) -> int:
        try:
            taken = super().write(data)
            while taken is None:
                # The reader made the pipe non-blocking, and has not read yet.
                select.select([], [self], [])
                taken = super().write(data)
            return taken
        except BrokenPipeError:
            # The reader has ended, so nobody misses it.
            self.ended = True
            return len(data)
        except OSError as error:
            self.failed = error
            return len(data)


def _output(name: str, descriptor: int) -> _Output:
    """Make the stream `name` of `sys` write to an `_Output`.

    A stream that is closed becomes one that cannot be written. Otherwise the next file that is opened would take its
    number.
    """
    stream = getattr(sys, name)
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
    raw = _Output(descriptor, "w", closefd=False)
    encoding, lines = stream.encoding if stream else "utf-8", name == "stderr" or raw.isatty()
    # A character that the terminal does not know does not end the command, either.
    setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=lines))
    return raw


def main() -> None:
    results, _ = _output("stdout", 1), _output("stderr", 2)
    try:
        stop.listen()
        warnings.showwarning = _show_warning
        code = _run(sys.argv[1:])
        stop.finish(said=bool(code))
    except KeyboardInterrupt:
        stop.finish(said=True)
        # No command has begun, or it has ended.
        sys.stderr.write(stop.stopped(stop.code))
        code = stop.code
    sys.stdout.flush()
    # Remarks that could not be written are not mentioned: there is no place left to do it.
    failed = results.failed
    if failed and not code:
        from dpfc_cli.cli import display

        remedy = "Only the output is lost, no file and no charge. Make room, or send it elsewhere."
        error = unwritable(f"The output could not be written ({failed.strerror}).", remedy)
        code = display.fail(error, as_json="--json" in sys.argv)
    if code in (130, 143):
        # What was stopped may still compute on JAX's threads, and would crash the interpreter while it ends.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    register(name)
    group = typer.main.get_command(app)
    try:
        if name in _computing:
            keep_compiled()
        group(prog_name="dpfc")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


# What JAX compiles

LARGEST = 2**28
"""Bytes that are kept. What was not used for the longest time goes first."""


def keep_compiled() -> None:
    """Say to JAX where it keeps what it compiles, unless the user has said so, so that the second run of a command
    compiles nothing. JAX must not be imported yet.

    What is kept are programs. They are made of public facts, such as numbers of dimensions and classes, and hold no
    record. Secret samples of all sizes share one program (`privacy.sums.SAMPLED`).

    A program that lies in the cache is run. So the folder must be one that only this user can write to, and nobody else
    may be able to put another one in its place. If there is no such folder, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    import hashlib

    # A home folder may be that of several machines. A program that was compiled for another processor may crash.
    with contextlib.suppress(OSError, RuntimeError):
        outer = cache_folder() / "compiled"
        folder = outer / hashlib.sha256(_processor()).hexdigest()[:16]
        for each in reversed(outer.parents):
            each.mkdir(mode=0o755, exist_ok=True)
        for each in (outer, folder):
            each.mkdir(mode=0o700, exist_ok=True)
        # Links may be changed later. What is checked is also what is used.
        folder = folder.resolve(strict=True)
        if not (_own(folder) and _own(folder.parent) and all(map(_safe, folder.parents))):
            return
        _sweep(folder)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(LARGEST))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        # On a full disk each of them would be told of. What is not kept is compiled again.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _own(folder: Path) -> bool:
    """Whether only this user can write to a folder."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK)


def _safe(parent: Path) -> bool:
    """Whether nobody else but root can rename what root and this user have in a folder."""
    found = parent.stat()
    return found.st_uid in (0, os.geteuid()) and (not found.st_mode & 0o022 or bool(found.st_mode & stat.S_ISVTX))


def _sweep(folder: Path) -> None:
    """Remove what a killed process left: a program without its time, or a time without its program.

    With one such program, JAX would keep nothing any more, and not say so.
    """
    names = set(os.listdir(folder))
    for name in names:
        key, dash, end = name.rpartition("-")
        other = {"cache": "atime", "atime": "cache"}.get(end)
        if other and key + dash + other not in names:
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def _processor() -> bytes:
    """What tells this kind of processor from others."""
    import platform

    described = platform.machine().encode()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open("rb") as file:
        lines = file.read(2**14).split(b"\n\n")[0].splitlines()
        described += b"\n".join(line for line in lines if line.startswith((b"model name", b"flags", b"Features")))
    return described
