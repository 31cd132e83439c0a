"""What was made by other code is not taken for what this code makes."""

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from dpfc_cli.version import code_digest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here" / "package_of_test" / "room").mkdir(parents=True)
    folder = tmp_path / "here" / "package_of_test"
    (folder / "__init__.py").touch()
    (folder / "room" / "a.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def digest(*packages: str) -> str:
    sys.path_importer_cache.clear()
    code_digest.cache_clear()
    return code_digest(*(packages or ("package_of_test",)))


def test_the_same_code_has_the_same_digest_wherever_it_lies(package: Path, tmp_path: Path) -> None:
    before = digest()
    (package / "room" / "__pycache__").mkdir()
    (package / "room" / "__pycache__" / "a.pyc").write_bytes(b"1")
    after = digest()
    package.parent.rename(tmp_path / "moved")
    sys.path[0] = str(tmp_path / "moved")
    assert before == after == digest()


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
    digests = [digest()]
    for change in changes:
        change()
        digests.append(digest())
    assert all(before != after for before, after in pairwise(digests))


def test_each_of_several_packages_counts_and_one_that_is_not_there_is_no_code(package: Path) -> None:
    assert len({digest(), digest("package_of_test", "json"), digest("json")}) == 3
    with pytest.raises(ModuleNotFoundError):
        digest("package_of_test", "package_of_nobody")
