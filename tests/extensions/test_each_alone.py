"""The core names no extension, no extension another one, and each of them can be deleted."""

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from dpfc_cli import points
from dpfc_cli.cli.app import app, register

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


def without(folder: Path, *deleted: str) -> dict[str, str]:
    """Copy the package into a folder, without some extensions. Returns the environment of a process that finds it there
    and what is installed of it.
    """
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "dpfc_cli", folder / "dpfc_cli", ignore=skipped)
    (folder / "sample_data").symlink_to(ROOT / "sample_data")
    installed = metadata.distribution("dpfc")
    information = folder / f"dpfc-{installed.version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(installed.read_text("METADATA") or "")
    lines = (installed.read_text("entry_points.txt") or "").splitlines()
    for each in deleted:
        shutil.rmtree(folder / "dpfc_cli" / "extensions" / each)
        lines = [line for line in lines if not re.search(rf"dpfc_cli\.extensions\.{each}\b", line)]
    (information / "entry_points.txt").write_text("\n".join(lines))
    return os.environ | {"PYTHONPATH": str(folder)}


IMPORTED = """
import pkgutil, sys
from importlib import import_module
import dpfc_cli
from dpfc_cli.errors import UserError
assert dpfc_cli.__path__[0].startswith(sys.argv[1])
for each in pkgutil.walk_packages(dpfc_cli.__path__, "dpfc_cli."):
    if ".beside." not in each.name and not each.name.endswith("__main__"):
        try:
            import_module(each.name)
        except UserError:
            pass  # It lacks a package that it needs, and says so.
        except ModuleNotFoundError as error:
            assert not error.name.startswith("dpfc_cli"), error
from dpfc_cli.cli.app import app, register
register()
print(*(each.name for each in app.registered_commands))
[getattr(dpfc_cli, name) for name in dir(dpfc_cli)]
"""
"""It imports every module but those that are copied beside exports, and prints the commands."""


@pytest.mark.long
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_without_an_extension_all_else_can_be_imported_and_only_its_commands_are_gone(
    extension: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(tmp_path)],
        cwd=tmp_path,
        env=without(tmp_path, extension),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    register()
    its = {name for name, each in points.added("dpfc.commands").items() if each.value.split(".")[2] == extension}
    assert {*ended.stdout.split()} == {str(each.name) for each in app.registered_commands} - its


END = "\n--- the end\n"
TYPED = f"""
import sys
from dpfc_cli.cli.app import _run
for line in sys.argv[1:]:
    sys.argv = ["dpfc", *line.split()]
    assert _run(sys.argv[1:]) == 0, line
    print({END!r}, end="", flush=True)
"""
"""It runs command lines, one after the other, and marks where what each of them says ends."""


def test_the_core_alone_makes_a_head_of_pictures(tmp_path: Path) -> None:
    lines = ("extract digits --limit 100", "train --epsilon 1 --method dp-ls", "evaluate", "budget", "--help")
    command = [sys.executable, "-c", TYPED, *lines]
    ended = subprocess.run(
        command, cwd=tmp_path, env=without(tmp_path, *EXTENSIONS), check=True, capture_output=True, text=True
    )
    *_, evaluated, budget, shown = ended.stdout.split(END)[:-1]
    assert "top-1" in evaluated
    assert "dp-ls" in budget
    assert "train" in shown
    assert not {f"  {name} " for name in points.added("dpfc.commands") if f"  {name} " in shown}


@pytest.mark.long
@pytest.mark.parametrize("deleted", [EXTENSIONS, *([each] for each in EXTENSIONS)], ids=",".join)
def test_the_tests_of_the_core_pass_without_extensions(deleted: list[str], tmp_path: Path) -> None:
    environment = without(tmp_path, *deleted)
    others = (*NOT_THE_CORES, "tests/test_docs.py")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for each in others:
        found = tmp_path / each
        shutil.rmtree(found) if found.is_dir() else found.unlink()
    for each in ("pyproject.toml", "bench", "docs", "examples", "scripts", "README.md", "Makefile"):
        (tmp_path / each).symlink_to(ROOT / each)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "tests"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-5000:]
