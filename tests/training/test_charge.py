"""A training is one value that grows: no step can be left out, and one charge pays for one curator."""

import itertools
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger import facts
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.privacy.curator import Curator, NonPrivate
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.training import answers
from dpfc_cli.training.charge import charge, settle
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.run import run
from tests.support import blobs, refuses, replace
from tests.training.requests import account, charges, checked, ledger, states

PACKAGE = Path(dpfc_cli.__file__).parent


# The order is in the types


def callers(name: str) -> set[str]:
    """The modules of the core that call a class of that name, as `Curator(…)` or `curator.Curator(…)`. Which extensions
    may do so is a contract of the imports.
    """
    called = re.compile(rf"(?<!class )\b{name}\(")
    found = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if called.search(path.read_text())}
    return {path.as_posix() for path in found if path.parts[0] != "extensions"}


def test_each_value_is_made_by_its_own_step_alone() -> None:
    assert callers("Receipt") == {"training/charge.py"}
    assert callers("Charged") == callers("Paid") == {"training/charge.py"}
    assert callers("Checked") == {"training/check.py"}
    assert callers("Trained") == {"training/run.py"}
    assert callers("Calibrated") == {"training/calibrate.py"}


def test_curators_are_made_of_charged_records_or_of_records_that_are_said_to_be_unprotected() -> None:
    assert callers("Curator") == {"training/run.py", "training/tuning.py", "evaluation/private.py"}
    assert callers("NonPrivate") == {"training/run.py", "training/tuning.py"}
    assert callers("Unprotected") == {"training/tuning.py"}


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
@pytest.mark.parametrize("seed", [None, 1])
def test_a_charge_that_fails_leaves_nothing(features: FeatureSet, seed: int | None) -> None:
    ready = checked(features, epsilon=2.0, seed=seed)
    path = ledger_path(features.folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError) as refused:
        charge(ready)
    assert refused.value.code in ("unreadable", "unwritable")
    assert not ready.path.parent.exists()


def test_one_charge_pays_for_one_curator(features: FeatureSet) -> None:
    """A second one would release the same sums with other noise, and nobody would have paid for them."""
    charged = charge(checked(features))
    made = run(charged, Observer())
    mechanism = charged.checked.calibrated.noise
    for again in (charged, replace(charged)):
        with pytest.raises(RuntimeError, match="was used already"):
            run(again, Observer())
        with pytest.raises(RuntimeError, match="was used already"):
            Curator(mechanism, again.paid, SeededBits(0))
        with pytest.raises(RuntimeError, match="was used already"):
            NonPrivate(mechanism.facts, again.paid)
    assert (states(features), len(ledger(features).written(made.sha256))) == (["written"], 1)


def test_a_set_that_was_exchanged_after_it_was_checked_is_not_charged(features: FeatureSet) -> None:
    ready, path = checked(features), features.folder / MANIFEST
    path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
    with pytest.raises(UserError):
        charge(ready)
    assert ledger(features).charges == ()


def test_a_cap_that_was_set_after_the_check_refuses_the_charge(features: FeatureSet) -> None:
    ready = checked(features)
    # So does a place that cannot be written any more.
    ready.path.parent.touch()
    with pytest.raises(UserError):
        charge(ready)
    ready.path.parent.unlink()
    dpfc_cli.set_cap(features, 1.0)
    with refuses("over-cap"):
        charge(ready)
    assert ledger(features).charges == ()


def test_a_charge_is_dated_when_it_is_charged(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cap that was set since the training was checked was set before the charge."""
    ready, hours = checked(features), itertools.count(1)
    later = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(hours=next(hours)))
    monkeypatch.setattr(facts, "datetime", later)
    (cap,) = dpfc_cli.set_cap(features, 10.0).caps
    charged = charge(ready)
    (row,) = charges(features)
    assert row.at == charged.receipt.charge.at > cap.at


RACE = """
import os
from pathlib import Path
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import charge_of_training
from dpfc_cli.training.charge import pay
from dpfc_cli.training.request import Request

features = FeatureSet(Path("set"))
asked = Request(features=features, folder=Path("heads"), epsilon=0.25, delta=1e-5, method="dp-ls")
made = calibrate(asked.chosen, asked.facts, {}, asked.privacy)
others = 0
while others < 3 and os.fork():
    others += 1
for tried in range(12):
    fact = charge_of_training(made, features, f"{others}-{tried}.safetensors", "me", None)
    try:
        pay(made, features, fact, again=True)
    except UserError as error:
        assert error.code in ("over-cap", "busy"), error
    else:
        os.write(1, f"{fact.id}\\n".encode())
if others == 3:
    assert [os.wait()[1] for _ in range(others)] == [0] * 3
"""
"""Four processes charge as fast as they can, and say which charges were promised to them."""


def test_processes_that_charge_at_once_pass_no_cap_and_lose_no_charge(features: FeatureSet) -> None:
    dpfc_cli.set_cap(features, 1.0, delta=1e-5)
    done = subprocess.run([sys.executable, "-c", RACE], check=True, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == sorted(each.id for each in charges(features))
    assert account(features).passed == []
    with refuses("over-cap"):
        checked(features, epsilon=0.25)


def test_of_equal_trainings_that_were_checked_in_the_same_moment_one_is_charged(features: FeatureSet) -> None:
    first, second, wanted = checked(features), checked(features), checked(features, again=True)
    runs = charge(first)
    with refuses("busy"):
        charge(second)
    # It was stopped. A command that is checked now would go on with it.
    assert runs.answers is not None
    runs.answers.close()
    with refuses("exists"):
        charge(second)
    assert len(ledger(features).charges) == 1
    charge(wanted)
    assert len(ledger(features).charges) == 2


def test_the_same_training_by_another_version_is_charged_only_again(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot go on with the answers of this one."""
    charge(checked(features))
    monkeypatch.setattr(answers, "code_digest", lambda *packages: 64 * "f")
    later = checked(features)
    assert later.unfinished is None
    with refuses("exists"):
        charge(later)
    assert len(ledger(features).charges) == 1
    charge(checked(features, again=True))
    assert len(ledger(features).charges) == 2


def test_what_became_of_a_charge_is_not_written_where_the_ledger_lacks_it(features: FeatureSet) -> None:
    path = ledger_path(features.folder)
    older, receipt = path.read_bytes(), charge(checked(features)).receipt
    path.write_bytes(older)
    error = settle(receipt, "stopped")
    assert error is not None
    assert (error.code, path.read_bytes()) == ("missing", older)


def test_a_set_that_is_exchanged_while_it_is_summed_ends_the_training(features: FeatureSet) -> None:
    blocks, path = charge(checked(features)).paid.opened()(50), features.folder / MANIFEST
    assert next(blocks)[0] == 0
    path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
    with pytest.raises(UserError):
        list(blocks)


def test_a_charge_pays_for_no_other_training(features: FeatureSet) -> None:
    charged = charge(checked(features))
    louder = checked(features, epsilon=90.0)
    for other in (louder, replace(charged.checked, calibrated=louder.calibrated)):
        with pytest.raises(RuntimeError, match="for another training"):
            run(replace(charged, checked=other), Observer())


def test_a_charge_for_persons_opens_records_with_their_persons(tmp_path: Path) -> None:
    x, y = blobs(60, 5, 3)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_groups=np.arange(60) // 3)
    features = import_features(tmp_path / "a.npz", tmp_path / "features" / "a", classes=3).features
    charged = charge(checked(features, epsilon=90.0, delta=1e-5))
    assert [block[-1].tolist() for block in charged.paid.opened()(60)] == [(np.arange(60) // 3).tolist()]
