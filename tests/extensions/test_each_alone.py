"""The core names no extension, no extension another one, and each of them can be deleted."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = (ROOT / each / "extensions" for each in ("dpfc_cli", "tests"))
EXTENSIONS = sorted(each.parent.name for each in PACKAGE.glob("*/__init__.py"))
NOT_THE_CORES = ("tests/torture", "tests/bench", "tests/extensions")
"""Folders of tests that may name extensions."""


def names_in(path: Path) -> Iterator[str]:
    """What a file may import: the names in its imports, and all its texts."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named(path: Path) -> set[str]:
    """The extensions that a file names, as modules of the package or of the tests."""
    said = " ".join(names_in(path)).replace("/", ".")
    return {each for each in EXTENSIONS if f"dpfc_cli.extensions.{each}" in said or f"tests.extensions.{each}" in said}


def test_the_core_and_its_tests_name_no_extension() -> None:
    files = [path for folder in ("dpfc_cli", "tests") for path in (ROOT / folder).rglob("*.py")]
    of_the_core = [each for each in files if not {PACKAGE, *(ROOT / skip for skip in NOT_THE_CORES)} & {*each.parents}]
    assert len(of_the_core) > 200
    assert {str(each): named(each) for each in of_the_core if named(each)} == {}


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_an_extension_and_its_tests_name_no_other_one(extension: str) -> None:
    files = itertools.chain((PACKAGE / extension).rglob("*.py"), (TESTS / extension).rglob("*.py"))
    assert {str(each): named(each) for each in files if named(each) - {extension}} == {}
