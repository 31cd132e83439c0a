"""What a user asks for: the request says the same, and what contradicts itself is refused."""

from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import account_name
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.request import Request
from tests.support import refuses, replace
from tests.training.requests import small

HEADS = Path("heads")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("sets"))
        small("one", 4, test=2)
        small("persons", 4, persons=True)
    return folder / "features"


@pytest.fixture
def one(sets: Path) -> FeatureSet:
    """Four records to train on, and two to test on."""
    return FeatureSet(sets / "one")


def test_a_request_has_all_that_was_asked_for(one: FeatureSet) -> None:
    noise: dict[str, Any] = {"delta": 1e-3, "allow_large_delta": True, "seed": 2**53 - 1}
    others: dict[str, Any] = {"method": "dp-fc", "by": "Ada", "purpose": "a study", "out": Path("x")}
    made = Request(one, folder=HEADS, epsilon=2, adjacency="replace-one", steps=3, memory=5, **noise, **others)
    assert (made.privacy, made.options, made.whose) == (Privacy(epsilon=2.0, **noise), {"steps": 3}, "Ada")
    assert made.facts.adjacency == "replace-one"
    published = Request(one, folder=HEADS, epsilon=2, as_published=True)
    assert (published.privacy.accounting, replace(published, accounting="exact").privacy.accounting) == (
        "zcdp",
        "exact",
    )
    assert Request(one, noise_multiplier=10, as_published=True).privacy.accounting == "exact"
    assert {type(value) for value in (made.privacy.epsilon, made.privacy.delta, made.memory)} == {float}


@pytest.mark.parametrize(
    ("given", "privacy"),
    [
        ({"epsilon": 1.0}, Privacy(epsilon=1.0)),
        ({"noise_multiplier": 3}, Privacy(noise_multiplier=3.0)),
        ({"non_private": True}, Privacy()),
    ],
)
def test_what_was_not_asked_for_is_as_it_is_said(one: FeatureSet, given: dict[str, Any], privacy: Privacy) -> None:
    made = Request(one, folder=HEADS, **given)
    assert (made.privacy, made.options, made.whose) == (privacy, {}, account_name())
    assert made.facts.adjacency == "zero-out"


@pytest.mark.parametrize(
    ("given", "code", "which"),
    [
        ({}, "conflict", "epsilon"),
        ({"epsilon": 1, "noise_multiplier": 1}, "conflict", "epsilon"),
        ({"epsilon": 1, "non_private": True}, "conflict", "epsilon"),
        ({"noise_multiplier": 1, "non_private": True}, "conflict", "epsilon"),
        *(
            ({"non_private": True, name: value}, "conflict", name)
            for name, value in {"delta": 1e-3, "allow_large_delta": True, "seed": 0, "adjacency": "zero-out"}.items()
        ),
        ({"noise_multiplier": 1, "accounting": "zcdp"}, "conflict", "accounting"),
        ({"epsilon": 1, "adjacency": "add-one"}, "unknown-name", "adjacency"),
        ({"epsilon": 1, "adjacency": ""}, "unknown-name", "adjacency"),
        ({"epsilon": True}, "bad-value", "epsilon"),
        ({"epsilon": 10**400}, "bad-value", "epsilon"),
        ({"noise_multiplier": "1"}, "bad-value", "noise_multiplier"),
        ({"epsilon": 1, "delta": "1"}, "bad-value", "delta"),
        ({"epsilon": 1, "memory": "1 GB"}, "bad-value", "memory"),
        ({"epsilon": 1, "seed": 1.5}, "bad-value", "seed"),
        ({"epsilon": 1, "by": ""}, "bad-value", "by"),
        ({"epsilon": 1, "purpose": ""}, "bad-value", "purpose"),
        # Nothing is no value of what has a default.
        ({"epsilon": 1, "method": None}, "unknown-name", "method"),
        *(({"epsilon": 1, name: None}, "bad-value", name) for name in ("non_private", "allow_large_delta")),
    ],
)
def test_what_contradicts_itself_is_refused(one: FeatureSet, given: dict[str, Any], code: str, which: str) -> None:
    with refuses(code, parameter=which):
        Request(one, folder=HEADS, **given)


def test_the_facts_are_those_of_the_split(one: FeatureSet) -> None:
    assert facts_of(one) == Facts(n=4, m=2, d=2)
    assert facts_of(one, "replace-one", split="test") == Facts(n=2, m=2, d=2, adjacency="replace-one")
    one.manifest = replace(one.manifest, labels_per_record=3)
    assert facts_of(one) == Facts(n=4, m=2, d=2, k=3)


def test_where_persons_are_known_they_are_protected_and_without_noise_nobody_is(sets: Path) -> None:
    persons, of_persons = FeatureSet(sets / "persons"), Facts(n=2, rows=4, m=2, d=2, unit="person")
    for seed in (None, 7):
        assert Request(persons, epsilon=1, seed=seed).facts == of_persons
    assert Request(persons, non_private=True).facts == Facts(n=4, m=2, d=2)
    exchanged = Request(persons, noise_multiplier=3, adjacency="replace-one")
    assert exchanged.facts == replace(of_persons, adjacency="replace-one")
