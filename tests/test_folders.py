"""The folders that dpfc uses: those that the environment names, or else the usual ones."""

from pathlib import Path

import pytest

from dpfc_cli import folders

USUAL = {"features": "features", "heads": "heads", "cache": "/home/me/.cache/dpfc"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFC_FEATURES", "DPFC_HEADS", "DPFC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def test_each_folder_is_the_usual_one_or_the_one_that_its_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, usual in USUAL.items():
        folder, variable = getattr(folders, f"{name}_folder"), f"DPFC_{name.upper()}"
        for value, expected in (("", usual), ("/own", "/own"), ("here", "here"), ("~/mine", "/home/me/mine")):
            monkeypatch.setenv(variable, value)
            assert folder() == Path(expected)
        monkeypatch.delenv(variable)
        assert folder() == Path(usual)
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert folders.cache_folder() == Path("/shared/dpfc"), "where other caches lie"
