"""Runs command lines of dpfc whose system calls fail, or that get a signal before one of them.

Each run is a forked child of a process that has imported everything and computed nothing, so that a run takes a
fraction of a second. The child goes through `dpfc_cli.cli.app.main`, as the console script does. The shim (`shim.c`)
counts its system calls on files below the working folder, and makes one of them fail.
"""

import contextlib
import ctypes
import errno
import functools
import importlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIM = Path(__file__).with_name("shim.c")
KINDS = (
    *("open", "create", "read", "write", "sync", "rename", "link", "unlink", "truncate", "close", "mkdir", "mmap"),
    *("stat", "list", "lock"),
)
"""The kinds of system calls, in the order of the shim's list."""
MAKING = ("create", "write", "rename", "link", "mkdir", "truncate", "sync")
CHANGING = ("create", "write", "rename", "link", "unlink", "mkdir", "truncate")
IMPORTED = (
    *("jax.numpy", "scipy.special", "scipy.optimize", "h5py", "PIL.Image", "pyarrow.parquet", "safetensors.numpy"),
    *("rich.progress", "rich.table", "sqlite3", "dp_accounting", "dpfc_cli.evaluation", "dpfc_cli.training.train"),
    *("dpfc_cli.conversion", "dpfc_cli.records.statement", "dpfc_cli.extensions.importing.importing"),
    *("dpfc_cli.methods", "dpfc_cli.images.decoding", "dpfc_cli.backbones.scattering.transform"),
)
"""What commands import."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to a call.

    kinds: the calls that it can happen to. what: an error number, or a number of the shim. lasting: all later calls
    fail, too.
    """

    kinds: tuple[str, ...] = KINDS
    what: int
    lasting: bool = False

    @property
    def mask(self) -> int:
        return sum(1 << KINDS.index(kind) for kind in self.kinds)

    @property
    def fails(self) -> bool:
        """Whether the call itself fails. Otherwise the process gets a signal."""
        return self.what > -3

    @property
    def leaves(self) -> bool:
        """Whether the call may be one that tidies up."""
        return self.fails and (self.lasting or not {"open", "list", "unlink"}.isdisjoint(self.kinds))


def _signal(number: int) -> Fault:
    return Fault(what=-100 - number)


FAULTS = {
    "EIO": Fault(what=errno.EIO),
    "ENOSPC": Fault(kinds=MAKING, what=errno.ENOSPC),
    "EDQUOT": Fault(kinds=MAKING, what=errno.EDQUOT),
    "EROFS": Fault(kinds=CHANGING, what=errno.EROFS),
    "EACCES": Fault(kinds=("open", "create", "rename", "link", "unlink", "mkdir", "list"), what=errno.EACCES),
    "EMFILE": Fault(kinds=("open", "create", "list"), what=errno.EMFILE),
    "EINTR": Fault(kinds=("open", "create", "read", "write", "lock", "close"), what=errno.EINTR),
    "ENOLCK": Fault(kinds=("lock",), what=errno.ENOLCK),
    "ENOMEM": Fault(kinds=("open", "mmap", "read"), what=errno.ENOMEM),
    "short read": Fault(kinds=("read",), what=-1),
    "short write": Fault(kinds=("write",), what=-1),
    "end of file": Fault(kinds=("read",), what=-2),
    "disk full": Fault(kinds=MAKING, what=errno.ENOSPC, lasting=True),
    "read-only": Fault(kinds=CHANGING, what=errno.EROFS, lasting=True),
    "disk gone": Fault(what=errno.EIO, lasting=True),
    "torn write": Fault(kinds=("write",), what=-3),
    "kill": _signal(signal.SIGKILL),
    "ctrl-c": _signal(signal.SIGINT),
}
PAUSE = _signal(signal.SIGSTOP)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended. code: its exit code; None if a signal ended it. calls: the kinds of its calls with
    their files, numbers in the names aside, if no fault was asked.
    """

    code: int | None
    signal: int | None
    out: str
    err: str
    calls: tuple[tuple[str, str], ...] = ()


def compiler() -> str | None:
    """The C compiler that makes the shim; None where there is none, or where the system is not Linux."""
    return (shutil.which("cc") or shutil.which("gcc")) if sys.platform.startswith("linux") else None


def compiled(folder: Path) -> Path:
    """The shim, compiled into a folder."""
    made, new, found = folder / "shim.so", folder / f"shim.{os.getpid()}", compiler()
    if found is None:
        raise SystemExit("Faults in system calls need Linux and a C compiler (cc). Nothing was tried.")
    subprocess.run([found, "-O2", "-shared", "-fPIC", "-o", str(new), str(SHIM), "-ldl"], check=True)
    # Another campaign may have the old one loaded.
    return new.rename(made)


def restart_with_shim(folder: Path) -> None:
    """Start this program again with the shim in it, unless it is there. folder: for the shim."""
    if "LD_PRELOAD" in os.environ:
        assert _shim() is not None, "the shim could not be loaded"
        del os.environ["LD_PRELOAD"]
        return
    module = sys.modules["__main__"].__spec__
    assert module is not None
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "LD_PRELOAD": str(compiled(folder).resolve())}
    os.execve(sys.executable, [sys.executable, "-m", module.name, *sys.argv[1:]], environment)


@functools.cache
def _shim() -> Any:
    library = ctypes.CDLL(None)
    if not hasattr(library, "torture_arm"):
        return None
    arguments: list[Any] = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    library.torture_arm.argtypes = arguments
    return library


def prepared() -> None:
    """Set what all runs share, and import what they need. Nothing is computed: JAX must not start threads here."""
    for variable in ("DPFC_FEATURES", "DPFC_HEADS", "DPFC_CACHE"):
        os.environ.pop(variable, None)
    os.environ["COLUMNS"] = "200"
    for name in IMPORTED:
        importlib.import_module(name)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run that was begun. place: its folder. child: its process."""

    place: Path
    child: int

    def ended(self, limit: float = 600.0) -> Ended:
        """Wait for its end. A run that takes more seconds than the limit hangs, and is ended with exit code 124."""
        status = 124 << 8
        if not self.waited(limit):
            self.signal(signal.SIGKILL)
            os.waitpid(self.child, 0)
        else:
            status = os.waitpid(self.child, 0)[1]
        texts = {name: (self.place / name).read_text(errors="replace") for name in ("out", "err", "calls")}
        return Ended(
            code=os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            out=texts["out"].replace(str(self.place), "PLACE"),
            err=texts["err"].replace(str(self.place), "PLACE"),
            calls=tuple(map(_call, texts["calls"].splitlines())),
        )

    def paused(self) -> bool:
        """Wait until it is paused or has ended: whether it is paused."""
        found = os.waitid(os.P_PID, self.child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED

    def waited(self, seconds: float) -> bool:
        """Wait until it has ended, or so long: whether it has ended."""
        handle = os.pidfd_open(self.child)
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.child, number)


