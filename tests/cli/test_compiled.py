"""What JAX compiles is kept for the next run, in a folder that only this user can write to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfc_cli.cli import app

NAMES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder. What `keep` says to JAX ends with the test."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept() -> str | None:
    app.keep_compiled()
    return os.environ.pop(NAMES[0], None)


def test_it_lies_in_a_folder_for_this_user_and_this_processor(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o002)
    try:
        first = kept()
    finally:
        os.umask(before)
    assert first is not None
    assert Path(first).parent == cache / "compiled"
    assert {folder.stat().st_mode & 0o777 for folder in (Path(first), Path(first).parent)} == {0o700}
    assert kept() == first
    monkeypatch.setattr(app, "_processor", lambda: b"another one")
    assert kept() not in (first, None)


def test_a_folder_that_the_user_names_is_left_alone(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    for named in ("/mine", ""):
        monkeypatch.setenv(NAMES[0], named)
        app.keep_compiled()
        assert os.environ[NAMES[0]] == named
    assert not cache.exists()


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_not_used(outer: bool, mode: int) -> None:
    """They could put a program there that this user would run."""
    first = kept()
    assert first is not None
    (Path(first).parent if outer else Path(first)).chmod(mode)
    assert kept() is None


def test_a_folder_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert kept() is None


def test_a_folder_that_others_can_replace_is_not_used(cache: Path) -> None:
    """They could rename it after the check, and put their own in its place. A sticky folder does not let them."""
    first = kept()
    assert first is not None
    for mode, used in ((0o770, False), (0o707, False), (0o1777, True), (0o755, True)):
        cache.chmod(mode)
        assert (kept() == first) is used
        cache.chmod(0o755)
    cache.parent.chmod(0o777)
    assert kept() is None


def test_a_link_is_followed_before_the_check(cache: Path) -> None:
    """The owner of the link may change it later."""
    (cache.parent / "real").mkdir()
    cache.symlink_to("real")
    assert str(kept()).startswith(str(cache.parent / "real"))


def test_what_a_kill_left_is_removed(cache: Path) -> None:
    """JAX cannot put anything beside a program whose time is missing."""
    folder = Path(str(kept()))
    for name in ("jit_a-1-cache", "jit_b-2-atime", "jit_c-3-cache", "jit_c-3-atime", ".lockfile"):
        (folder / name).write_text("")
    assert kept() == str(folder)
    assert {file.name for file in folder.iterdir()} == {"jit_c-3-cache", "jit_c-3-atime", ".lockfile"}


def test_where_nothing_can_be_written_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "file"))
    assert kept() is None


PROGRAM = """
from dpfc_cli.cli import app
app.keep_compiled()
import jax, os, pathlib
seen = []
jax.monitoring.register_event_listener(lambda name, **_: seen.append(name.rsplit("/", 1)[-1]))
for damage in (False, False, True):
    if damage:
        for file in pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache"):
            file.unlink()
            file.mkdir()
    jax.clear_caches()
    seen.clear()
    jax.jit(jax.numpy.cumsum)(jax.numpy.ones(9))
    print(seen.count("cache_hits"), seen.count("cache_misses"))
"""


def test_what_was_compiled_is_not_compiled_again_and_a_broken_folder_does_no_harm() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    first, second, third = (tuple(map(int, line.split())) for line in ended.stdout.splitlines())
    assert first[0] == third[0] == 0 < first[1]
    assert second == (first[1], 0)
    assert ended.stderr == ""
