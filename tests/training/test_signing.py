"""Who asks for a training, where nobody says so."""

import os
import pwd
from types import SimpleNamespace

import pytest

from dpfc_cli.training.signing import account_name


def test_it_is_the_name_of_the_account() -> None:
    assert account_name() == pwd.getpwuid(os.getuid()).pw_name


def test_an_account_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    assert account_name() == "account 2147483643"


@pytest.mark.parametrize("name", ["", "x" * 101, "\ud800"])
def test_so_is_one_whose_name_no_ledger_would_keep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 7)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name=name))
    assert account_name() == "account 7"
