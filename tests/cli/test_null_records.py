"""Broken pictures: a file names all of them, whoever extracts learns how many became null records, and no set is
made of null records alone.
"""

import os
import signal
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from dpfc_cli.annotations.broken import Broken, naming
from tests import instead
from tests.cli.conftest import SCATTER, Dpfc, error_of, labels_of, one_line, refusal
from tests.support import shards_of, stored

LINE = ("extract", "imagefolder:pictures", *SCATTER, "--classes", "c0,c1,c2", "--out", "set")
NULL = (*LINE, "--on-error", "null")
PARTIAL = Path("features/set.partial")
LIST = Path("features/set.refused.txt")


def damage(numbers: Iterable[int], split: str = "train") -> list[Path]:
    """Cut the pictures of these numbers off."""
    paths = [Path("pictures", split, f"c{i % 3}", f"{i:03d}.png") for i in numbers]
    for path in paths:
        path.write_bytes(path.read_bytes()[:60])
    return paths


def too_many(refused: Result) -> bool:
    """Whether more pictures than are allowed would have become null records, and whoever reads that is warned."""
    return refusal(refused) == f"bad-record most_null {LIST}" and "publish" in refused.stderr


def nothing_to_train_on(dpfc: Dpfc) -> bool:
    return dpfc("train", "--epsilon", "1", "--features", "set").exit_code == 2 and not Path("heads").exists()


class Counting:
    """A backbone whose features are mean colours. It counts its batches. last: Ctrl-C is pressed behind this one."""

    name, dim, batch, batches = "counting", 3, 4, 0
    last: int | None = None

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "weights": None}

    def submit(self, pixels: np.ndarray) -> np.ndarray:
        if self.batches == self.last:
            raise KeyboardInterrupt
        self.batches += 1
        means: np.ndarray = pixels.mean(axis=(1, 2), dtype=np.float32)
        return means

    __call__ = submit


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    backbone = Counting()
    instead.backbone(monkeypatch, lambda *_, **__: backbone)
    return backbone


def test_whoever_extracts_learns_how_many_records_are_null_and_nobody_else(dpfc: Dpfc, pictures: Path) -> None:
    (path,) = damage([4])
    made = dpfc(*NULL, ends=0)
    said = one_line(made.stderr)
    assert "1 of 30" in said
    assert "publish" in said
    assert path.name not in said
    assert "null" not in made.stdout.lower()
    assert "‹" not in made.stderr
    assert labels_of("set").count(-1) == 1
    # It is in no file: neither what a set states nor which files there are depends on it.
    assert not list(Path("features").rglob("*.txt"))


def test_beyond_the_share_no_set_is_made_and_a_larger_share_goes_on(dpfc: Dpfc, pictures: Path) -> None:
    damaged = damage([26, 29])
    with shards_of(6):
        assert too_many(dpfc(*NULL, "--json", ends=2))
    assert all(f"{path}:" in LIST.read_text() for path in damaged)
    assert nothing_to_train_on(dpfc)
    kept = {path.name: path.stat().st_mtime_ns for path in PARTIAL.glob("*.h5")}
    assert kept
    # The share is no part of what a set is.
    with shards_of(6):
        made = dpfc(*NULL, "--most-null", "0.07", ends=0)
    assert {name: Path("features/set", name).stat().st_mtime_ns for name in kept} == kept
    assert "2 of 30" in one_line(made.stderr)
    with shards_of(6):
        dpfc(*LINE[:-1], "anew", "--on-error", "null", "--most-null", "1", ends=0)
    one, other = (stored(Path("features", name)) for name in ("set", "anew"))
    assert one == other


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_of_null_records_alone_is_never_made(dpfc: Dpfc, pictures: Path, split: str) -> None:
    """A training on it would be charged and teach nothing."""
    damage(range({"train": 30, "test": 6}[split]), split)
    refused = dpfc(*NULL, "--most-null", "1", "--json", ends=2)
    assert too_many(refused)
    assert "--most-null" not in error_of(refused)["remedy"]
    assert nothing_to_train_on(dpfc)


def test_null_records_of_other_processes_and_of_earlier_runs_count(
    dpfc: Dpfc, pictures: Path, counting: Counting
) -> None:
    """Each of the two runs has one, which is allowed. Together they are too many."""
    damaged = damage([0, 29])
    with shards_of(15):
        counting.last = 6
        dpfc(*NULL, ends=130)
        assert len(list(PARTIAL.glob("*.h5"))) == 1
        counting.last = None
        assert too_many(dpfc(*NULL, "--json", ends=2))
        # Which they are is known, but of the earlier run not what is wrong with them.
        first, second = LIST.read_text().splitlines()
        assert (first.startswith(f"{damaged[0]}:"), second.startswith(f"{damaged[1]}:")) == (True, True)
        assert ("truncated" in first, "truncated" in second) == (False, True)
        assert nothing_to_train_on(dpfc)
        # All shards are there, so nothing is computed now.
        assert dpfc(*NULL).exit_code == 2
        assert nothing_to_train_on(dpfc)
        last = dpfc(*NULL, "--most-null", "0.1", ends=0)
    assert "2 of 30" in one_line(last.stderr)


