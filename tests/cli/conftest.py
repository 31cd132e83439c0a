"""A working folder with a small feature set, and the command line to use on it."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dpfc_cli import points
from dpfc_cli.cli import display
from dpfc_cli.cli.app import COMMANDS, app, register
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import read
from tests.cli.worlds import written_worlds
from tests.images.pictures import drawn
from tests.support import blobs, feature_set

register()

Dpfc = Callable[..., Result]
T = TypeVar("T")
SCATTER = ("--model", "scattering", "--pool", "mean", "--image-size", "8")


@pytest.fixture
def dpfc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dpfc:
    """Runs a command in an empty working folder. ends: the exit code that it must have. answer: what somebody types who
    is asked; without one there is nobody to ask.
    """
    monkeypatch.chdir(tmp_path)
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str, ends: int | None = None, answer: str | None = None) -> Result:
        monkeypatch.setattr(display, "can_ask", lambda: answer is not None)
        ended = CliRunner().invoke(app, list(arguments), input=answer)
        assert ends in (None, ended.exit_code), ended.output
        return ended

    return run


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 600 + 150 records in 3 separable classes, as .npy files and as a feature set."""
    folder = tmp_path_factory.mktemp("made_once")
    (folder / "arrays").mkdir()
    x, y = blobs(750, 8, 3, seed=1, apart=8.0)
    for split, rows in (("train", slice(600)), ("test", slice(600, 750))):
        np.save(folder / "arrays" / f"{split}_x.npy", x[rows])
        np.save(folder / "arrays" / f"{split}_y.npy", y[rows])
    feature_set(folder / "arrays", folder / "features" / "blobs", classes=3)
    return folder


@pytest.fixture
def arrays(made_once: Path, tmp_path: Path) -> Path:
    """The .npy files in the working folder."""
    return Path(shutil.copytree(made_once / "arrays", tmp_path / "arrays"))


@pytest.fixture
def features(dpfc: Dpfc, arrays: Path, made_once: Path, tmp_path: Path) -> Path:
    """The feature set in the working folder, too."""
    shutil.copytree(made_once / "features", tmp_path / "features")
    return Path("features/blobs")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """30 + 6 pictures of many sizes in 3 classes, relative to the working folder."""
    drawn(tmp_path / "pictures", 30, 6, ".png")
    return Path("pictures")


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The working folder of each of two worlds."""
    return written_worlds(tmp_path_factory.mktemp("worlds"))


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the folder of a world lies while command lines run in it."""
    return tmp_path_factory.mktemp("place") / "here"


def there(lines: Iterable[T], name: Callable[[T], str]) -> list[T]:
    """Those whose command is there: an extension may be deleted. name: of the command."""
    return [each for each in lines if name(each) in {*COMMANDS, *points.added("dpfc.commands")}]


def charges(folder: str = "features") -> tuple[Charge, ...]:
    """What the ledger of that folder has charged."""
    return read(Path(folder, LEDGER)).charges


def labels_of(name: str) -> list[int]:
    _, y = FeatureSet(Path("features", name)).arrays("train")
    return list(y.ravel().tolist())


def heads() -> list[str]:
    return sorted(p.name for p in Path("heads").glob("*.safetensors"))


def error_of(ended: Result) -> dict[str, Any]:
    """The error that a command with --json has ended with."""
    return dict(json.loads(ended.stderr.splitlines()[-1])["error"])


def refusal(ended: Result) -> str:
    """Its code and what it names: a parameter, a file, a name."""
    error = error_of(ended)
    found = (error["fields"].get(each) for each in ("parameter", "path", "name"))
    return " ".join((error["code"], *filter(None, found)))


def snapshot() -> dict[str, bytes]:
    """What lies in the working folder, but for the names of records that cannot be used, which '…' stands for."""
    found = (path for path in sorted(Path().rglob("*")) if path.is_file() and not path.name.endswith(".refused.txt"))
    return {str(path): path.read_bytes() for path in found}


def each_is_refused(dpfc: Dpfc, lines: Mapping[str, str], *command: str) -> None:
    """Each line ends with an error that has its code and names its thing, in two lines of text, and changes nothing.
    lines: with the code, and a parameter, or else a file or a name. command: what each line begins with.
    """
    before = snapshot()
    for line, expected in lines.items():
        ended, told = (dpfc(*command, *line.split(), *more) for more in ((), ("--json",)))
        assert ended.exit_code == told.exit_code in (2, 5, 6, 7), (line, ended.output)
        assert refusal(told).startswith(expected), (line, told.stderr)
        assert len(ended.stderr.strip().splitlines()) >= 2, line
        assert "Traceback" not in ended.output, line
        assert snapshot() == before, line


def one_line(text: str) -> str:
    """What was said, however it was broken into lines."""
    return " ".join(text.split())
