"""`--classes`: a number, names between commas, or a file of names."""

import json
from pathlib import Path

from tests.cli.conftest import Dpfc


def test_many_long_names_between_commas_are_names(dpfc: Dpfc) -> None:
    """Together they are longer than the name of a file may be."""
    names = [f"{'hypertrophic-cardiomyopathy-' * 10}{i}" for i in range(70)]
    shown = dpfc("forecast", "--records", "7000", "--dimensions", "8", "--classes", ",".join(names), "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["facts"]["m"] == 70


def test_one_name_that_is_too_long_for_a_file_is_refused(dpfc: Dpfc) -> None:
    shown = dpfc("forecast", "--records", "7000", "--dimensions", "8", "--classes", "a" * 5000)
    assert shown.exit_code == 2, shown.output


def test_a_file_with_a_comma_in_its_name_is_a_file(dpfc: Dpfc) -> None:
    Path("a,b").write_text("flu\ncold\nnone\n")
    shown = dpfc("forecast", "--records", "7000", "--dimensions", "8", "--classes", "a,b", "--json")
    assert json.loads(shown.stdout)["facts"]["m"] == 3
