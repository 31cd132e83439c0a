"""A training is one value that grows: no step can be left out, and what can be refused is refused before the charge."""

import ast
import functools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli import files
from dpfc_cli.errors import UserError
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads import head as head_files
from dpfc_cli.heads.head import Head
from dpfc_cli.methods import METHODS, dp_fc
from dpfc_cli.methods.method import Method, Solution, state_bytes
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, NonPrivate
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits, SystemBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle, PlanError
from dpfc_cli.privacy.queries import Gradient, Query
from dpfc_cli.training import check as checks
from dpfc_cli.training import ledger
from dpfc_cli.training import run as runs
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.charge import Charged, charge
from dpfc_cli.training.check import Checked, check, check_memory, rehearse
from dpfc_cli.training.ledger import tables
from dpfc_cli.training.observer import TRAINING, Observer, TrainingWarning
from dpfc_cli.training.request import Privacy, Request, facts_of
from dpfc_cli.training.run import run
from dpfc_cli.training.train import charge_of, finish, plan, train
from tests.support import blobs, set_with

PACKAGE = Path(dpfc_cli.__file__).parent


def request(features: FeatureSet, **changed: Any) -> Request:
    wanted = Request(
        features=features,
        folder=features.folder.parent / "heads",
        privacy=Privacy(epsilon=2.0),
        method="dp-fc",
        options={"steps": 3},
    )
    return replace(wanted, **changed)


def checked(features: FeatureSet, **changed: Any) -> Checked:
    return plan(request(features, **changed), Observer())


def entries(features: FeatureSet) -> list[ledger.Entry]:
    return ledger.read(ledger.ledger_path(features.folder))


# The order is in the types


@functools.cache
def calls() -> set[tuple[str, str]]:
    """What each module calls: ("Curator", "training/run.py") for `Curator(…)` and for `curator.Curator(…)`."""
    return {
        (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), module)
        for path in PACKAGE.rglob("*.py")
        for module in [path.relative_to(PACKAGE).as_posix()]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }


def callers(name: str) -> set[str]:
    """The modules that call a class of that name."""
    return {module for called, module in calls() if called == name}


def test_each_value_is_made_by_its_own_step_alone() -> None:
    assert callers("Receipt") == {"training/ledger/writing.py"}
    assert callers("Charged") == callers("Paid") == {"training/charge.py"}
    assert callers("Checked") == {"training/check.py"}
    assert callers("Trained") == {"training/run.py"}
    assert callers("Calibrated") == {"training/calibrate.py"}


def test_curators_are_made_of_charged_records_or_of_records_that_are_said_to_be_unprotected() -> None:
    trained = {"training/run.py", "training/tuning.py", "trust/audit/runs.py"}
    assert callers("Curator") == trained | {"training/private_evaluation.py"}
    # A forecast trains without noise, too, on public records.
    assert callers("NonPrivate") == {"training/run.py", "training/tuning.py"}
    assert callers("Unprotected") == {"training/tuning.py", "trust/audit/runs.py"}


def test_nothing_but_records_makes_a_curator(features: FeatureSet) -> None:
    ready = checked(features)
    mechanism = ready.calibrated.mechanism
    assert mechanism is not None
    for uncharged in (features.stream("train"), ready, features):
        with pytest.raises(TypeError, match="a curator takes Records"):
            Curator(mechanism, uncharged, SeededBits(0))  # type: ignore[arg-type]
    assert isinstance(charge(ready), Charged)


def test_up_to_the_charge_no_record_is_read_into_a_sum_and_nothing_is_written(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "exact_sum", lambda *a: pytest.fail("records were summed"))
    monkeypatch.setattr(FeatureSet, "stream", lambda *a: pytest.fail("records were read"))
    before = sorted(p for p in features.folder.parent.rglob("*"))
    ready = checked(features)
    assert entries(features) == []
    assert sorted(p for p in features.folder.parent.rglob("*")) == before
    assert ready.account.entries == []


