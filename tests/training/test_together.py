"""A training of several processes, seen from process 0: what is said when another process is lost."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features import shards
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import passes
from dpfc_cli.processes import LostError
from dpfc_cli.training.distributed import Leader, digest_of, serve, verify_part
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import SPLIT, Privacy, Request, facts_of
from dpfc_cli.training.train import finish, plan
from tests.privacy.test_parts import LOST, Room, Threads
from tests.support import blobs
from tests.training.requests import states


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
        privacy=Privacy(epsilon=2.0),
        method="dp-fc",
        options={"steps": 3},
        leader=Leader(processes),  # type: ignore[arg-type]
    )


def test_a_process_that_is_lost_before_the_first_sum_leaves_a_training_that_says_that_it_is_charged(
    features: FeatureSet,
) -> None:
    checked = plan(request(features, Alone("sum")), Observer())
    with pytest.raises(LostError) as lost:
        finish(checked, Observer())
    assert any("stays charged" in note for note in lost.value.__notes__)
    assert states(features) == ["stopped"]
    again = finish(plan(request(features, Alone()), Observer()), Observer())
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
    asked = request(features, Alone("end", stop=stop))
    trained = finish(plan(asked, Observer()), Observer())
    assert asked.leader is not None
    asked.leader.end()
    assert trained.path.exists()


def test_the_records_of_a_person_who_goes_on_behind_a_part_are_checked_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies may differ, and no other process adds these records."""
    monkeypatch.setattr(shards, "SHARD_ROWS", 8192)
    n = 2 * 8192
    persons, labels = (np.arange(n) + 1) // 2, np.arange(n) % 2
    np.savez(tmp_path / "raw.npz", train_x=np.zeros((n, 1), np.float32), train_y=labels, train_groups=persons)
    import_features(tmp_path / "raw.npz", tmp_path / "set", classes=("a", "b"))
    features = FeatureSet(tmp_path / "set")
    _, second = (tmp_path / "set" / shard.file for shard in features.split(SPLIT).shards)
    verify_part(Alone(count=2), features, SPLIT, facts_of(features))  # type: ignore[arg-type]
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    with pytest.raises(UserError, match=second.name):
        verify_part(Alone(count=2), features, SPLIT, facts_of(features))  # type: ignore[arg-type]


class Met(Threads):
    """A process that is a thread. If it fails, the others are not left waiting."""

    def failed(self, error: BaseException) -> None:
        self._room.barrier.abort()


@pytest.mark.parametrize("by_person", [False, True])
def test_two_processes_train_the_head_of_one(by_person: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passes, "block_rows", lambda facts: 64)
    x, y = blobs(120, 5, 3)
    persons: dict[str, Any] = {"train_groups": np.arange(120) // 3} if by_person else {}
    np.savez("raw.npz", train_x=x, train_y=y, **persons)
    features = import_features("raw.npz", "set", classes=("a", "b", "c")).features
    wanted = Request(
        features=features,
        folder=Path("heads"),
        privacy=Privacy(epsilon=2.0, seed=1),
        method="dp-fc",
        options={"steps": 2},
    )
    alone = finish(plan(wanted, Observer()), Observer())
    first, second = (Met(room, number) for room in [Room(2)] for number in range(2))
    with ThreadPoolExecutor() as pool:
        other = pool.submit(serve, second, features)  # type: ignore[arg-type]
        leader = Leader(first)  # type: ignore[arg-type]
        made = finish(plan(replace(wanted, leader=leader), Observer()), Observer())
        leader.end()
        other.result(LOST)
    assert second.added_once == 3
    assert np.array_equal(made.head.weight, alone.head.weight)


def test_a_process_with_another_set_or_a_damaged_one_adds_nothing(features: FeatureSet) -> None:
    class Asked:
        """Process 1 of two. It is asked to check its part, and no more."""

        number, count = 1, 2

        def __init__(self, manifest: str) -> None:
            facts = dataclasses.asdict(facts_of(features))
            asked = {"ask": "verify", "manifest": manifest, "split": SPLIT, "facts": facts}
            self.left = [json.dumps(each).encode() for each in (asked, {"ask": "end"})]
            self.failures = list[BaseException]()

        def told(self) -> bytes:
            return self.left.pop(0)

        def gathered(self, value: str) -> list[str]:
            return [value]

        def failed(self, error: BaseException) -> None:
            self.failures.append(error)

    digest = digest_of(features)
    serve(same := Asked(digest), features)  # type: ignore[arg-type]
    assert same.left == []
    (shard,) = features.split(SPLIT).shards
    data = bytearray((features.folder / shard.file).read_bytes())
    data[-1] ^= 1
    (features.folder / shard.file).write_bytes(data)
    for manifest, says in ((digest[::-1], "is not the feature set of process 0"), (digest, shard.file)):
        with pytest.raises(UserError, match=says) as refused:
            serve(asked := Asked(manifest), features)  # type: ignore[arg-type]
        assert asked.failures == [refused.value]
