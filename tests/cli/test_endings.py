"""How a process ends whose output cannot be written, or that is stopped while it stops."""

import errno
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.file import read
from tests.cli.conftest import Dpfc, charges

MAIN = "from dpfc_cli.cli.app import main; main()"
SIGMA = ("budget", "--sigma", "10")
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


def ended(*arguments: str, program: str = MAIN, out: str = "/dev/null") -> "subprocess.CompletedProcess[str]":
    """What a process ends with whose output goes to the file `out`."""
    with Path(out).open("w") as stream:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments], check=False, stdout=stream, stderr=subprocess.PIPE, text=True
        )


@full
def test_a_full_disk_is_named_as_such_whatever_was_to_be_said() -> None:
    result = ended("train", "--help", out="/dev/full")
    assert result.returncode == 7
    assert os.strerror(errno.ENOSPC) in result.stderr.splitlines()[0]
    assert "Traceback" not in result.stderr


@full
def test_remarks_that_cannot_be_written_stop_no_training(dpfc: Dpfc, features: Path) -> None:
    line = [sys.executable, "-c", MAIN, "train", "--method", "dp-ls", "--epsilon", "1"]
    with Path("/dev/full").open("w") as nowhere:
        assert subprocess.run(line, check=False, stdout=nowhere, stderr=nowhere).returncode == 7
    assert len(charges()) == len(list(Path("heads").iterdir())) == 1


@full
def test_remarks_that_alone_cannot_be_written_are_not_missed() -> None:
    with Path("/dev/full").open("w") as nowhere:
        line = [sys.executable, "-c", MAIN, "budget", "--features", "none"]
        assert subprocess.run(line, check=False, stdout=subprocess.DEVNULL, stderr=nowhere).returncode == 2
        line = [sys.executable, "-c", MAIN, *SIGMA]
        assert subprocess.run(line, check=False, stdout=subprocess.DEVNULL, stderr=nowhere).returncode == 0


def test_a_reader_that_is_late_is_waited_for() -> None:
    """Both ends of a pipe share one file description: either may have made it non-blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    program = f"from dpfc_cli.cli import display; display.print = lambda text, file: print('x' * 300_000); {MAIN}"
    line = [sys.executable, "-c", program, *SIGMA, "--json"]
    with subprocess.Popen(line, stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            assert len(stream.read()) == 300_001
        _, said = process.communicate()
    assert (process.returncode, said) == (0, "")


def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    program = f"""
import os
from dpfc_cli.cli import app
app._run = lambda _: sum(os.path.samestat(os.fstat(n), os.stat(os.devnull)) for n in (1, 2))
{MAIN}
"""
    line = f"exec '{sys.executable}' -c '{program}' budget --sigma 10 <&- >&- 2>&-"
    assert subprocess.run(line, check=False, shell=True).returncode == 2


def test_results_that_nobody_can_have_got_are_an_error() -> None:
    line = f"exec '{sys.executable}' -c '{MAIN}' budget --sigma 10 >&-"
    assert subprocess.run(line, check=False, shell=True, stderr=subprocess.DEVNULL).returncode == 7


def test_a_reader_that_has_gone_misses_nothing() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    line = [sys.executable, "-c", MAIN, *SIGMA]
    result = subprocess.run(line, check=False, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (0, "")


def test_characters_that_the_terminal_lacks_are_replaced() -> None:
    line = [sys.executable, "-c", MAIN, "budget", "--sigma", "1e-5"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(line, check=False, capture_output=True, text=True, env=env)
    assert (result.returncode, result.stderr) == (0, "")


MOMENTS = {
    "while a module of others is imported": "at_import('typer')",
    "while a module of its own is imported": "at_import('dpfc_cli.cli.budget')",
    "while the command is looked for": "from dpfc_cli.cli import help; help.Group.parse_args = press",
    "while its line is parsed": "from dpfc_cli.cli import help; help.Command.parse_args = press",
    "and again when its error was said": """
from dpfc_cli.cli import budget, stop
real = stop.finish
def again(said):
    real(said)
    press()
budget._converted, stop.finish = press, again
""",
    "and it becomes an error of a library": "becomes(OSError('h5py'))",
    "and it becomes an error of the user": "from dpfc_cli import errors; becomes(errors.damaged('A', 'B'))",
    # JAX has a callback for the garbage collector, and Python drops exceptions that are raised in one.
    "while garbage is collected, where Python drops it": """
from dpfc_cli import progress
from dpfc_cli.cli import budget
def collected(*_):
    gc.callbacks.remove(collected)
    press()
def work(*_):
    gc.callbacks.append(collected)
    gc.collect()
    progress.show("Working", 1, 2)
