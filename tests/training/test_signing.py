"""Who asks for a training, and why: what the ledger keeps of it."""

import os
import pwd
from types import SimpleNamespace

import pytest
from dpfc_cli.training.signing import account_name, noted

from dpfc_cli.errors import UserError


def test_where_nobody_says_so_it_is_the_name_of_the_account() -> None:
    assert account_name() == pwd.getpwuid(os.getuid()).pw_name


def test_an_account_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    assert account_name() == "account 2147483643"


@pytest.mark.parametrize("name", ["", "x" * 101, "\ud800"])
def test_so_is_one_whose_name_no_ledger_would_keep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 7)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name=name))
    assert account_name() == "account 7"


def test_a_word_for_the_ledger_is_refused_where_it_would_not_be_kept() -> None:
    assert noted("by", None) is None
    for name, most in (("by", 100), ("purpose", 500), ("note", 500)):
        assert noted(name, "x" * most) == "x" * most
        for wrong in ("", "x" * (most + 1)):
            with pytest.raises(UserError, match=f"{name} must be a text of 1 to {most} characters") as refused:
                noted(name, wrong)
            assert refused.value.fields["parameter"] == name
