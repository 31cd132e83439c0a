"""What was made by other code is not taken for what this code makes."""

import runpy
import shutil
from pathlib import Path

import pytest

from dpfc_cli import version


def digest(folder: Path) -> str:
    """Of a package whose module `version` is ours."""
    shutil.copy(version.__file__, folder)
    return str(runpy.run_path(str(folder / "version.py"))["code_digest"]())


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "p" / "room").mkdir(parents=True)
    (tmp_path / "p" / "room" / "a.py").write_text("x = 1\n")
    return tmp_path / "p"


def test_the_same_code_has_the_same_digest_wherever_it_lies(package: Path, tmp_path: Path) -> None:
    before = digest(package)
    (package / "room" / "__pycache__").mkdir()
    (package / "room" / "__pycache__" / "a.pyc").write_bytes(b"1")
    assert digest(package) == before == digest(package.rename(tmp_path / "moved"))


@pytest.mark.parametrize("change", ["edited", "renamed", "moved", "more", "less"])
def test_other_code_of_the_same_version_has_another_digest(package: Path, change: str) -> None:
    before, source = digest(package), package / "room" / "a.py"
    if change == "edited":
        source.write_text("x = 2\n")
    elif change == "renamed":
        source.rename(source.with_name("b.py"))
    elif change == "moved":
        source.rename(package / "a.py")
    elif change == "more":
        source.with_name("b.py").touch()
    else:
        source.unlink()
    assert digest(package) != before