def _call(line: str) -> tuple[str, str]:
    kind, _, file = line.partition(" ")
    return KINDS[int(kind)], re.sub("[0-9a-f]{16,}|[0-9]+", "", file)


def started(
    place: Path,
    line: Sequence[str] | Callable[[], object],
    *,
    fault: Fault | None = None,
    at: int = 0,
    plant: Callable[[], object] | None = None,
) -> Running:
    """Begin a command line in the folder place/work.

    Args:
        place: the folder of this run. The output goes to files beside the working folder, which no fault hits.
        line: the words after `dpfc`; or a function that is called in their place.
        fault: what happens to the call number `at` of the fault's kinds. Without one all calls are noted.
        at: which call.
        plant: called in the child before anything else.

    """
    for name in ("out", "err", "calls"):
        (place / name).write_bytes(b"")
    child = os.fork()
    if child == 0:
        try:
            _become(place, line, fault, at, plant)
        finally:
            os._exit(99)
    return Running(place=place, child=child)


def run(place: Path, line: Sequence[str] | Callable[[], object], **options: Any) -> Ended:
    """What `started` begins, and its end."""
    return started(place, line, **options).ended()


def _become(
    place: Path,
    line: Sequence[str] | Callable[[], object],
    fault: Fault | None,
    at: int,
    plant: Callable[[], object] | None,
) -> None:
    """The child: run the line and end the process."""
    # Ctrl-C waits until the command begins. Before that Python itself shows a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    calls = os.open(place / "calls", os.O_WRONLY | os.O_APPEND)
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(place / name, os.O_WRONLY | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # What the parent had on its streams is not the child's to write.
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.chdir(place / "work")
    os.environ |= {"TMPDIR": str(place / "rescue"), "HOME": str(place / "rescue"), "DPFC_CACHE": "tiny"}
    (place / "rescue").mkdir(exist_ok=True)
    tempfile.tempdir = None
    if plant is not None:
        plant()
    folder = str((place / "work").resolve()).encode()
    asked = Fault(what=0) if fault is None else fault
    _shim().torture_arm(folder, asked.mask, at, asked.what, asked.lasting, -1 if fault else calls)
    code = 0
    try:
        line() if callable(line) else _command(line)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _command(line: Sequence[str]) -> None:
    from dpfc_cli.cli import app

    begin: Any = app._run

    def begun(words: list[str]) -> Any:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return begin(words)

    app._run = begun
    sys.argv = ["dpfc", *line]
    app.main()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for runs, in memory where that is possible."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="torture-", dir=memory if os.access(memory, os.W_OK) else None)).resolve()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
