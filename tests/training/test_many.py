"""Several trainings of one set: they are charged together or not at all, and nothing is charged twice."""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError, notes
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy import curator
from dpfc_cli.training import many
from dpfc_cli.training.many import TrainedRow, plan_many, run_many
from dpfc_cli.training.run import run
from tests import instead
from tests.support import refuses
from tests.training.requests import charges, states
from tests.training.stopped import Killed, Listener, kept

pytestmark = pytest.mark.usefixtures("heads")
FOUR: dict[str, Any] = {"epsilon": [1.0, 2.0], "method": ["dp-ls", "dp-fc"], "by": "me"}


def trained(features: FeatureSet, observer: dpfc_cli.Observer | None = None, **changed: Any) -> list[TrainedRow]:
    return dpfc_cli.train_many(features, **{**FOUR, "observer": observer or Listener(), **changed})


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*.safetensors")}


def test_each_value_is_trained_with_each_and_all_are_asked_for_once(features: FeatureSet) -> None:
    told = Listener()
    rows = trained(features, told)
    assert [(each.epsilon, each.method) for each in rows] == [
        (epsilon, method) for epsilon in FOUR["epsilon"] for method in FOUR["method"]
    ]
    total = dpfc_cli.spent(features).epsilon(1e-5)
    assert len(told.asked) == 1
    assert total <= float(told.asked[0].split()[2]) <= 1.00001 * total
    for row in rows:
        card = Head.load(row.head).card
        assert (row.mu, len(row.sigma)) == (card.mu, sum(each.times for each in card.plan))
        assert {type(value) for value in asdict(row).values()} <= {str, float, tuple, type(None)}


def test_one_of_several_trainings_is_the_training_that_it_is_alone(features: FeatureSet) -> None:
    several = trained(features, seed=[1, 2])
    alone = dpfc_cli.train(features, epsilon=2.0, method="dp-fc", seed=2, again=True, by="me", observer=Listener())
    twin = Head.load(several[-1].head)
    assert np.array_equal(twin.weight, alone.head.weight)
    assert len(several) == len({each.head for each in several}) == 8


@pytest.mark.parametrize("late", [False, True])
def test_a_cap_allows_all_of_them_or_none(features: FeatureSet, late: bool) -> None:
    """Also one that is set after they were checked."""
    planned = plan_many(features, FOUR, {}, Listener()) if late else None
    dpfc_cli.set_cap(features, 2.5, delta=1e-5)
    with refuses("over-cap", match="the first 2 would fit"):
        trained(features) if planned is None else run_many(planned, Listener())
    assert (charges(features), kept(), files()) == ((), [], {})
    assert len(trained(features, epsilon=1.0)) == 2


def stopped_at(call: int, patch: pytest.MonkeyPatch, of: tuple[Any, str], kind: type[BaseException]) -> None:
    """The process is killed, or stopped, at that call."""
    real, calls = getattr(*of), [0]

    def stopping(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            if kind is Killed:
                instead.settle(patch)
            raise kind
        return real(*given)

    patch.setattr(*of, stopping)


@pytest.mark.parametrize("kind", [Killed, KeyboardInterrupt])
@pytest.mark.parametrize("of", [(many, "run"), (curator, "draw_noise")])
def test_after_a_stop_the_same_call_makes_what_is_missing_and_charges_nothing(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, of: tuple[Any, str], kind: type[BaseException]
) -> None:
    """Between two trainings, and within the second one."""
    with monkeypatch.context() as patch:
        stopped_at(2 if of[1] == "run" else 6, patch, of, kind)
        with pytest.raises(kind) as stop:
            trained(features)
    assert any("1 of 4 trainings are done" in each for each in notes(stop.value))
    # What all cost together, and not the one that was stopped.
    (said,) = re.findall(r"ε = ([\d.]+)", " ".join(notes(stop.value)))
    assert float(said) == pytest.approx(dpfc_cli.spent(features).epsilon(1e-5), rel=1e-5)
    before, charged, told = files(), charges(features), Listener()
    assert (len(before), len(charged)) == (1, 4)
    # What is spent is spent: a cap that it fills does not stand against the rest.
    dpfc_cli.set_cap(features, dpfc_cli.spent(features).epsilon(1e-5) * 1.001, delta=1e-5)
    rows = trained(features, told)
    assert (told.asked, charges(features)) == ([], charged)
    assert [each.seconds is None for each in rows] == [True, False, False, False]
    assert files().items() >= before.items()
    assert (states(features), kept()) == (["written"] * 4, [])


def test_while_they_are_trained_no_other_process_makes_one_that_has_not_begun(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, codes, others = run, list[str](), Listener()
    monkeypatch.setattr(others, "confirm", dpfc_cli.Observer().confirm)

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(many, "run", real)
        with pytest.raises(UserError) as refused:
            trained(features, others, epsilon=2.0)
        codes.append(refused.value.code)
        return real(*given)

    monkeypatch.setattr(many, "run", meanwhile)
    trained(features, method="dp-fc")
    assert (codes, len(charges(features)), kept()) == (["busy"], 2, [])


def test_what_is_wrong_is_said_of_all_at_once_before_anything_is_charged(features: FeatureSet) -> None:
    with pytest.raises(UserError) as refused:
        trained(features, epsilon=[1.0, 500.0], method=["dp-ls", "dp-lss"])
    assert len(refused.value.problems) == 2
    said = refused.value.fields["problems"]
    assert isinstance(said, list)
    assert all(each["remedy"] and "‹" not in str(each) for each in said)
    assert all(each in str(refused.value) for each in ("500.0", "dp-lss"))
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: trained(features, out="one.safetensors"), "conflict"),
        (lambda: trained(features, epsilon=()), "conflict"),
    ]
    for call, code in wrong:
        with refuses(code):
            call()
    with pytest.raises(TypeError, match="train_many"):
        trained(features, epsilons=[1.0])
    assert (charges(features), files()) == ((), {})


