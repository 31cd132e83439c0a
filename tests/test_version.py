"""What was made by other code is not taken for what this code makes."""

import runpy
import shutil
from collections.abc import Callable
from itertools import pairwise
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


def test_other_code_of_the_same_version_has_another_digest(package: Path) -> None:
    source = package / "room" / "a.py"
    changes: list[Callable[[], object]] = [
        lambda: source.write_text("x = 2\n"),
        lambda: source.rename(source.with_name("b.py")),
        lambda: source.with_name("b.py").rename(package / "a.py"),
        source.touch,
        source.unlink,
        (package / "a.py").unlink,
    ]
    digests = [digest(package)]
    for change in changes:
        change()
        digests.append(digest(package))
    assert all(before != after for before, after in pairwise(digests))
