"""What the other processes of a training do for process 0, one step at a time."""

import dataclasses
import json
from typing import Any

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import parts, passes, persons
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.passes import Part
from dpfc_cli.privacy.sums import Summed
from dpfc_cli.processes import LostError
from dpfc_cli.training import distributed as serving
from dpfc_cli.training.distributed import Leader, digest_of, reached, serve
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import SPLIT, facts_of
from dpfc_cli.training.train import plan
from tests.training.requests import charges
from tests.training.test_together import Alone, request


class Other:
    """Process 1 of two. It is asked one thing, and then the training ends."""

    number, count = 1, 2

    def __init__(self, features: FeatureSet, ask: str, **more: Any) -> None:
        facts = dataclasses.asdict(facts_of(features))
        asked = {"ask": ask, "split": SPLIT, "facts": facts, **more}
        self._left = [json.dumps(each).encode() for each in (asked, {"ask": "end"})]
        self.failures: list[BaseException] = []

    def told(self) -> bytes:
        return self._left.pop(0)

    def gathered(self, value: str) -> list[str]:
        return [value]

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)


def test_a_process_whose_devices_are_not_exact_says_so_before_the_charge(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inexact() -> None:
        raise UserError("A sum of integers is wrong.", "Try JAX_PLATFORMS=cpu.")

    monkeypatch.setattr(serving, "check_devices", inexact)
    other = Other(features, "verify", manifest=digest_of(features))
    with pytest.raises(UserError, match="A sum of integers is wrong") as refused:
        serve(other, features)  # type: ignore[arg-type]
    assert other.failures == [refused.value]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("bits", "shelf"), [(14, InMemory()), (14, None), (None, InMemory())])
def test_a_process_sums_on_the_grid_and_the_shelf_that_it_is_asked_for(
    bits: int | None, shelf: InMemory | None, fails: bool, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has kept there does not stay, however the training ends."""
    monkeypatch.setattr(passes, "block_rows", lambda facts: 50)
    summed: list[Summed] = []
    wanted: list[Any] = []

    def followed(channel: parts.Channel, over: Summed) -> None:
        summed.append(over)
        if shelf is not None:
            shelf.put(())
        if fails:
            raise LostError("Process 0 has failed.", "Start them again.")

    monkeypatch.setattr(parts, "follow", followed)
    monkeypatch.setattr(serving, "shelf_for", lambda *given: (wanted.extend(given), shelf)[1])
    other = Other(features, "sum", bits=bits, side=6, memory=1e9)
    if fails:
        with pytest.raises(LostError):
            serve(other, features)  # type: ignore[arg-type]
    else:
        serve(other, features)  # type: ignore[arg-type]
    grid = Reals() if bits is None else Lattice(bits)
    facts = facts_of(features)
    # 120 records are three blocks. This process has the last two of them.
    assert wanted == [6, 70, facts, grid, 0, 1e9, features.folder.resolve()]
    (over,) = summed
    assert (over.facts, over.grid) == (facts, grid)
    assert (over.directions is None) == (shelf is None)
    assert shelf is None or list(shelf.blocks()) == []


def test_a_process_stops_where_another_set_takes_the_place_of_its_own(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def followed(channel: parts.Channel, over: Summed) -> None:
        path = features.folder / MANIFEST
        assert next(over.stream(50))[0] == 50
        path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
        next(over.stream(50))

    monkeypatch.setattr(passes, "block_rows", lambda facts: 50)
    monkeypatch.setattr(parts, "follow", followed)
    with pytest.raises(UserError, match="has another feature set now"):
        serve(Other(features, "sum", bits=14, side=6, memory=1e9), features)  # type: ignore[arg-type]


def test_sets_are_compared_as_they_were_opened(features: FeatureSet) -> None:
    """Process 0 has opened the set before it was made again, and another process after it."""
    alone, facts = Alone(), facts_of(features)
    path = features.folder / MANIFEST
    path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
    Leader(alone).verify(features, SPLIT, facts)  # type: ignore[arg-type]
    later = FeatureSet(features.folder)
    assert later.manifest != features.manifest
    other = Other(later, "verify", manifest=alone.asked[0]["manifest"])
    with pytest.raises(UserError, match="is not the feature set of process 0"):
        serve(other, later)  # type: ignore[arg-type]


def test_process_0_waits_until_all_parts_are_checked_before_it_charges(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Alone, value: str) -> list[str]:
        raise LostError("Process 1 has failed: a shard is damaged.", "Mend it.", code="lost")

    monkeypatch.setattr(Alone, "gathered", lost)
    with pytest.raises(LostError, match="a shard is damaged"):
        plan(request(features, Alone()), Observer())
    assert charges(features) == ()


def test_without_noise_there_are_no_bits(features: FeatureSet) -> None:
    alone, facts = Alone(), facts_of(features)
    for grid in (Lattice(14), Reals()):
        Leader(alone).begin(SPLIT, facts, grid, None, None)  # type: ignore[arg-type]
    assert [each["bits"] for each in alone.asked] == [14, None]


def test_a_pass_over_a_part_reaches_to_the_last_record_of_a_person_that_counts() -> None:
    facts = Facts(n=10**5, m=2, d=3, rows=10**6)
    behind = passes.block_rows(facts) + persons.MOST
    assert reached(Part(500, 2000, 400), facts) == range(400, 2000 + behind)
    assert reached(Part(500, 10**6 - 1, 400), facts) == range(400, 10**6)
    alone = Facts(n=10**6, m=2, d=3)
    assert reached(Part(500, 2000, 500), alone) == range(500, 2000)
