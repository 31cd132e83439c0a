"""What an error tells to do can be done."""

import tomllib
from pathlib import Path

import pytest

import dpfc_cli as dpfc
from dpfc_cli import points
from dpfc_cli.cli.app import COMMANDS
from dpfc_cli.errors import CALLS, GUARDED, Faults, UserError, check_installed, parameter, printable, quoted, secret


def test_a_missing_package_is_installed_from_the_source_code() -> None:
    """dpfc is in no package index. Its extras are those of pyproject.toml."""
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in extras:
        with pytest.raises(UserError) as refused:
            check_installed("no_such_package", extra, "For this")
        assert f"pip install '.[{extra}]'" in refused.value.remedy
        assert (refused.value.code, refused.value.fields["extra"]) == ("unsupported", extra)


def test_programs_read_what_a_message_is_about() -> None:
    """The parameter and the file are the first that the message names, unless the error says others."""
    said = "Too many.", f"Lower {parameter('steps')}, or raise {parameter('epsilon')}."
    assert UserError(*said).fields == {"parameter": "steps"}
    assert UserError(*said, parameter="epsilon", path="x").fields == {"parameter": "epsilon", "path": "x"}
    for place in ("a", "it's\n'b'", "\x1b[2J"):
        error = UserError(f"{quoted(place)} differs from {quoted('c')}.", "Delete it.")
        assert (error.what, error.fields) == (f"'{place}' differs from 'c'.", {"path": place})
    assert UserError("Too many.", "Take fewer.").fields == {}


def test_python_callers_are_told_what_they_can_type() -> None:
    said = f"Train with 'dpfc train' and {parameter('epsilon')} 1, or make a set: 'dpfc extract digits', 'dpfc list'."
    typed = "Train with dpfc.train and epsilon=1, or make a set: dpfc.extract('digits'), 'dpfc list'."
    error, faults = UserError("No head.", said), Faults()
    assert str(error) == f"No head.\n{typed}"
    for _ in range(2):
        with faults.gathered():
            raise error
    with pytest.raises(UserError) as both:
        faults.refuse()
    assert str(both.value).splitlines()[1:] == [f"{i}. No head. {typed}" for i in (1, 2)]
    assert {call for call in CALLS.values() if not callable(getattr(dpfc, call))} == set()
    assert {command.split()[0] for command in CALLS} - {*COMMANDS, *points.added("dpfc.commands")} == set()


def test_what_tells_of_a_record_is_in_no_text_of_an_error() -> None:
    for name in ("Müller.png", 'it\'s\n"b"', 'a\0"b"\0'):
        error = UserError(f"{secret(name)} in {quoted('a.csv')} has no person.", "Name it.")
        assert (error.what, error.fields) == (f"'…' in 'a.csv' has no person. {GUARDED}", {"path": "a.csv"})
        assert error.full == f"'{printable(name.replace(chr(0), ''))}' in 'a.csv' has no person."
        assert not any(name in text for text in (str(error), *error.args))
    assert UserError(f"No: {secret('a, b', 'c, d')}.", "Name them.").full == "No: \na, b\nc, d\n."


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("'s3://KEY:pass/word+@bucket/x' is", "'s3://…@bucket/x' is"),
        ("https://token@host/x", "https://…@host/x"),
        ("s3://bucket/x.parquet?X-Signature=ab/c=&y=1 is", "s3://bucket/x.parquet?… is"),
        ("hf://datasets/owner/name@v1/part-?.csv", "hf://datasets/owner/name@v1/part-?.csv"),
    ],
)
def test_a_secret_in_a_url_is_never_shown(typed: str, shown: str) -> None:
    assert printable(typed) == printable(shown) == shown
