"""A feature set is found by path, by name in the features folder, or as the newest one."""

import os
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.features.lookup import finished, newest, open_features, placed, set_of_training
from dpfc_cli.features.manifest import MANIFEST
from tests.closed import closed
from tests.support import feature_set, refuses


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFC_FEATURES", "sets")
    np.savez("source.npz", train_x=np.ones((4, 2), np.float32), train_y=[0, 1, 0, 1])
    return tmp_path


def make(folder: str, made_at: int) -> Path:
    """A feature set. made_at: the date of its manifest, in seconds."""
    feature_set("source.npz", f"./{folder}", classes=("a", "b"))
    os.utime(Path(folder, MANIFEST), (made_at, made_at))
    return Path(folder)


def test_by_path_by_name_or_the_newest() -> None:
    old, new, elsewhere = make("sets/old", 1), make("sets/new", 2), make("elsewhere/old", 3)
    assert open_features("old").folder == open_features(Path("old")).folder == old
    assert open_features("elsewhere/old").folder == elsewhere
    assert open_features(elsewhere.resolve()).folder == elsewhere.resolve()
    assert open_features().folder == newest(Path("sets")).folder == new


def test_a_path_comes_before_a_name() -> None:
    make("sets/mine", 1)
    here = make("mine", 2)
    assert open_features("mine").folder == here
    Path("sets/other").mkdir()
    Path("other").mkdir()
    (Path("sets") / "other" / MANIFEST).symlink_to(Path("sets/mine").resolve() / MANIFEST)
    assert open_features("./mine").folder == here
    # A folder that holds no set is none.
    assert open_features("other").folder == Path("sets/other")


def test_a_set_being_made_is_not_the_newest_and_neither_is_one_that_cannot_be_looked_at() -> None:
    made = make("sets/made", 1)
    Path("sets/half.partial").mkdir()
    Path("sets/half.partial", MANIFEST).write_text("{}")
    Path("sets/looped").mkdir()
    Path("sets/looped", MANIFEST).symlink_to(MANIFEST)
    assert open_features().folder == made
    Path("others/half.partial").mkdir(parents=True)
    with refuses("missing", match="half.partial", parameter="features"):
        newest(Path("others"))
    with refuses("unreadable"):
        open_features("looped")


def test_where_there_is_none_it_says_so() -> None:
    Path("sets/half.partial").mkdir(parents=True)
    for given in (None, "nowhere", "some/where", Path("nowhere"), "half"):
        with refuses("missing") as caught:
            open_features(given)
        assert caught.value.fields["path"] == ("sets/half" if given == "half" else str(given or "sets"))


def test_a_new_set_lies_in_the_features_folder_unless_a_path_is_given() -> None:
    assert placed("mine") == Path("sets/mine")
    for path in ("a/mine", "/mine"):
        assert placed(path) == Path(path)


def test_the_set_of_a_training_is_known_by_the_name_of_its_real_folder() -> None:
    assert set_of_training("real") is None
    elsewhere = make("elsewhere/real", 1)
    Path("sets").mkdir()
    Path("sets/link").symlink_to(elsewhere.resolve())
    found = set_of_training("real")
    assert found is not None
    assert (found.folder, found.name) == (Path("sets/link"), "real")
    assert set_of_training("link") is None
    newer = make("sets/real", 2)
    found = set_of_training("real")
    assert found is not None
    assert found.folder == newer


def test_a_link_into_a_closed_folder_hides_no_other_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, away = tmp_path / "features", tmp_path / "away"
    monkeypatch.setenv("DPFC_FEATURES", str(folder))
    for i in range(4):
        (folder / f"set {i}").mkdir(parents=True)
        (folder / f"set {i}" / MANIFEST).touch()
        (away / f"{i}").mkdir(parents=True)
        (folder / f"link {i}").symlink_to(away / f"{i}")
    with closed(away):
        assert finished(folder) == [folder / f"set {i}" for i in range(4)]
    with closed(folder, mode=0o300):
        assert finished(folder) == []
