"""Which files a pattern, a folder or a table means, and which split each belongs to."""

from pathlib import Path

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.sources.split_files import expanded, files_by_split, inside, is_clutter, splits_by_role
from tests.support import refuses


def test_braces_expand_as_a_shell_expands_them() -> None:
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expanded("{x,y}/{1..2}") == ["x/1", "x/2", "y/1", "y/2"]
    assert expanded("plain") == ["plain"]
    for bad in ("{5..1}", "{0..999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UserError):
            expanded(bad)


def test_splits_go_by_file_or_folder_name(tmp_path: Path) -> None:
    names = ("train-0.tar", "training/1.tar", "training-2.tar", "deep/test/0.tar", "testing-3.tar", "trainer.tar")
    for name in (*names, "validation.0.tar", ".hidden.tar", "x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = {split: [p.name for p in paths] for split, paths in files_by_split(str(tmp_path), ".tar").items()}
    assert found == {
        "train": ["train-0.tar", "trainer.tar", "1.tar", "training-2.tar"],
        "test": ["0.tar"],
        "testing": ["testing-3.tar"],
        "validation": ["validation.0.tar"],
    }
    for missing in ("nowhere", "{0..1}.tar", "*.parquet"):
        with pytest.raises(UserError) as caught:
            files_by_split(str(tmp_path / missing), ".tar")
        assert (caught.value.code, "path" in caught.value.fields) == ("missing", True)


@pytest.mark.parametrize("twice", ["{train-*,*-0}.tar", "{train-0,train-0}.tar", "symbolic", "hard"])
def test_a_file_that_would_be_read_twice_is_refused(tmp_path: Path, twice: str) -> None:
    """Each of its records would count twice, and ε would be that of half a record."""
    file = tmp_path / "train-0.tar"
    file.write_bytes(b"")
    if twice == "symbolic":
        (tmp_path / "other.tar").symlink_to(file)
    if twice == "hard":
        (tmp_path / "other.tar").hardlink_to(file)
    with refuses("conflict"):
        files_by_split(str(tmp_path / twice if "{" in twice else tmp_path), ".tar")
    assert files_by_split(str(file), ".tar") == {"train": [file]}


def test_of_the_splits_to_evaluate_on_the_first_usual_name_is_taken() -> None:
    assert splits_by_role(["validation", "train", "test"]) == {"train": "train", "test": "test"}
    assert splits_by_role(["val", "train"]) == {"train": "train", "test": "val"}
    assert splits_by_role(["train"]) == {"train": "train"}
    assert splits_by_role(["test"]) == {"test": "test"}


def test_a_table_names_files_of_its_own_folder_alone(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name, found in {"1.png": "1.png", "a/./b/../1.png": "a/1.png", "a b/ü.png": "a b/ü.png"}.items():
        assert inside(top, name) == top / found
    for name in ("../1.png", "a/../../top2/1.png", "/etc/passwd", ".", "", "nul\0"):
        assert inside(top, name) is None
    assert inside(top, str(top / "x.png")) == top / "x.png"


def test_hidden_files_and_what_systems_leave_behind_are_known() -> None:
    for name in ("__MACOSX", "._1.png", ".DS_Store", "Thumbs.db", "thumbs.DB", "desktop.ini", ".hidden"):
        assert is_clutter(name)
        assert not is_clutter(f"a{name}")
    # Parts of the names of members in archives.
    assert not any(map(is_clutter, (".", "..")))
