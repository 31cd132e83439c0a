"""A training of several processes: what process 0 asks, what the others do, and what is said when one is lost."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extensions.engine import leader as serving
from dpfc_cli.extensions.engine.leader import Leader, digest_of, reached, serve, verify_part
from dpfc_cli.extensions.engine.processes import LostError
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import SPLIT, facts_of
from dpfc_cli.privacy import parts, passes, persons
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.passes import Part
from dpfc_cli.privacy.sums import Summed
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.run import run
from dpfc_cli.training.train import plan
from tests import instead
from tests.privacy.test_parts import Threads
from tests.support import feature_set, refuses, shards_of
from tests.training.requests import charges, states


class Alone:
    """The only process of a training. Another one is missed as soon as `asks` is asked."""

    number = 0

    def __init__(self, asks: str = "nothing", count: int = 1, stop: BaseException | None = None) -> None:
        self._asks, self.count = asks, count
        self._stop = stop or LostError("Process 1 has failed.", "Start them again.", code="lost")
        self.told: list[bytes] = []
        self.asked: list[dict[str, Any]] = []

    def tell(self, message: bytes) -> None:
        asked = json.loads(message) if message[:1] == b"{" else {"ask": ""}
        if asked["ask"] == self._asks:
            raise self._stop
        self.told.append(message)
        self.asked += [asked] if asked["ask"] else []

    def gathered(self, value: str) -> list[str]:
        return [value]

    def added(self, array: np.ndarray) -> np.ndarray:
        return array


def request(features: FeatureSet, processes: Alone) -> Request:
    return Request(
        features=features,
        folder=features.folder.parent / "heads",
        epsilon=2.0,
        method="dp-fc",
        steps=3,
        summing=Leader(processes),  # type: ignore[arg-type]
    )


class Other:
    """Process 1 of two. It is asked one thing, and then the training ends."""

    number, count = 1, 2

    def __init__(self, features: FeatureSet, ask: str, **more: Any) -> None:
        facts = dataclasses.asdict(facts_of(features))
        asked = {"ask": ask, "split": SPLIT, "facts": facts, **more}
        # After sums it is told of their end.
        end = [b""] * (ask == "sum")
        self.left = [json.dumps(asked).encode(), *end, json.dumps({"ask": "end"}).encode()]
        self.failures: list[BaseException] = []

    def told(self) -> bytes:
        return self.left.pop(0)

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
    with refuses("bad-value") as refused:
        serve(other, features)  # type: ignore[arg-type]
    assert other.failures == [refused.value]


def test_a_process_stops_where_another_set_takes_the_place_of_its_own(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def followed(channel: parts.Channel, over: Summed) -> None:
        path = features.folder / MANIFEST
        assert next(over.stream(50))[0] == 50
        path.write_text(path.read_text().replace('"versions": {', '"versions": {"other": "1", '))
        next(over.stream(50))

    instead.block_rows(monkeypatch, 50)
    monkeypatch.setattr(parts, "follow", followed)
    with refuses("conflict"):
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
    with refuses("conflict"):
        serve(other, later)  # type: ignore[arg-type]


def test_process_0_waits_until_all_parts_are_checked_before_it_charges(features: FeatureSet) -> None:
    class Lost(Alone):
        def gathered(self, value: str) -> list[str]:
            raise LostError("Process 1 has failed: a shard is damaged.", "Mend it.", code="lost")

    with pytest.raises(LostError, match="a shard is damaged"):
        plan(request(features, Lost()), Observer())
    assert charges(features) == ()


def test_a_pass_over_a_part_reaches_to_the_last_record_of_a_person_that_counts() -> None:
    facts = Facts(n=10**5, m=2, d=3, rows=10**6)
    behind = passes.block_rows(facts) + persons.MOST
    assert reached(Part(500, 2000, 400), facts) == range(400, 2000 + behind)
    assert reached(Part(500, 10**6 - 1, 400), facts) == range(400, 10**6)
    alone = Facts(n=10**6, m=2, d=3)
    assert reached(Part(500, 2000, 500), alone) == range(500, 2000)


def test_a_process_that_is_lost_before_the_first_sum_leaves_a_training_that_says_that_it_is_charged(
    features: FeatureSet,
) -> None:
    checked = plan(request(features, Alone("sum")), Observer())
    with pytest.raises(LostError) as lost:
        run(checked, Observer())
    assert any("stays charged" in note for note in lost.value.__notes__)
    assert states(features) == ["stopped"]
    again = run(plan(request(features, Alone()), Observer()), Observer())
    assert (states(features), again.path.exists()) == (["written"], True)


def test_before_the_charge_the_others_are_asked_to_check_their_parts_and_nothing_else(features: FeatureSet) -> None:
    alone = Alone()
    plan(request(features, alone), Observer())
    assert [each["ask"] for each in alone.asked] == ["verify"]
    assert len(alone.told) == 1


@pytest.mark.parametrize("stop", [None, KeyboardInterrupt()], ids=["lost", "Ctrl-C"])
def test_what_comes_after_the_head_was_written_changes_nothing(
    features: FeatureSet, stop: BaseException | None
) -> None:
    """To start such a training again would charge a second one."""
    alone = Alone("end", stop=stop)
    trained = run(plan(request(features, alone), Observer()), Observer())
    Leader(alone).end()  # type: ignore[arg-type]
    assert trained.path.exists()


def test_the_records_of_a_person_who_goes_on_behind_a_part_are_checked_with_it(tmp_path: Path) -> None:
    """Copies may differ, and no other process adds these records."""
    n = 2 * 8192
    persons, labels = (np.arange(n) + 1) // 2, np.arange(n) % 2
    np.savez(tmp_path / "raw.npz", train_x=np.zeros((n, 1), np.float32), train_y=labels, train_groups=persons)
    with shards_of(n // 2):
        features = feature_set(tmp_path / "raw.npz", tmp_path / "set", classes=("a", "b"))
    _, second = (tmp_path / "set" / shard.file for shard in features.split(SPLIT).shards)
    verify_part(Alone(count=2), features, SPLIT, facts_of(features))  # type: ignore[arg-type]
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    with refuses("damaged", path=str(second)):
        verify_part(Alone(count=2), features, SPLIT, facts_of(features))  # type: ignore[arg-type]


class Met(Threads):
    """A process that is a thread. If it fails, the others are not left waiting."""

    def failed(self, error: BaseException) -> None:
        self._room.barrier.abort()


def test_a_process_with_another_set_or_a_damaged_one_adds_nothing(features: FeatureSet) -> None:
    digest = digest_of(features)
    serve(same := Other(features, "verify", manifest=digest), features)  # type: ignore[arg-type]
    assert same.left == []
    # Nor one that is asked for no sum, and keeps nothing.
    serve(idle := Other(features, "sum", bits=14, side=None, memory=None), features)  # type: ignore[arg-type]
    assert idle.left == []
    (shard,) = features.split(SPLIT).shards
    data = bytearray((features.folder / shard.file).read_bytes())
    data[-1] ^= 1
    (features.folder / shard.file).write_bytes(data)
    for manifest, code in ((digest[::-1], "conflict"), (digest, "damaged")):
        with refuses(code) as refused:
            serve(asked := Other(features, "verify", manifest=manifest), features)  # type: ignore[arg-type]
        assert asked.failures == [refused.value]