@pytest.mark.parametrize("epsilon", [1.0, 1.00004, 1.0000004])
def test_no_name_and_no_question_says_less_than_is_spent(features: FeatureSet, epsilon: float) -> None:
    ready = checked(features, privacy=Privacy(epsilon=epsilon))
    named = float(ready.path.name.removesuffix(".safetensors").rpartition("-eps")[2])
    asked = float(charge_of(ready).split()[2])
    assert epsilon <= named <= 1.001 * epsilon
    assert epsilon <= asked <= 1.00001 * epsilon


@pytest.mark.parametrize("seed", [None, 1])
def test_a_charge_that_fails_leaves_nothing(features: FeatureSet, seed: int | None) -> None:
    ready = checked(features, privacy=Privacy(epsilon=2.0, seed=seed))
    path = ledger.ledger_path(features.folder)
    path.mkdir()
    with pytest.raises(UserError, match="nothing is trained that is not charged") as refused:
        charge(ready)
    assert refused.value.code in ("unreadable", "unwritable")
    assert list(ready.path.parent.iterdir()) == []


def test_one_charge_pays_for_one_curator(features: FeatureSet) -> None:
    """A second one would release the same sums with other noise, and nobody would have paid for them."""
    charged = charge(checked(features))
    made = run(charged, Observer())
    mechanism = charged.checked.calibrated.mechanism
    assert mechanism is not None
    for again in (charged, replace(charged)):
        with pytest.raises(RuntimeError, match="was used already"):
            run(again, Observer())
        with pytest.raises(RuntimeError, match="was used already"):
            Curator(mechanism, again, SeededBits(0))
        with pytest.raises(RuntimeError, match="was used already"):
            NonPrivate(mechanism.facts, again)
    assert [(row.state, row.sha256) for row in entries(features)] == [("written", made.sha256)]


def test_a_charge_pays_for_no_other_training(features: FeatureSet) -> None:
    charged = charge(checked(features))
    louder = checked(features, privacy=Privacy(epsilon=90.0))
    with pytest.raises(RuntimeError, match="for another training"):
        run(replace(charged, checked=louder), Observer())
    with pytest.raises(TypeError, match="takes Records"):
        NonPrivate(facts_of(features), SimpleNamespace(opened=lambda: features.stream("train")))  # type: ignore[arg-type]


def test_a_training_takes_600_mebibytes_beside_the_state_of_its_method(features: FeatureSet) -> None:
    calibrated = checked(features).calibrated
    needed = state_bytes(calibrated.method, calibrated.plan) + 600 * 2**20
    check_memory(calibrated, needed)
    with pytest.raises(UserError, match=r"needs about 0.6 GB \(3 classes, 5 dimensions\)") as refused:
        check_memory(calibrated, needed - 1)
    assert refused.value.code == "memory"
    assert (refused.value.fields["needed"], refused.value.fields["allowed"]) == (needed, needed - 1)


def test_persons_take_300_mebibytes_more_and_only_class_matrices_have_a_way_out() -> None:
    facts, privacy = Facts(n=20, m=3, d=5, rows=60), Privacy(epsilon=1.0)
    for name, way_out in (("dp-fc", False), ("dp-ls", True)):
        alone, persons = (calibrate(METHODS[name], each, {}, privacy) for each in (replace(facts, rows=None), facts))
        needed = state_bytes(persons.method, persons.plan) + 900 * 2**20
        check_memory(alone, needed - 300 * 2**20)
        check_memory(persons, needed)
        with pytest.raises(UserError, match="This training needs") as refused:
            check_memory(persons, needed - 1)
        assert ("dp-fc" in refused.value.remedy) is way_out


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new"):
        checks._try_place(tmp_path / place / "a.safetensors")
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        checks._try_place(tmp_path / "file" / "a.safetensors")


