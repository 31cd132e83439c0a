"""What is listed of feature sets, and of files that are none."""

import shutil
from pathlib import Path

import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.inventory import Inventory, ListedSet, inventory
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.populations import set_population
from dpfc_cli.privacy.accounting import default_delta
from tests.ledger.facts import a_charge, a_set, made_set, spent_by, written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sets: `plain`, of the population 'a', and `persons`, whose records belong to 20 persons."""
    made_set(tmp_path / "features" / "plain", range(40), "a")
    made_set(tmp_path / "features" / "persons", range(50, 90), persons=True)
    return tmp_path


def found(folder: Path) -> Inventory:
    return inventory(folder / "features", folder / "heads")


def listed(folder: Path, name: str) -> ListedSet:
    return next(each for each in found(folder).sets if each.name == name)


def test_a_set_is_listed_with_its_counts_and_what_was_spent_on_its_population(folder: Path) -> None:
    persons, plain = found(folder).sets
    assert (plain.name, plain.path, plain.records) == ("plain", str(folder / "features" / "plain"), {"train": 40})
    assert (plain.population, plain.charges, plain.epsilon, plain.unprotected) == ("a", 0, 0.0, 0)
    assert (plain.unit, plain.delta, plain.warning) == ("record", default_delta(40), None)
    assert (persons.population, persons.persons) == (None, {"train": 20})
    ledger = read(folder / "features" / "ledger.sqlite")
    of = {facts[0].name: facts[0] for facts in ledger.sets.values()}
    twin = a_set("a")
    charges = [a_charge(of["plain"], 1.0), a_charge(twin, 0.5), a_charge(of["plain"], claim="research")]
    written(ledger.path, twin, *charges)
    plain = listed(folder, "plain")
    assert (plain.charges, plain.unprotected) == (3, 1)
    assert plain.epsilon == pytest.approx(spent_by(1.0, 0.5), rel=1e-6)
    set_population(FeatureSet(folder / "features" / "plain"), "b")
    assert listed(folder, "plain").population == "a or b"
    written(ledger.path, a_charge(of["persons"], 1.0))
    # A total that protects records says so of a set with persons. Nothing is said whose they are.
    assert (listed(folder, "persons").unit, listed(folder, "persons").charges) == ("record", 4)


def test_what_cannot_be_read_is_named_with_its_reason_and_hides_nothing_else(folder: Path) -> None:
    damaged = Path(shutil.copytree(folder / "features" / "plain", folder / "features" / "zz"))
    (damaged / "manifest.json").write_text("{")
    (folder / "heads").mkdir()
    (folder / "heads" / "x.safetensors").write_bytes(b"no head")
    assert [path for path, _ in found(folder).unreadable] == [str(folder / "heads" / "x.safetensors"), str(damaged)]
    broken = folder / "features" / "ledger.sqlite"
    broken.write_bytes(b"no ledger at all, but longer than the header of one" * 20)
    here = found(folder)
    assert [(each.name, each.charges, each.epsilon) for each in here.sets] == [
        ("persons", None, None),
        ("plain", None, None),
    ]
    assert [path for path, _ in here.unreadable].count(str(broken)) == 1
    assert all("‹" not in reason for _, reason in here.unreadable)
