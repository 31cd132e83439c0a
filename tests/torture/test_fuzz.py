"""Whoever gives dpfc a damaged file or a wrong command line gets an error of the user or a value.

Everything else is a find: another exception, a crash, more than 2 GB, more than 10 seconds. Files that broke something
once lie in `corpus`, by target, and are tried in each run.
"""

import contextlib
import functools
import io
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from dpfc_cli import points
from dpfc_cli.cli import app
from dpfc_cli.errors import ENDINGS, UserError
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.heads.head import encoded
from tests.torture.conftest import some
from tests.torture.targets import ARRAYS, TARGETS, a_head

CORPUS = Path(__file__).with_name("corpus")
MEMORY, SECONDS = 2 * 2**30, 10
EDGES = [0, 1, 2, 7, 8, 127, 128, 255, 256, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
PIECES = [b"\0" * 8, b"\xff" * 8, b"[" * 3000, b'"', b"\x1b]0;x\x07", b"1e400", b"-", b"\xed\xa0\x80"]


class TooLongError(BaseException):
    """An input took too long. A BaseException, so that no reader catches it."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bound the memory that is taken, and the seconds of computing: the machine may do other things, too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, before[1][1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    except TooLongError as error:
        raise AssertionError(f"it takes more than {SECONDS} seconds") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before[0])
        resource.setrlimit(resource.RLIMIT_AS, before[1])


@functools.cache
def whole(name: str) -> Mapping[str, bytes]:
    """The files of a target, by their paths."""
    with tempfile.TemporaryDirectory() as folder:
        TARGETS[name].make(Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def tried(name: str, files: Mapping[str, bytes], folder: Path) -> None:
    """Let the reader of a target read files in a folder. After a crash they lie there."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    with limits():
        TARGETS[name].read(folder)


class Files(dict[str, bytes]):
    """Files by their paths. They are found in the folder of the test that failed."""

    def __repr__(self) -> str:
        return f"Files({', '.join(self)})"


@st.composite
def damaged(draw: st.DrawFn, files: Mapping[str, bytes]) -> Files:
    """The files, one of them with up to five changes."""
    name = draw(st.sampled_from(sorted(files)))
    data = bytearray(files[name])
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([1, 4, 16, 64, len(data)]))
        size = draw(st.sampled_from([1, 2, 4, 8]))
        number = draw(st.sampled_from([*EDGES, len(data), len(data) + 1])) % (1 << 8 * size)
        match draw(st.sampled_from(["flip", "byte", "number", "cut", "double", "insert"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "byte":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "number":
                data[at : at + size] = number.to_bytes(size, draw(st.sampled_from(["little", "big"])))
            case "cut":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length] * draw(st.sampled_from([1, 2, 50]))
            case "insert":
                data[at:at] = draw(st.sampled_from(PIECES))
    return Files(files, **{name: bytes(data)})


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_ends_in_an_error_of_the_user_or_in_a_value(name: str, tmp_path: Path) -> None:
    # Otherwise the changes would only be tried on what is refused at once.
    tried(name, whole(name), tmp_path / "whole")
    for case in sorted((CORPUS / name).glob("*")):
        files = {str(path.relative_to(case)): path.read_bytes() for path in case.rglob("*") if path.is_file()}
        assert files.keys() <= whole(name).keys()
        with contextlib.suppress(UserError):
            tried(name, {**whole(name), **files}, tmp_path / case.name)

    @some(5)
    @given(files=damaged(whole(name)))
    def check(files: Files) -> None:
        with contextlib.suppress(UserError):
            tried(name, files, tmp_path / "damaged")

    check()


def test_every_file_of_the_corpus_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()


WORDS = (
    *("budget", "train", "evaluate", "statement", "list", "import", "extract", "--help", "-h", "-q", "-v", "--json"),
    *("--sigma", "--epsilon", "--delta", "--steps", "--features", "--out", "--classes", "--method", "--seed"),
    *("--non-private", "--adjacency", "--dry-run", "--yes", "--memory", "--tune-on", "--public-features", "--column"),
    *("--labels-per-record", "--dtype", "--limit", "--hold-out", "--batch", "--budget-split"),
    *("float16", "float32", "a,b", "", " ", "ü", "\udcff", "--delta=0.5", "--", "-", "dp-ls", "dp-sgd", "dp-whitened"),
    *("set", "head.safetensors", "arrays", "imagefolder:arrays", "webdataset:arrays", "parquet:arrays", "train-0.tar"),
    *("1", "0", "-1", "1e-5", "nan", "inf", "-inf", "1e400", "1e-400", "999999999999999999999", "0.5,0.5", "8GB"),
    *("--split", "1/2", "zero-out", "replace-one", "--momentum", "--learning-rate", "--clip", "--sampling-rate"),
    *("--noise-multiplier", "heads/a.safetensors", "zero-shot", "--from", "text", "classifier", "--on", "--rows"),
)  # fmt: skip


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is asked. Trainings and extractions themselves take long, and have campaigns of their own."""

    def refused(*_: Any, **__: Any) -> Any:
        raise UserError("No network here.", "None.", code="unreadable")

    places = ("backbones.hub.download", "images.catalogue.fetch", "images.digits.open_digits")
    for place in (*places, "training.run.run", "extraction.extract.make_shards"):
        monkeypatch.setattr(f"dpfc_cli.{place}", refused)
    for name in (*app.COMMANDS, *points.added("dpfc.commands")):
        # An audit takes minutes by itself.
        if name != "audit":
            app.register(name)


@pytest.mark.usefixtures("no_work")
@pytest.mark.filterwarnings("ignore")
def test_any_words_end_in_a_result_or_an_error_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arrays").mkdir()
    for name, array in ARRAYS.items():
        np.save(Path("arrays", name), array)
    Path("head.safetensors").write_bytes(encoded(a_head()))
    import_features(Path("arrays"), Path("features/set"), classes=3)
    own = st.text(st.characters(exclude_characters="/\0", codec=None), max_size=8)

    @some(8)
    @given(words=st.lists(st.sampled_from(WORDS) | own, max_size=20))
    def check(words: list[str]) -> None:
        said = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace")
        code: object = 0
        with limits(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                typer.main.get_command(app.app).main(words, prog_name="dpfc", standalone_mode=True)
            except SystemExit as end:
                code = end.code
        assert code in {None, *ENDINGS} - {1, 130}

    check()
