"""Runs command lines of dpfc that are killed, or whose system calls fail.

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
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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
NOW = 1_893_456_000
"""The wall clock of a run: the first second of 2030. So two runs with one seed write the same bytes."""
SIGNALS = {"kill": signal.SIGKILL, "ctrl-c": signal.SIGINT, "terminate": signal.SIGTERM}
HEAVY = (
    *("jax", "numpy", "scipy.special", "scipy.optimize", "h5py", "PIL.Image", "pyarrow.parquet", "safetensors.numpy"),
    *(
        "typer.testing",
        "typer._adapters",
        "rich.progress",
        "rich.table",
        "sqlite3",
        "dp_accounting",
        "dpfc_cli.extraction.extract",
    ),
    *("dpfc_cli.evaluation", "dpfc_cli.training.train", "dpfc_cli.planning.conversion", "dpfc_cli.trust.statement"),
    *("dpfc_cli.extraction.importing", "dpfc_cli.images.decoding", "dpfc_cli.backbones.scattering.transform"),
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to a call.

    kinds: the calls that it can happen to. what: an error number, or −1 to −6: less is read or written, the file seems
    to end, the process is killed, it is killed in the middle of a write, it gets Ctrl-C, it is paused. lasting: all
    later calls fail, too.
    """

    name: str
    kinds: tuple[str, ...]
    what: int
    lasting: bool = False

    @property
    def mask(self) -> int:
        return sum(1 << KINDS.index(kind) for kind in self.kinds)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(name="EIO", kinds=KINDS, what=errno.EIO),
        Fault(name="ENOSPC", kinds=MAKING, what=errno.ENOSPC),
        Fault(name="EDQUOT", kinds=MAKING, what=errno.EDQUOT),
        Fault(name="EROFS", kinds=CHANGING, what=errno.EROFS),
        Fault(name="EACCES", kinds=("open", "create", "rename", "link", "unlink", "mkdir", "list"), what=errno.EACCES),
        Fault(name="EMFILE", kinds=("open", "create", "list"), what=errno.EMFILE),
        Fault(name="EINTR", kinds=("open", "create", "read", "write", "lock", "close"), what=errno.EINTR),
        Fault(name="ENOLCK", kinds=("lock",), what=errno.ENOLCK),
        Fault(name="ENOMEM", kinds=("open", "mmap", "read"), what=errno.ENOMEM),
        Fault(name="short read", kinds=("read",), what=-1),
        Fault(name="short write", kinds=("write",), what=-1),
        Fault(name="end of file", kinds=("read",), what=-2),
        Fault(name="kill", kinds=KINDS, what=-3),
        Fault(name="torn write", kinds=("write",), what=-4),
        Fault(name="disk full", kinds=MAKING, what=errno.ENOSPC, lasting=True),
        Fault(name="read-only", kinds=CHANGING, what=errno.EROFS, lasting=True),
        Fault(name="disk gone", kinds=KINDS, what=errno.EIO, lasting=True),
    )
}


CTRL_C = Fault(name="ctrl-c", kinds=KINDS, what=-5)
PAUSE = Fault(name="pause", kinds=KINDS, what=-6)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended. code: its exit code; None if a signal ended it. calls: what it called, if that was asked for."""

    code: int | None
    signal: int | None
    out: str
    err: str
    seconds: float
    hit: bool
    calls: tuple[tuple[str, str], ...] = ()


def compiler() -> str | None:
    """The C compiler that makes the shim; None where there is none, or where the system is not Linux."""
    return (shutil.which("cc") or shutil.which("gcc")) if sys.platform.startswith("linux") else None


def compiled(folder: Path) -> Path | None:
    """The shim, compiled into a folder; None where that cannot be."""
    made, found = folder / "shim.so", compiler()
    if found is None:
        return None
    line = [found, "-O2", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"]
    return made if subprocess.run(line, check=False).returncode == 0 else None


def restart_with_shim() -> None:
    """Start this program again with the shim in it, unless it is there."""
    if _shim() is not None:
        # It is loaded. Its file is not needed any more.
        os.environ.pop("LD_PRELOAD", None)
        if "TORTURE_SHIM" in os.environ:
            shutil.rmtree(Path(os.environ.pop("TORTURE_SHIM")).parent, ignore_errors=True)
        return
    if "TORTURE_SHIM" in os.environ:
        raise SystemExit("The shim could not be loaded.")
    made = compiled(Path(tempfile.mkdtemp(prefix="torture-shim-")))
    if made is None:
        raise SystemExit("Faults in system calls need Linux and a C compiler (cc). Nothing was tried.")
    module = sys.modules["__main__"].__spec__
    assert module is not None
    line = [sys.executable, "-m", module.name, *sys.argv[1:]]
    os.execve(sys.executable, line, {**os.environ, "LD_PRELOAD": str(made), "TORTURE_SHIM": str(made)})


@functools.cache
def _shim() -> Any:
    library = ctypes.CDLL(None)
    try:
        library.torture_arm  # noqa: B018
    except AttributeError:
        return None
    library.torture_clock.argtypes = [ctypes.c_long] * 3
    arguments: list[Any] = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    library.torture_arm.argtypes = arguments
    return library


def warm() -> None:
    """Import what commands import, so that children need not. Nothing is computed: JAX must not start threads here."""
    for name in HEAVY:
        # Some are parts of other projects that may move.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from dpfc_cli.methods import METHODS

    assert METHODS


def run(
    place: Path,
    line: Sequence[str] | Callable[[], object],
    *,
    fault: Fault | None = None,
    at: int = 0,
    watch: bool = False,
    stop: tuple[float, int] | None = None,
    step: tuple[int, int] = (0, 0),
    limit: float = 120.0,
    plant: Callable[[], object] | None = None,
) -> Ended:
    """Run a command line in the folder place/work.

    Args:
        place: the folder of this run. The output goes to files beside the working folder, which no fault hits.
        line: the words after `dpfc`; or a function that is called in their place.
        fault: what happens to the call number `at` of the fault's kinds.
        at: which call; 0 for none.
        watch: return all calls, if there is no fault.
        stop: seconds after which a signal is sent, and its number.
        step: at which reading of the wall clock it steps, and by how many seconds.
        limit: seconds after which the run counts as hanging.
        plant: called in the child before anything else.

    """
    return started(place, line, fault=fault, at=at, watch=watch, step=step, plant=plant).ended(stop, limit)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run that was begun. place: its folder. child: its process. begun: when."""

    place: Path
    child: int
    begun: float

    def ended(self, stop: tuple[float, int] | None = None, limit: float = 120.0) -> Ended:
        """Wait for its end. stop, limit: see `run`."""
        status = _awaited(self.child, self.begun, stop, limit)
        return _ended(self.place, status, time.monotonic() - self.begun)

    def paused(self) -> bool:
        """Wait until it is paused or has ended: whether it is paused."""
        found = os.waitid(os.P_PID, self.child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED

    def waited(self, seconds: float) -> None:
        """Wait until it has ended, or so long."""
        handle = os.pidfd_open(self.child)
        try:
            select.select([handle], [], [], seconds)
        finally:
            os.close(handle)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.child, number)


