"""Whatever can be refused is refused before the charge, and nothing is left of the try."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as head_files
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS, dp_fc
from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import Gradient, Query
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.check import check, rehearse
from dpfc_cli.training.observer import CHECKING, Observer, TrainingWarning
from dpfc_cli.training.run import run
from tests import instead
from tests.hostile import standing
from tests.support import feature_set, refuses, replace, set_with
from tests.training.requests import charges, checked, ready, request
from tests.training.stopped import Listener, killed


def test_up_to_the_charge_no_record_is_read_into_a_sum_and_nothing_is_written(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead.exact_sum(monkeypatch, lambda *a: pytest.fail("records were summed"))
    monkeypatch.setattr(FeatureSet, "stream", lambda *a: pytest.fail("records were read"))
    before = sorted(p for p in features.folder.parent.rglob("*"))
    ready = checked(features)
    assert charges(features) == ()
    assert sorted(p for p in features.folder.parent.rglob("*")) == before
    assert ready.account.charges == ()


def test_what_cannot_be_computed_is_refused_before_the_charge(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, quiet = request(features), checked(features).calibrated
    with refuses("memory"):
        check(replace(asked, memory=1.0), quiet, Observer())
    loud = calibrate(METHODS["dp-fc"], facts_of(features), {}, Privacy(noise_multiplier=1e13, delta=1e-5))
    with refuses("bad-value", parameter="epsilon"):
        check(asked, loud, Observer())

    def fails() -> None:
        raise RuntimeError("no such device")

    (features.folder.parent / "file").touch()
    with refuses("missing"):
        check(replace(asked, out=features.folder.parent / "file" / "a.safetensors"), quiet, Observer())
    with monkeypatch.context() as patched:
        patched.setattr(head_files, "check_card", lambda card: fails())
        with pytest.raises(RuntimeError, match="no such device"):
            check(asked, quiet, Observer())
    monkeypatch.setattr("dpfc_cli.kernels.products.check_exact", fails)
    with refuses("unsupported"):
        check(asked, quiet, Observer())
    assert charges(features) == ()


def refused(features: FeatureSet, **changed: Any) -> None:
    with refuses("over-cap"):
        ready(features, **changed)


# What was charged and what is to be charged


@pytest.mark.parametrize("out", [None, Path("elsewhere", "mine.safetensors"), Path("mine")])
def test_what_was_charged_goes_on_and_is_not_held_against_the_cap_again(
    sets: dict[str, FeatureSet], out: Path | None
) -> None:
    set_cap(sets["a"], 2.5)
    Path("elsewhere").mkdir()
    before = killed(ready(sets["a"], out=out))
    again = ready(sets["a"], out=out)
    assert again.unfinished is not None
    assert again.unfinished.charge == before.charge
    # Another command is a training of its own.
    refused(sets["a"], out=out, delta=1e-6)


def test_what_goes_on_has_the_name_that_was_charged(sets: dict[str, FeatureSet]) -> None:
    """A head of this name may be there: the training may have been killed after it was written."""
    before = ready(sets["a"])
    killed(before)
    before.path.parent.mkdir()
    before.path.touch()
    assert ready(sets["a"]).path == before.path
    assert ready(sets["a"], delta=1e-6).path != before.path


def test_a_ledger_that_is_gone_or_too_old_is_refused_or_told(sets: dict[str, FeatureSet]) -> None:
    path = ledger_path(sets["a"].folder)
    before = path.read_bytes()
    run(ready(sets["a"]), Observer())
    path.write_bytes(before)
    with pytest.warns(TrainingWarning, match="does not have the training"):
        ready(sets["a"])
    path.unlink()
    with refuses("missing", path=str(path)):
        ready(sets["a"])


def test_progress_is_told_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    observer = Listener()
    np.savez("raw.npz", train_x=np.zeros((300, 1), np.float32), train_y=np.arange(300) % 2)
    wanted = request(feature_set("raw.npz", "set", classes=("a", "b")))
    check(wanted, calibrate(wanted.chosen, wanted.facts, wanted.options, wanted.privacy), observer)
    assert observer.stages == [(CHECKING, 1, 2), (CHECKING, 2, 2)]


def test_answers_that_are_kept_take_room_beside_the_ledger(features: FeatureSet) -> None:
    assert checked(features, keep=False).beside == 0
    whole = checked(features).beside
    killed(checked(features))
    assert checked(features).beside == whole > 0


def other_method(solve: Any) -> Method[Any, Any]:
    return Method(**{**vars(METHODS["dp-fc"]), "solve": solve})


def test_a_method_that_does_not_follow_its_plan_is_found_out_before_the_charge(features: FeatureSet) -> None:
    """A gradient too few, another loss, another form, and a θ that no proof covers."""
    changes: list[Callable[[Gradient], Query]] = [
        lambda query: replace(query, theta=query.theta[:-1], constant=0.0),
        lambda query: replace(query, theta=query.theta.astype(np.float32)),
    ]

    class Changed(Oracle):
        def __init__(self, oracle: Oracle, change: Callable[[Gradient], Query]) -> None:
            self._oracle, self._change = oracle, change

        def release(self, query: Query) -> np.ndarray:
            return self._oracle.release(self._change(query) if isinstance(query, Gradient) else query)

    solves: list[Callable[[Oracle, Facts, dp_fc.Options], Solution]] = [
        lambda oracle, facts, options: dp_fc.solve(oracle, facts, replace(options, steps=(options.steps or 0) - 1)),
        lambda oracle, facts, options: dp_fc.solve(oracle, facts, replace(options, loss="softmax")),
        *(
            lambda oracle, facts, options, change=change: dp_fc.solve(Changed(oracle, change), facts, options)
            for change in changes
        ),
    ]
    for solve in solves:
        calibrated = calibrate(other_method(solve), facts_of(features), {"steps": 3}, Privacy(epsilon=1.0))
        with refuses("unsupported"):
            check(request(features), calibrated, Observer())
    assert charges(features) == ()


def test_what_fails_in_a_method_of_another_package_is_its_own_fault(features: FeatureSet) -> None:
    def fails(*given: Any) -> Solution:
        raise NameError("numpy")

    for source, kind in (({"package": "other 1", "sha256": "0" * 64}, UserError), (None, NameError)):
        method = Method(**{**vars(other_method(fails)), "source": source})
        with pytest.raises(kind) as refused:
            check(request(features), calibrate(method, facts_of(features), {}, Privacy(epsilon=1.0)), Observer())
        assert source is None or all(each in str(refused.value) for each in ("method dp-fc", "NameError: numpy"))


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
        rehearse(
            calibrate(other_method(solve), facts, {"steps": steps}, Privacy(epsilon=1.0)), set_of(facts), standing()
        )
    assert seen == [(Facts(n=3, m=3, d=3), 3), (Facts(n=3, m=2, d=3), 2)]
    assert not any(answer.any() for answer in answers)


def test_every_method_passes_its_rehearsal() -> None:
    for method in METHODS.values():
        given = {"steps": 3} if "steps" in method.declared else {}
        for facts in (Facts(n=1000, m=40, d=300), Facts(n=50, m=2, d=2, k=2, adjacency="replace-one")):
            rehearse(calibrate(method, facts, given, Privacy(epsilon=1.0)), set_of(facts), standing())
            rehearse(calibrate(method, facts, {}, Privacy()), set_of(facts), standing("non-private"))


def test_a_calibration_for_other_records_is_refused(features: FeatureSet) -> None:
    other = calibrate(METHODS["dp-fc"], replace(facts_of(features), n=60), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(ValueError, match="other records"):
        check(request(features), other, Observer())