def test_a_warning_says_of_which_trainings_it_is_unless_it_is_of_all(features: FeatureSet) -> None:
    told = Listener()
    trained(features, told, epsilon=[0.01, 8.0], method=["dp-ls", "dp-fc"], seed=[1, 2])
    assert len(told.warned) == 3
    assert [("0.01" in each.split(":")[0], "dp-ls" in each, "dp-fc" in each) for each in told.warned] == [
        (False, False, False),
        (True, True, False),
        (True, False, True),
    ]


def test_records_are_checked_once_for_all(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = FeatureSet.verify, list[object]()
    monkeypatch.setattr(FeatureSet, "verify", lambda *given, **more: calls.append(given) or real(*given, **more))
    trained(features)
    assert len(calls) == 1


def test_no_two_of_them_write_one_file_and_none_is_made_twice(features: FeatureSet) -> None:
    """Of names the ε is rounded."""
    rows = trained(features, epsilon=[1.00001, 1.00002, 1.00001], method=["auto", "dp-whitened"], out="study")
    assert sorted(files()) == sorted(each.head for each in rows)
    assert [Path(each.head).parent.name for each in rows] == ["study"] * 2
    assert len(charges(features)) == 2
    again = trained(features, epsilon=[1.00001, 1.00002], method="auto", out="study", again=True)
    assert (len(files()), len(charges(features))) == (4, 4)
    assert {each.head for each in again}.isdisjoint(each.head for each in rows)


def test_a_refusal_says_what_all_of_them_would_cost(features: FeatureSet) -> None:
    values = {name: FOUR[name] for name in ("epsilon", "method")}
    assert plan_many(features, values, {"by": "me"}, Listener()).refused is None
    Path("elsewhere").mkdir()
    alone: dict[str, Any] = {"epsilon": 1.0, "method": "dp-ls", "by": "me", "out": "elsewhere/one.safetensors"}
    dpfc_cli.train(features, **alone, observer=Listener())
    found = plan_many(features, values, {"by": "me"}, Listener())
    assert found.refused is not None
    assert found.question in found.refused.remedy
    assert plan_many(features, values, {"by": "me", "again": True}, Listener()).refused is None


def test_seeded_trainings_that_were_made_elsewhere_are_made_without_a_question(features: FeatureSet) -> None:
    """They cost no ε, and give the same heads."""

    class Refusing(Listener):
        def confirm(self, charge: str, refused: UserError | None) -> bool:
            return refused is None

    one, other = (trained(features, Refusing(), seed=3, method="dp-ls", out=out) for out in ("one", "other"))
    assert [Path(row.head).parent.name for row in other] == ["other"] * 2
    for mine, theirs in zip(one, other, strict=True):
        assert np.array_equal(Head.load(mine.head).weight, Head.load(theirs.head).weight)