def started(
    place: Path,
    line: Sequence[str] | Callable[[], object],
    *,
    fault: Fault | None = None,
    at: int = 0,
    watch: bool = False,
    step: tuple[int, int] = (0, 0),
    plant: Callable[[], object] | None = None,
) -> Running:
    """Begin what `run` does."""
    for name in ("out", "err", "calls"):
        (place / name).write_bytes(b"")
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _become(place, line, fault, at, watch, step, plant)
        finally:
            os._exit(99)
    return Running(place=place, child=child, begun=begun)


def _ended(place: Path, status: int, seconds: float) -> Ended:
    """How a run ended whose output lies in a folder."""
    calls = [each.split(" ", 1) for each in (place / "calls").read_text(errors="replace").splitlines() if " " in each]
    hit = (place / "hit").exists()
    (place / "hit").unlink(missing_ok=True)
    said = {name: (place / name).read_text(errors="replace").replace(str(place), "PLACE") for name in ("out", "err")}
    return Ended(
        code=os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        **said,
        seconds=seconds,
        hit=hit,
        calls=tuple((KINDS[int(kind)], path) for kind, path in calls),
    )


def _awaited(child: int, begun: float, stop: tuple[float, int] | None, limit: float) -> int:
    """The status of a child that has ended; 124 shifted as an exit code if it had to be ended."""
    handle = os.pidfd_open(child)
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        if stop is not None and not waiting.poll(1000 * max(0.0, begun + stop[0] - time.monotonic())):
            os.kill(child, stop[1])
        if not waiting.poll(1000 * limit):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 124 << 8
        return os.waitpid(child, 0)[1]
    finally:
        os.close(handle)


def _become(
    place: Path,
    line: Sequence[str] | Callable[[], object],
    fault: Fault | None,
    at: int,
    watch: bool,
    step: tuple[int, int],
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
    os.environ |= {"TMPDIR": str(place / "rescue"), "HOME": str(place / "rescue")}
    (place / "rescue").mkdir(exist_ok=True)
    tempfile.tempdir = None
    if plant is not None:
        plant()
    shim = _shim()
    if shim is not None:
        shim.torture_clock(NOW, *step)
        mask = fault.mask if fault else sum(1 << i for i in range(len(KINDS)))
        folder = str((place / "work").resolve()).encode()
        shim.torture_arm(
            folder, mask, at if fault else 0, fault.what if fault else 0, bool(fault and fault.lasting),
            calls if watch else -1,
        )  # fmt: skip
    code = 0
    try:
        if callable(line):
            line()
        else:
            from dpfc_cli.cli import app

            begin: Any = app._run

            def begun(words: list[str]) -> Any:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
                return begin(words)

            app._run = begun
            sys.argv = ["dpfc", *line]
            app.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    if shim is not None:
        shim.torture_disarm()
        if shim.torture_hits():
            (place / "hit").touch()
    os._exit(code)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for runs, in memory where that is possible."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="torture-", dir=memory if os.access(memory, os.W_OK) else None)).resolve()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