budget._converted = work
""",
    "at the moment the command has ended": """
from dpfc_cli.cli import stop
real, calls = stop.finish, []
def late(said):
    calls.append(1)
    len(calls) > 1 or press()
    real(said)
stop.finish = late
""",
    "after the last line": """
from dpfc_cli.cli import budget
real = budget._converted
budget._converted = lambda *each: (atexit.register(press), real(*each))[1]
""",
}
PRESSES = """
import atexit, gc, importlib.abc, os, signal, sys
from dpfc_cli.__main__ import main
def press(*_):
    os.kill(os.getpid(), signal.SIGINT)
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == self.name:
            sys.meta_path.remove(self)
            press()
def at_import(name):
    finder = Finder()
    finder.name = name
    sys.meta_path.insert(0, finder)
def becomes(error):
    from dpfc_cli.cli import budget
    def read(*_):
        try:
            press()
        except KeyboardInterrupt:
            raise error
    budget._converted = read
"""


FORKS = """
import os, sys
import dpfc_cli.cli.budget
for number in range(1, len(sys.argv)):
    child = os.fork()
    if not child:
        os.dup2(os.open(str(number), os.O_CREAT | os.O_WRONLY), 2)
        program, sys.argv = sys.argv[number], ["dpfc", "budget", "--sigma", "10", "--json"]
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
exec(program)
"""
"""Each program in a fork of its own. What it says lies in a file that has its number as its name."""


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_at_any_moment_is_said_in_one_object_and_nothing_else(dpfc: Dpfc, tmp_path: Path) -> None:
    programs = [f"{PRESSES}{moment}\nmain()" for moment in MOMENTS.values()]
    line = [sys.executable, "-c", FORKS, *programs[2:]]
    codes = subprocess.run(line, check=True, capture_output=True, text=True, cwd=tmp_path).stdout.split()
    ends = [(int(code), Path(str(number)).read_text()) for number, code in enumerate(codes, 1)]
    # These two need a process that has imported nothing.
    fresh = [ended(*SIGMA, "--json", program=each) for each in programs[:2]]
    ends += [(each.returncode, each.stderr) for each in fresh]
    for moment, (code, said) in zip([*MOMENTS][2:] + [*MOMENTS][:2], ends, strict=True):
        error = json.loads(said)["error"]
        assert (code, error["exit_code"], error["code"]) == (130, 130, "stopped"), moment


def test_a_process_that_was_started_to_ignore_ctrl_c_goes_on() -> None:
    """As `nohup dpfc … &` starts it."""
    program = f"""
import os, signal
def stop(*_):
    os.kill(os.getpid(), signal.SIGINT)
stop()
{MAIN}
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = ended(*SIGMA, program=program)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.returncode, result.stderr) == (0, "")


def test_sigterm_stops_as_ctrl_c_does_and_says_what_is_charged(dpfc: Dpfc, features: Path) -> None:
    """As `timeout`, Slurm and systemd send it, more than once."""
    program = f"""
import os, signal
from dpfc_cli.privacy import curator
from dpfc_cli.training.charged import Charged
def stop(*given):
    os.kill(os.getpid(), signal.SIGTERM)
curator.draw_noise = stop
settled = Charged.settle
def twice(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return settled(*given)
Charged.settle = twice
{MAIN}
"""
    result = ended("train", "--epsilon", "1", "--json", program=program)
    said = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (result.returncode, said["exit_code"], said["code"]) == (143, 143, "terminated")
    (charge,) = charges()
    outcome = read(Path("features", LEDGER)).outcome(charge.id)
    assert outcome is not None
    assert outcome.state == "stopped"


def test_the_console_script_is_the_module_that_imports_least() -> None:
    declared = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert declared["project"]["scripts"] == {"dpfc": "dpfc_cli.__main__:main"}
    program = "import sys, dpfc_cli.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert {each for each in loaded if each.startswith("dpfc_cli")} == {
        *("dpfc_cli", "dpfc_cli.version", "dpfc_cli.cli", "dpfc_cli.cli.stop", "dpfc_cli.__main__")
    }
    assert not {"typer", "click", "rich", "numpy"} & set(loaded)


def test_a_process_ends_with_its_code_after_all_that_wait_for_its_end_and_is_not_taken_apart() -> None:
    program = """
import atexit, os, sys
from dpfc_cli.__main__ import main
class Last:
    def __del__(self, say=os.write):
        say(2, b"taken apart")
last = Last()
from dpfc_cli.cli import app
run = app.main
app.main = lambda: (atexit.register(print, "heard", file=sys.stderr), run())
main()
"""
    assert ended(*SIGMA, program=program).stderr == "heard\n"
    result = ended("trian", program=program)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (2, "heard")