def test_what_cannot_be_computed_is_refused_before_the_charge(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, quiet = request(features), checked(features).calibrated
    with pytest.raises(UserError, match="This training needs"):
        check(replace(asked, memory=1.0), quiet, Observer())
    loud = calibrate(METHODS["dp-fc"], facts_of(features), {}, Privacy(noise_multiplier=1e13, delta=1e-5))
    with pytest.raises(UserError, match="The noise is too strong"):
        check(asked, loud, Observer())

    def fails() -> None:
        raise RuntimeError("no such device")

    (features.folder.parent / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        check(replace(asked, out=features.folder.parent / "file" / "a.safetensors"), quiet, Observer())
    with monkeypatch.context() as patched:
        patched.setattr(head_files, "check_card", lambda card: fails())
        with pytest.raises(RuntimeError, match="no such device"):
            check(asked, quiet, Observer())
    monkeypatch.setattr("dpfc_cli.kernels.products.check_exact", fails)
    with pytest.raises(UserError, match="No such device"):
        check(asked, quiet, Observer())
    assert entries(features) == []


def test_a_charge_for_persons_opens_records_with_their_persons(tmp_path: Path) -> None:
    x, y = blobs(60, 5, 3)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_groups=np.arange(60) // 3)
    features = import_features(tmp_path / "a.npz", tmp_path / "features" / "a", classes=3).features
    charged = charge(checked(features, privacy=Privacy(epsilon=90.0, delta=1e-5)))
    assert [block[-1].tolist() for block in charged.opened()(60)] == [(np.arange(60) // 3).tolist()]


@pytest.mark.parametrize(("seed", "kind"), [(None, SystemBits), (5, SeededBits)])
def test_the_noise_is_the_operating_systems_unless_a_seed_was_given(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, seed: int | None, kind: type
) -> None:
    taken: list[Any] = []
    real = curator_module.Curator

    def made(mechanism: Mechanism, records: Any, bits: Any, *others: Any) -> Curator:
        taken.append(bits)
        return real(mechanism, records, bits, *others)

    monkeypatch.setattr(curator_module, "Curator", made)
    told: list[tuple[str, int, int | None]] = []

    class Listening(Observer):
        def progress(self, stage: str, done: int, total: int | None) -> None:
            told.append((stage, done, total))

    trained = run(charge(checked(features, privacy=Privacy(epsilon=1.0, seed=seed))), Listening())
    assert [type(bits) for bits in taken] == [kind]
    assert told
    for stage in dict.fromkeys(stage for stage, _, _ in told):
        assert stage.startswith(f"{TRAINING}, ")
        mine = [each[1:] for each in told if each[0] == stage]
        assert mine == sorted(mine)
        assert {total for _, total in mine} == {mine[-1][0]}
    assert trained.head.path == trained.path
    assert Head.load(trained.path).card["ledger"]["epsilon"] == (None if seed else pytest.approx(1.0))


def test_a_ledger_that_cannot_be_read_any_more_is_told_and_the_head_is_kept(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = charge(checked(features))

    def broken(*_: Any) -> Any:
        raise UserError("The disk is gone.", "Find it.")

    monkeypatch.setattr(ledger, "settle", broken)
    monkeypatch.setattr(runs, "account_of", broken)
    told: list[str] = []

    class Listening(Observer):
        def warn(self, text: str) -> None:
            told.append(text)

    trained = run(charged, Listening())
    assert trained.path.exists()
    assert trained.spent.own == charged.receipt.entries
    assert any("the ledger's row does not say so. The disk is gone." in text for text in told)


# What becomes of a training is in its row


def test_a_row_says_what_became_of_its_training(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finish(checked(features), Observer())
    charged = charge(checked(features))
    assert [row.state for row in entries(features)] == ["written", "charged"]

    def broken(*given: object) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(curator_module, "draw_noise", broken)
    with pytest.raises(KeyboardInterrupt):
        run(charged, Observer())
    first, second = entries(features)
    assert (first.state, first.head, first.sha256) == ("written", made.path.name, made.sha256)
    assert (second.state, second.sha256) == ("stopped", None)
    assert list(made.path.parent.glob("[!.]*")) == [made.path]


def test_who_stops_a_training_is_told_whether_it_was_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Observer):
        def confirm(self, charge: str) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as before:
        finish(checked(features), Stopping())
    assert before.value.__notes__ == ["Nothing was charged, and no head was written."]
    assert entries(features) == []

    def stopped(*given: object) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(curator_module, "draw_noise", stopped)
    with pytest.raises(KeyboardInterrupt) as after:
        finish(checked(features), Observer())
    assert "stays charged" in after.value.__notes__[0]
    assert len(entries(features)) == 1


def test_an_observer_that_says_no_stops_the_charge(features: FeatureSet) -> None:
    asked: list[str] = []

    class Refusing(Observer):
        def confirm(self, charge: str) -> bool:
            asked.append(charge)
            return False

    with pytest.raises(UserError, match="Nothing was charged") as refused:
        finish(checked(features), Refusing())
    assert (refused.value.code, asked) == ("declined", ["ε = 2 to set"])
    assert entries(features) == []


def test_the_row_names_the_head_that_was_really_written(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = checked(features)
    charged = charge(ready)
    ready.path.write_bytes(b"somebody else's head")
    made = run(charged, Observer())
    assert made.path != ready.path
    assert entries(features)[0].head == made.path.name


def test_a_ledger_of_the_first_version_is_read_and_goes_on(features: FeatureSet) -> None:
    import sqlite3
    from contextlib import closing

    path = ledger.ledger_path(features.folder)
    finish(checked(features), Observer())
    with closing(sqlite3.connect(path)) as connection, connection:
        for column in ("state", "sha256", "who", "purpose", "persons", "caps", "overlaps"):
            connection.execute(f"ALTER TABLE trainings DROP COLUMN {column}")
        connection.execute("DROP TABLE caps")
        connection.execute("DROP TABLE overlaps")
        connection.execute("PRAGMA user_version = 0")
    (old,) = ledger.read(path)
    assert (old.state, old.sha256) == ("unknown", None)
    finish(checked(features), Observer())
    assert [row.state for row in ledger.read(path)] == ["unknown", "written"]


@pytest.mark.parametrize("moment", ["sync", "settle"])
def test_a_head_that_is_there_is_told_however_late_the_training_was_stopped(
    features: FeatureSet, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    ready = checked(features)
    charged = charge(ready)
    with monkeypatch.context() as patch:
        if moment == "sync":
            patch.setattr(files, "sync", stopped)
        else:
            real = ledger.settle
            calls: list[str] = []
            patch.setattr(
                ledger, "settle", lambda *a: (calls.append("x"), stopped() if len(calls) == 1 else real(*a))[1]
            )
        with pytest.raises(KeyboardInterrupt) as end:
            run(charged, Observer())
    assert f"The head was written: '{ready.path}'" in end.value.__notes__[0]
    (row,) = entries(features)
    assert (row.state, row.head, row.sha256) == ("written", ready.path.name, sha256_of(ready.path))


@pytest.mark.parametrize("there", [False, True], ids=["nothing", "another head"])
def test_a_head_that_was_not_saved_is_not_told(
    features: FeatureSet, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    ready = checked(features)
    charged = charge(ready)
    if there:
        ready.path.write_bytes(b"somebody else's head")
    monkeypatch.setattr(head_files, "save", stopped)
    with pytest.raises(KeyboardInterrupt) as end:
        run(charged, Observer())
    assert "No head was written" in end.value.__notes__[0]
    (row,) = entries(features)
    assert (row.state, row.head, row.sha256) == ("stopped", ready.path.name, None)


def test_so_is_one_that_had_to_take_another_name(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = checked(features)
    charged, real = charge(ready), ledger.settle
    ready.path.write_bytes(b"somebody else's head")
    calls: list[str] = []

    def stopped_once(*given: Any) -> None:
        calls.append("settle")
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(ledger, "settle", stopped_once)
    with pytest.raises(KeyboardInterrupt) as end:
        run(charged, Observer())
    (row,) = entries(features)
    assert (row.state, row.head) == ("written", ready.path.name.replace(".safetensors", "-2.safetensors"))
    assert row.head in end.value.__notes__[0]


def test_a_training_that_is_stopped_during_the_charge_says_that_it_may_be_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(connection: object) -> object:
        raise KeyboardInterrupt

    ready, real = checked(features), tables.entries_in
    seen: list[int] = []
    # The row is read back before the commit and after it.
    monkeypatch.setattr(tables, "entries_in", lambda c: (seen.append(1), stopped(c) if len(seen) == 2 else real(c))[1])
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready, Observer())
    monkeypatch.setattr(tables, "entries_in", real)
    assert "'dpfc budget' says whether it is charged" in end.value.__notes__[0]
    assert [row.state for row in entries(features)] == ["charged"]


def test_so_does_one_that_is_stopped_before_the_records_are_opened(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(charged: Charged) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Charged, "opened", stopped)
    ready = checked(features)
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready, Observer())
    (note,) = end.value.__notes__
    assert "stays charged" in note
    assert len(entries(features)) == 1
    assert [path.suffix for path in ready.path.parent.iterdir()] == [".answers"], "the head's place is free again"


def test_a_row_that_the_ledger_does_not_keep_is_not_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, real = checked(features), tables.entries_in
    monkeypatch.setattr(tables, "entries_in", lambda c: ((n, replace(row, epsilon=9.0)) for n, row in real(c)))
    with pytest.raises(UserError, match="Nothing was charged") as refused:
        charge(ready)
    monkeypatch.setattr(tables, "entries_in", real)
    assert refused.value.code == "damaged"
    assert entries(features) == []


def test_a_ledger_that_went_or_was_exchanged_meanwhile_is_left_alone(features: FeatureSet) -> None:
    path = ledger.ledger_path(features.folder)
    charged = charge(checked(features))
    path.unlink()
    with pytest.warns(TrainingWarning, match=r"The head is written to .*, but the ledger's row does not say so"):
        made = run(charged, Observer())
    assert made.path.exists()
    assert not path.exists()
    with pytest.warns(TrainingWarning, match="do not have the training of"):
        ready = [checked(features, privacy=Privacy(epsilon=epsilon)) for epsilon in (7.0, 1.0)]
    other, charged = map(charge, ready)
    path.unlink()
    ledger.charge(path, other.receipt.entry)
    ledger.charge(path, other.receipt.entry)
    with pytest.warns(TrainingWarning, match="no open row of this training"):
        run(charged, Observer())
    assert [(row.epsilon, row.state) for row in entries(features)] == [(7.0, "charged")] * 2


def test_what_is_spent_counts_trainings_that_ended_meanwhile(features: FeatureSet, tmp_path: Path) -> None:
    """On another set of the same records."""
    again = import_features(tmp_path / "raw.npz", tmp_path / "again", classes=("a", "b", "c"), shards=2).features
    ready = checked(features)
    finish(checked(again), Observer())
    made = finish(ready, Observer())
    assert made.spent.private == 2
    assert made.spent.epsilon(1e-5) == pytest.approx(epsilon_for(mu_for(2.0, 1e-5) * 2**0.5, 1e-5), rel=1e-6)


# A method that does not follow its plan


def other_method(solve: Any) -> Method[Any, Any]:
    return Method(**{**vars(METHODS["dp-fc"]), "solve": solve})


def one_gradient_less(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    return dp_fc.solve(oracle, facts, replace(options, steps=(options.steps or 0) - 1))


def another_loss(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    return dp_fc.solve(oracle, facts, replace(options, loss="softmax"))


class Unbiased(Oracle):
    """Asks for gradients without a bias."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def release(self, query: Query) -> np.ndarray:
        if isinstance(query, Gradient):
            query = replace(query, theta=query.theta[:-1], constant=0.0)
        return self._oracle.release(query)


def without_bias(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    return dp_fc.solve(Unbiased(oracle), facts, options)


@pytest.mark.parametrize("solve", [one_gradient_less, another_loss, without_bias])
def test_a_method_that_does_not_follow_its_plan_is_found_out_before_the_charge(
    features: FeatureSet, solve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated = calibrate(other_method(solve), facts_of(features), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(PlanError):
        check(request(features), calibrated, Observer())
    assert entries(features) == []


def set_of(facts: Facts) -> FeatureSet:
    names = tuple(map(str, range(facts.m)))
    return set_with(
        Manifest(
            classes=names,
            dim=facts.d,
            dtype="float32",
            labels_per_record=facts.k,
            origin="asserted",
            splits={},
            backbone={"name": "x"},
            source={"identity": {}},
        )
    )


def test_a_rehearsal_is_small_and_its_answers_say_nothing() -> None:
    seen: list[tuple[Facts, int | None]] = []
    answers: list[np.ndarray] = []

    class Listening(Oracle):
        def __init__(self, oracle: Oracle) -> None:
            self._oracle = oracle

        def release(self, query: Query) -> np.ndarray:
            answers.append(self._oracle.release(query))
            return answers[-1]

    def solve(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
        seen.append((facts, options.steps))
        return dp_fc.solve(Listening(oracle), facts, options)

    for m, steps in ((40, 5_000), (2, 2)):
        facts = Facts(n=1000, m=m, d=300)
        rehearse(calibrate(other_method(solve), facts, {"steps": steps}, Privacy(epsilon=1.0)), set_of(facts))
    assert seen == [(Facts(n=3, m=3, d=3), 3), (Facts(n=3, m=2, d=3), 2)]
    assert not any(answer.any() for answer in answers)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_its_rehearsal(method: str) -> None:
    given = {"steps": 3} if "steps" in METHODS[method].declared else {}
    for facts in (Facts(n=1000, m=40, d=300), Facts(n=50, m=2, d=2, k=2, adjacency="replace-one")):
        rehearse(calibrate(METHODS[method], facts, given, Privacy(epsilon=1.0)), set_of(facts))
        rehearse(calibrate(METHODS[method], facts, {}, Privacy()), set_of(facts))


def single_precision(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    """Asks with a θ that no proof covers."""

    class Single(Oracle):
        def release(self, query: Query) -> np.ndarray:
            if isinstance(query, Gradient):
                query = replace(query, theta=query.theta.astype(np.float32))
            return oracle.release(query)

    return dp_fc.solve(Single(), facts, options)


def test_a_query_that_no_proof_covers_is_found_out_before_the_charge(features: FeatureSet) -> None:
    calibrated = calibrate(other_method(single_precision), facts_of(features), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(ValueError, match="finite float64 array"):
        check(request(features), calibrated, Observer())
    assert entries(features) == []


def test_a_calibration_for_other_records_is_refused(features: FeatureSet) -> None:
    other = calibrate(METHODS["dp-fc"], replace(facts_of(features), n=60), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(ValueError, match="calibrated for other records"):
        check(request(features), other, Observer())


def test_the_curator_refuses_a_query_of_another_form_than_planned(features: FeatureSet) -> None:
    """Of the same kind and shape, with another loss."""
    charged = charge(checked(features, method="dp-sgd"))
    mechanism = charged.checked.calibrated.mechanism
    assert mechanism is not None
    (first, *_) = mechanism.plan.releases
    oracle = Curator(mechanism, charged, SeededBits(0))
    softmax = Gradient((Clip(1.0),), np.zeros(first.shape), clip=1.0, loss="softmax")
    with pytest.raises(PlanError, match="of another form"):
        oracle.release(softmax)


# Nothing is derived twice


@pytest.mark.parametrize("method", METHODS)
def test_sigmas_are_computed_once_and_read_by_all(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"steps": 2} if "steps" in METHODS[method].declared else {}
    calls: list[float] = []
    sigmas: Any = Mechanism.sigmas
    real = sigmas.func
    monkeypatch.setattr(sigmas, "func", lambda self: (calls.append(self.mu), real(self))[1])
    calibrated = calibrate(METHODS[method], Facts(n=100, m=3, d=4), given, Privacy(epsilon=1.0))
    assert calibrated.mechanism is not None
    described = [r["sigma"] for r in calibrated.releases for _ in range(r["times"])]
    assert described == list(calibrated.mechanism.sigmas)
    assert calls == [calibrated.mechanism.mu]


def test_a_delta_above_one_over_n_is_refused_unless_insisted_on(features: FeatureSet) -> None:
    method, facts = METHODS["dp-ls"], facts_of(features)
    with pytest.raises(UserError, match="larger than 1/n") as refused:
        calibrate(method, facts, {}, Privacy(epsilon=1.0, delta=0.01))
    assert refused.value.fields["parameter"] == "delta"
    made: Calibrated = calibrate(method, facts, {}, Privacy(epsilon=1.0, delta=0.01, allow_large_delta=True))
    assert made.guarantee is not None
    assert made.guarantee.delta == 0.01


def test_a_card_says_whether_a_training_without_noise_reached_its_optimum(features: FeatureSet) -> None:
    card = finish(checked(features, method="dp-fc", options={}, privacy=Privacy()), Observer()).head.card
    assert card["converged"] is True
    assert "converged" not in finish(checked(features), Observer()).head.card


# From Python


def test_a_training_from_python_is_one_call(features: FeatureSet, tmp_path: Path) -> None:
    made = train(features, epsilon=8.0, method="dp-ls", out=tmp_path / "a.safetensors")
    assert made.path == tmp_path / "a.safetensors"
    head = Head.load(made.path)
    assert head.statement()["this head"].startswith("differentially private, epsilon = 8")
    assert made.spent.epsilon(1e-5) == pytest.approx(8.0)
    x, y = blobs(120, 5, 3)
    assert np.mean([name == "abc"[label] for name, label in zip(head.predict(x), y, strict=True)]) > 0.8
    assert json.loads(json.dumps(made.spent.to_json((1e-5,))))["trainings"][0]["state"] == "written"


def test_warnings_are_python_warnings(features: FeatureSet, tmp_path: Path) -> None:
    with pytest.warns(dpfc_cli.TrainingWarning, match="noise"):
        train(features, epsilon=0.01, method="dp-ls", out=tmp_path / "a.safetensors")


def test_wrong_parameters_say_which(features: FeatureSet) -> None:
    for given, code, said in (
        ({"epsilon": 1.0, "non_private": True}, "conflict", "State the privacy once"),
        ({"non_private": True, "seed": 3}, "conflict", "seed has no effect"),
        ({"epsilon": 1.0, "method": "dp-sl"}, "unknown-name", "Did you mean 'dp-ls'"),
        ({"epsilon": 1.0, "learning_rate": "fast"}, "bad-value", "learning_rate must be a number"),
        ({"epsilon": 1.0, "ridge": 1.0}, "conflict", "ridge is no option of dp-whitened"),
        ({"epsilon": "2"}, "bad-value", "epsilon must be a number, not '2'"),
        ({"epsilon": True}, "bad-value", "epsilon must be a number, not True"),
        ({"epsilon": 1.0, "delta": "1e-5"}, "bad-value", "delta must be a number"),
        ({"epsilon": 1.0, "memory": "8GB"}, "bad-value", "memory must be a number"),
        ({"epsilon": 1.0, "seed": "abc"}, "bad-value", "seed must be a whole number"),
        ({"epsilon": 1.0, "steps": 2.5}, "bad-value", "steps must be a whole number"),
        ({"epsilon": 1.0, "budget_split": 0.5}, "bad-value", "budget_split 0.5 is not 3 positive fractions"),
        ({"epsilon": 1.0, "public_features": "x"}, "bad-value", "public_features is a str, not a feature set"),
    ):
        with pytest.raises(UserError, match=said) as refused:
            train(features, **given)
        assert refused.value.code == code
    assert entries(features) == []


def test_numbers_of_numpy_are_numbers_in_ledger_and_card(features: FeatureSet, tmp_path: Path) -> None:
    made = train(
        features,
        epsilon=np.int64(8),  # type: ignore[arg-type]
        delta=np.float32(1e-5),  # type: ignore[arg-type]
        method="dp-ls",
        budget_split=np.array([0.2, 0.2, 0.6]),
        negative_weight=np.float32(0.5),
        out=tmp_path / "a.safetensors",
    )
    (row,) = entries(features)
    assert (row.epsilon, row.delta) == (8.0, float(np.float32(1e-5)))
    assert {type(row.epsilon), type(row.delta)} == {float}
    assert made.head.card["options"]["budget_split"] == (0.2, 0.2, 0.6)
    assert json.loads(json.dumps(dict(made.head.card)))["options"]["negative_weight"] == 0.5


def test_a_string_is_no_feature_set() -> None:
    with pytest.raises(UserError, match="features is a str, not a feature set"):
        train("digits", epsilon=1.0)  # type: ignore[arg-type]
