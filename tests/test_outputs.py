"""Files that a user names: whole or not at all, never over another file, and by whoever writes such a kind."""

import os
from pathlib import Path

import pytest

from dpfc_cli import outputs
from dpfc_cli.show.document import page
from tests import instead
from tests.support import refuses


def test_a_file_is_made_once_and_another_one_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    assert outputs.write(path, [b"a", b"b"])
    assert not outputs.write(path, b"ab")
    with refuses("exists", parameter="out"):
        outputs.write(path, b"c")
    assert path.read_bytes() == b"ab"
    assert [each.name for each in path.parent.iterdir()] == ["a.npz"]


def test_a_name_must_be_seen_and_end_as_its_format_does() -> None:
    outputs.check(Path("a.NPZ"), (".npz",))
    for name in ("a.pt", "a\x1b.npz", "-.npz", "none/a.npz"):
        with refuses("missing" if "/" in name else "bad-value", parameter="out"):
            outputs.check(Path(name), (".npz", ".html"))


def test_a_package_adds_an_ending_and_what_nothing_writes_is_refused_before_the_work(
    tmp_path: Path, slides: None
) -> None:
    assert outputs.writer("document", tmp_path / "a.PPTX")(page("ward")) == b"WARD"
    with refuses("unsupported", name="document.odp"):
        outputs.writer("document", tmp_path / "a.odp")
    with refuses("bad-value", parameter="out"):
        outputs.writer("poster", tmp_path / "a.pdf")
    for name, code in (("a.pptx", "bad-value"), ("svg", "bad-value"), ("no/a.txt", "missing")):
        with refuses(code, parameter="plot"):
            outputs.writer("picture", tmp_path / name, "plot")


def test_on_a_disk_that_fails_a_file_is_as_it_was_and_a_new_one_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "figure.svg"
    outputs.replace(path, b"old")
    instead.synced(monkeypatch, lambda _: os.write(-1, b""))
    with refuses("unwritable", parameter="plot"):
        outputs.replace(path, b"new", named="plot")
    with refuses("unwritable", parameter="out"):
        outputs.write(tmp_path / "a.npz", b"whole")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("figure.svg", b"old")]
