"""A training is one value that grows: no step can be left out, and one charge pays for one curator."""

import itertools
import re
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger import answers, facts
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.privacy.curator import NonPrivate
from dpfc_cli.training.charged import Charged
from dpfc_cli.training.check import Checked
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.run import run, spending
from tests.support import blobs, feature_set, refuses, replace
from tests.training.requests import account, charges, checked, ledger, states
from tests.training.stopped import kept

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
    assert callers("Charged") == {"training/charged.py"}
    assert callers("Checked") == {"training/check.py"}
    assert callers("Trained") == {"training/run.py"}
    assert callers("Calibrated") == {"training/calibrate.py"}


def test_curators_are_made_of_charged_records_or_of_records_that_are_said_to_be_unprotected() -> None:
    assert callers("Curator") == callers("NonPrivate") == {"training/charged.py"}
    assert callers("Unprotected") == set()


def charge(ready: Checked) -> Charged:
    """A training that is charged, and stopped."""
    with suppress(KeyboardInterrupt), spending(ready, Observer().confirm) as paid:
        raise KeyboardInterrupt
    return paid


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
    with spending(checked(features), Observer().confirm) as paid:
        paid.oracle()
        for again in (paid, replace(paid)):
            with pytest.raises(RuntimeError, match="was used already"):
                again.oracle()
            with pytest.raises(RuntimeError, match="was used already"):
                NonPrivate(paid.planned.facts, again)


def test_a_set_that_was_exchanged_after_it_was_checked_is_not_charged(features: FeatureSet) -> None:
    ready, path = checked(features), features.folder / MANIFEST
    path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
    with pytest.raises(UserError):
        charge(ready)
    assert ledger(features).charges == ()
    assert kept() == []


def test_a_cap_that_was_set_after_the_check_refuses_the_charge(features: FeatureSet) -> None:
    ready = checked(features)
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
    assert row.at == charged.charge.at > cap.at


RACE = """
import os
from pathlib import Path
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import charge_of_training
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.training.charged import charged
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
        with charged(made, features, fact, Ledger(path=Path("ledger.sqlite")), by="me", again=True, keep=True):
            pass
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
    with spending(first, Observer().confirm), refuses("busy"):
        charge(second)
    # It ended without a head. A command that is checked now would go on with it.
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
    older = path.read_bytes()
    with spending(checked(features), Observer().confirm) as paid:
        path.write_bytes(older)
    assert paid.unsettled is not None
    assert (paid.unsettled.code, ledger(features).charges) == ("missing", ())


def test_a_set_that_is_exchanged_while_it_is_summed_ends_the_training(features: FeatureSet) -> None:
    path = features.folder / MANIFEST
    with spending(checked(features), Observer().confirm) as paid:
        blocks = paid.opened()(50)
        assert next(blocks)[0] == 0
        path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
        with pytest.raises(UserError):
            list(blocks)


def test_a_charge_pays_for_no_other_training(features: FeatureSet) -> None:
    ready, louder = checked(features), checked(features, epsilon=90.0)
    with pytest.raises(RuntimeError, match="something else"):
        run(replace(ready, calibrated=louder.calibrated), Observer())
    assert ledger(features).charges == ()


def test_what_stops_it_is_told_once_what_is_charged(features: FeatureSet) -> None:
    """Before the charge, and after it. Whether it goes on, or a new one is charged, depends on its answers."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "resumes where it stopped, and charges nothing more."),
        ({"keep": False}, "which is charged, too: it asks first."),
        ({"epsilon": None, "non_private": True}, "which is charged, too."),
    ]
    for number, (given, said) in enumerate(cases):
        ready = checked(features, out=Path(f"heads/{number}"), again=True, **given)
        for stops, note in ((True, "Nothing was charged, and no head was written."), (False, said)):
            with pytest.raises(KeyboardInterrupt) as end, spending(ready, interrupted if stops else Observer().confirm):
                raise KeyboardInterrupt
            assert [each[-len(note) :] for each in end.value.__notes__] == [note]
    assert states(features) == ["stopped"] * 3


def interrupted(*given: object) -> bool:
    raise KeyboardInterrupt


def test_a_charge_for_persons_opens_records_with_their_persons(tmp_path: Path) -> None:
    x, y = blobs(60, 5, 3)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_groups=np.arange(60) // 3)
    features = feature_set(tmp_path / "a.npz", tmp_path / "features" / "a", classes=3)
    charged = charge(checked(features, epsilon=90.0, delta=1e-5))
    assert [block[-1].tolist() for block in charged.opened()(60)] == [(np.arange(60) // 3).tolist()]