def test_who_has_made_shards_of_a_set_that_another_process_refused_leaves_the_list(tmp_path: Path) -> None:
    listed = tmp_path / "set.refused.txt"
    listed.touch()
    with naming(tmp_path / "set", tolerant=False):
        pass
    assert listed.exists()


def test_all_broken_pictures_are_named_without_computing_what_would_be_in_vain(
    dpfc: Dpfc, pictures: Path, counting: Counting
) -> None:
    damaged = [*damage([1], "test"), *damage([12, 15, 29])]
    with shards_of(3):
        assert refusal(dpfc(*LINE, "--json", ends=2)) == f"bad-record on_error {LIST}"
    assert [line.split(":")[0] for line in LIST.read_text().splitlines()] == [*map(str, damaged)]
    # Two of its three pictures are whole, and they stand before the first broken one.
    order = sorted(Path("pictures/train").rglob("*.png"))
    before = order.index(damaged[1]) // 3
    assert (counting.batches, len(list(PARTIAL.glob("*.h5")))) == (before, before)
    assert not list(PARTIAL.glob("*.tmp"))
    listed = LIST.read_text()
    # What was finished is gone on with, and everything else is made once.
    with shards_of(3):
        dpfc(*NULL, "--most-null", "0.2", ends=0)
    assert counting.batches == 10 + 2
    # These pictures are broken still.
    assert LIST.read_text() == listed


def test_what_keeps_null_records_is_named_at_once_and_works(dpfc: Dpfc, pictures: Path) -> None:
    """Without a size, a picture of another size than the first would become a null record."""
    line = ("extract", "imagefolder:pictures/train", "--classes", "c0,c1,c2", "--out")
    one = Path("pictures/train/c0/000.png").read_bytes()
    for path in Path("pictures/train").rglob("*.png"):
        path.write_bytes(one)
    damage([29])
    with shards_of(6):
        refused = dpfc(*line, "set", ends=2)
    assert PARTIAL.exists()
    assert all(flag in refused.stderr for flag in ("--on-error", "--image-size", "--out"))
    dpfc(*line, "another", "--on-error", "null", "--image-size", "16", ends=0)


def test_the_names_are_for_the_owner_alone_and_command_no_terminal(dpfc: Dpfc, pictures: Path) -> None:
    damaged = damage(range(2))
    for name in ("\x1b[31mred", "two\nlines"):
        Path("pictures/train/c0", f"{name}.png").write_bytes(b"no picture")
    # The reason repeats what the file says.
    Path("pictures/train/c0/a.ppm").write_bytes(b"P6 \x1b[31m".ljust(40, b"x"))
    refused = dpfc(*LINE)
    listed = LIST.read_text()
    assert "\x1b" not in refused.stderr + listed
    assert "\\x1b[31mxx" in listed
    assert len(listed.splitlines()) == 5
    assert stat.S_IMODE(LIST.stat().st_mode) == 0o600
    assert not any(line.split(":")[0] in refused.output for line in listed.splitlines())
    # What is no longer true is removed.
    for path in [*damaged, *Path("pictures/train/c0").glob("*[!0-9].*")]:
        path.unlink()
    dpfc(*LINE, ends=0)
    assert not LIST.exists()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_tells_of_a_record_goes_to_that_file_alone(dpfc: Dpfc, pictures: Path, more: list[str]) -> None:
    """A picture without a person, a label, a row of a table without a header."""
    table = Path("kopflos.csv")
    table.write_text("c0/000.png,Kleinöttinger\nc1/001.png,Altbrüllmann\n")
    Path("gone.csv").write_text("file_name,label\n../gone.png,c0\ntrain/c0/Xaver.png,c0\n")
    Path("metadata.csv").write_text("file_name,label\n" + "pictures/train/c0/000.png,Quittenbaum\n" * 2)
    for line, named in (
        ([*LINE, "--group-by", "name:(nobody)"], "000.png"),
        ([*LINE, "--table", str(table), "--file-column", "Datei"], "Kleinöttinger"),
        ([*LINE, "--table", "gone.csv"], "Xaver.png"),
        (["extract", "imagefolder:.", *LINE[2:], "--table", "metadata.csv"], "c0/000.png"),
        ([*LINE[:-3], "c0,c1", "--out", "set"], "c2"),
    ):
        LIST.unlink(missing_ok=True)
        refused = dpfc(*line, *more)
        assert refused.exit_code in (2, 5), refused.output
        assert named not in refused.output
        if LIST.exists():
            assert named in LIST.read_text()
            assert (stat.S_IMODE(LIST.stat().st_mode), str(LIST) in one_line(refused.output)) == (0o600, True)


@pytest.mark.usefixtures("ctrl_c", "counting")
def test_ctrl_c_while_looking_for_more_says_what_is_known(
    dpfc: Dpfc, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage([9])
    real = Broken.add

    def stopped(self: Broken, *found: Any) -> None:
        if self.too_many:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, *found)

    monkeypatch.setattr(Broken, "add", stopped)
    ended = dpfc(*LINE, ends=130)
    said = one_line(ended.stderr)
    assert "publish" in said
