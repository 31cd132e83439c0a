"""Every random word of every private path comes from the system, and is used once.

The tests stand in for the system at one place, `noise.urandom`. They know each word that was handed out. From these
words alone, in their order, a curator of their own must make the same head. So noise from a seed, from another source,
or from words that were used before is seen on every path, and so is a release that is drawn twice.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.evaluation.private import prepare, release
from dpfc_cli.evaluation.request import PrivateScoring
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy import noise
from dpfc_cli.privacy.curator import Curator, Unprotected
from dpfc_cli.privacy.noise import SystemBits
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.run import run
from dpfc_cli.training.train import plan
from tests import instead
from tests.conftest import losses_in
from tests.support import blobs, feature_set
from tests.training.requests import states

N, D, M = 150, 5, 3
BLOCK = 32
"""Records read at a time: a pass takes several blocks, and two processes have some each."""


class Killed(BaseException):
    """Stops a process where nothing else does."""


class System:
    """Stands in for the operating system.

    Attributes:
        handed: the words that were handed out, in order.
        last: it hands out so many words, and kills who asks for more.

    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._random, self._seed, self._patch = np.random.default_rng(seed), seed, monkeypatch
        self.handed, self.last = np.empty(0, np.uint64), sys.maxsize
        monkeypatch.setattr(noise, "urandom", self.urandom)

    def urandom(self, size: int) -> bytes:
        words = self._random.integers(2**64, size=size // 8, dtype=np.uint64)
        if len(self.handed) + len(words) > self.last:
            raise Killed
        self.handed = np.concatenate([self.handed, words])
        return words.tobytes()

    def again(self) -> "System":
        """A system with the same words."""
        return System(self._seed, self._patch)


class Given:
    """Bits that are these words, each once."""

    def __init__(self, words: np.ndarray) -> None:
        self._words, self.used = words, 0

    def words(self, count: int) -> np.ndarray:
        assert self.used + count <= len(self._words), "the system was not asked for so many words"
        self.used += count
        return self._words[self.used - count : self.used]


class Noted:
    """Answers that are not kept. It is noted how many words were used when each of them, or each piece, was made."""

    def __init__(self, bits: Given) -> None:
        self._bits, self.ends = bits, list[int]()

    def recall(self, number: int, shape: tuple[int, ...]) -> None:
        return None

    def keep(self, number: int, answer: np.ndarray) -> None:
        self.ends.append(self._bits.used)


def replayed(made: Calibrated, records: Unprotected, words: np.ndarray) -> tuple[Solution, list[int]]:
    """What a training makes of these words if it uses each of them once, and how many it used up to each answer."""
    noted, mechanism = Noted(bits := Given(words)), made.noise
    solution = made.method.solve(Curator(mechanism, records, bits, answers=noted), made.facts, made.options)
    assert bits.used == len(words), "words were handed out that no noise was made of"
    return solution, sorted(set(noted.ends))


def assert_made_of(words: np.ndarray, made: Calibrated, features: FeatureSet, head: dpfc.Head) -> list[int]:
    """The head is the one that follows from these words. Returns how many were used up to each answer."""
    stream = features.stream("train", groups=made.facts.rows is not None)
    solution, ends = replayed(made, Unprotected(stream), words)
    assert head.weight.tobytes() == solution.weight.astype(head.weight.dtype).tobytes()
    assert head.bias.tobytes() == solution.bias.astype(head.bias.dtype).tobytes()
    return ends


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """75 persons with two records each, and a test split."""
    monkeypatch.chdir(tmp_path)
    instead.block_rows(monkeypatch, BLOCK)
    # The accounting of samples takes a hundredth of the time, and claims a little less.
    losses_in(0.01)
    x, y = blobs(2 * N, D, M)
    arrays = {"train_x": x[:N], "train_y": y[:N], "test_x": x[N:], "test_y": y[N:]}
    for name, persons in (
        ("persons", {"train_groups": np.arange(N) // 2, "test_groups": np.arange(N, 2 * N)}),
        ("set", {}),
    ):
        np.savez("raw.npz", **arrays, **persons)  # type: ignore[arg-type]
        feature_set("raw.npz", tmp_path / name, classes=("a", "b", "c"), labels_per_record=1)
    return FeatureSet(Path("set"))


TRAININGS: dict[str, dict[str, Any]] = {
    "gram and gradients": {"method": "dp-fc", "steps": 2},
    "an answer in pieces": {"method": "dp-ls"},
    "the default": {"method": "dp-whitened", "steps": 2},
    "replace-one": {"method": "dp-ls", "adjacency": "replace-one"},
    "persons": {"method": "dp-fc", "steps": 2, "of": "persons"},
    "samples of persons": {"method": "dp-adam", "steps": 4, "sampling_rate": 0.3, "of": "persons"},
}


def request(given: Mapping[str, Any]) -> Request:
    known = {name: value for name, value in given.items() if name != "of"}
    features = FeatureSet(Path(given.get("of", "set")))
    return Request(features=features, folder=Path("heads"), noise_multiplier=3.0, again=True, **known)


def alone(wanted: Request) -> tuple[Calibrated, dpfc.Head]:
    """A training of one process."""
    checked = plan(wanted, Observer())
    return checked.calibrated, run(checked, Observer()).head


@pytest.mark.parametrize("training", TRAININGS)
def test_each_word_of_a_training_comes_from_the_system_once_even_if_it_was_killed(
    training: str, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_word_is_used_once(alone, training, monkeypatch)


def each_word_is_used_once(
    by: Callable[[Request], tuple[Calibrated, dpfc.Head]], training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two answers, and while the words of the last one are handed out."""
    if training == "an answer in pieces":
        instead.piece_bytes(monkeypatch, 1)
    wanted, system = request(TRAININGS[training]), System(1, monkeypatch)
    made, head = by(wanted)
    ends = assert_made_of(system.handed, made, wanted.features, head)
    for end, last in ((ends[0], ends[0]), (ends[-2], ends[-1] - 1)):
        system = system.again()
        system.last = last
        with monkeypatch.context() as patch:
            # A killed process says nothing more.
            instead.settle(patch)
            with pytest.raises(Killed):
                by(wanted)
        before, system.last = len(system.handed), sys.maxsize
        made, head = by(wanted)
        # What was handed out for an answer that was not kept is lost.
        assert_made_of(np.delete(system.handed, slice(end, before)), made, wanted.features, head)
    assert set(states(wanted.features)) == {"written"}


def test_each_word_of_a_private_evaluation_comes_from_the_system_once(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = alone(request(TRAININGS["gram and gradients"]))[1]
    for of in ("set", "persons"):
        asked = FeatureSet(Path(of))
        ready = prepare(PrivateScoring(head, asked, "test", epsilon=8.0))
        system = System(2, monkeypatch)
        found = release(ready)
        bits, mechanism = Given(system.handed), ready.planned.noise
        records = Unprotected(asked.stream("test", groups=ready.planned.facts.rows is not None))
        curator = Curator(mechanism, records, bits)
        (right, wrong), *_ = [curator.release(query)[0] for query in ready.queries]
        assert found.top1 == max(right, 0) / (max(right, 0) + max(wrong, 0))
        assert bits.used == len(system.handed) > 0


def test_no_word_is_taken_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(4, monkeypatch)
    bits = [SystemBits(), SystemBits()]
    found = [bits[number].words(count) for count in (1, 5, 0, 100_000) for number in (0, 1)]
    assert np.array_equal(np.concatenate(found), system.handed)


def test_a_copy_of_a_process_gets_words_of_its_own() -> None:
    """A process that forks has its memory twice."""
    code = """
import os
from dpfc_cli.privacy.noise import SystemBits
bits = SystemBits()
bits.words(1)
child = os.fork()
os.write(1, bits.words(4).tobytes())
child and os.waitpid(child, 0)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert len(said) == 64
    assert said[:32] != said[32:]
