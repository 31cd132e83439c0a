"""Which files a pattern, a folder or a table means, and which split each belongs to."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from dpfc_cli.annotations.split_files import expanded, files_by_split, files_in, inside
from dpfc_cli.errors import UserError
from tests.support import refuses


def test_braces_expand_as_a_shell_expands_them() -> None:
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expanded("{x,y}/{1..2}") == ["x/1", "x/2", "y/1", "y/2"]
    assert expanded("plain") == ["plain"]
    for bad in ("{5..1}", "{0..999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UserError):
            expanded(bad)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("train-0 training/1 training-2 TRAIN3", {"train": 4}),
        ("train-0 deep/test/0 testing-3 validation.0", {"train": 1, "test": 1, "testing": 1, "validation": 1}),
        ("train-0 Dev-0 eval/0 holdout_0 external/a/0", {"train": 1, "dev": 1, "eval": 1, "holdout": 1, "external": 1}),
        ("scans_train scans-test a/test_set/b/0", {"train": 1, "test": 2}),
        # Without files that say so, all that say nothing else are for training.
        ("0 trainer a/latest .hidden", {"train": 3}),
        ("0 test-0", {"train": 1, "test": 1}),
        ("blood-test-0 blood-test-1", {"train": 2}),
        ("train-0 trainer", None),
        ("train/0 unseen/0", None),
    ],
)
def test_splits_go_by_file_or_folder_name(tmp_path: Path, names: str, expected: dict[str, int] | None) -> None:
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.tar").write_bytes(b"")
    with nullcontext() if expected else refuses("conflict"):
        found = files_by_split(str(tmp_path), ".tar")
        assert {split: len(paths) for split, paths in found.items()} == expected
    assert len(files_in(str(tmp_path), ".tar")) == len(names.replace(".hidden", "").split())


def test_what_the_folder_of_all_is_called_counts_if_it_can_mean_nothing_else(tmp_path: Path) -> None:
    for folder, split in (("test", "test"), ("dev", "train"), ("test data", "train")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.tar").touch()
        for pattern in (folder, f"{folder}/*.tar", f"{folder}/0.tar"):
            assert list(files_by_split(str(tmp_path / pattern), ".tar")) == [split]


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"")
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


def test_a_table_names_files_of_its_own_folder_alone(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name, found in {"1.png": "1.png", "a/./b/../1.png": "a/1.png", "a b/ü.png": "a b/ü.png"}.items():
        assert inside(top, name) == top / found
    for name in ("../1.png", "a/../../top2/1.png", "/etc/passwd", ".", "", "nul\0"):
        assert inside(top, name) is None
    assert inside(top, str(top / "x.png")) == top / "x.png"
