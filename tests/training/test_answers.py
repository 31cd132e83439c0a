"""A training that was stopped goes on under its row: nothing is charged twice, and no release has two answers."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.features.locks import claimed
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import curator, forms
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training import answers as answers_module
from dpfc_cli.training import charge as charge_module
from dpfc_cli.training import ledger
from dpfc_cli.training.answers import Answers, DamagedError
from tests.training.stopped import STEPS, Listener, assert_one_answer_each, failing, kept, killed_at, rows, train


@pytest.mark.parametrize("number", range(STEPS + 1))
def test_a_killed_training_goes_on_where_it_stopped_and_charges_nothing_more(
    number: int, features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(number, monkeypatch)
    assert rows(features) == ["charged"]
    before = dict(seen)
    assert sorted(before) == list(range(number))
    seen.clear()

    observer = Listener()
    trained = train(features, observer)
    assert rows(features) == ["written"]
    assert observer.asked == []
    assert f"{number} of its {STEPS + 1} releases have their answers" in observer.said[-1]
    after = dict(seen)
    assert sorted(after) == list(range(STEPS + 1))
    assert_one_answer_each(before, after)
    assert kept() == []
    assert [path.name for path in Path("heads").iterdir()] == [trained.path.name]
    (row,) = ledger.read(ledger.ledger_path(features.folder))
    assert (row.head, row.sha256, row.at) == (trained.path.name, trained.sha256, trained.head.card["date"])
    assert dpfc.verify(trained.path, ledger=ledger.ledger_path(features.folder)).contradictions == []


@pytest.mark.parametrize("made", range(5))
def test_a_training_that_was_killed_between_two_pieces_goes_on_with_those_that_were_made(
    made: int, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dp-ls: a Gram matrix, three pieces of one class each, and class sums."""
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    kept, recalled, drawn = dict[int, np.ndarray](), dict[int, np.ndarray](), list[int]()
    keep, recall, draw_noise = Answers.keep, Answers.recall, curator.draw_noise

    def keeping(self: Answers, number: int, answer: np.ndarray) -> None:
        assert number not in kept, f"{number} has two answers"
        kept[number] = answer.copy()
        keep(self, number, answer)

    def recalling(self: Answers, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        found = recall(self, number, shape)
        if found is not None:
            recalled[number] = found
        return found

    monkeypatch.setattr(Answers, "keep", keeping)
    monkeypatch.setattr(Answers, "recall", recalling)
    killed_at(made, monkeypatch, method="dp-ls")
    before = dict(kept)
    # Before the first piece it is kept which query they are of.
    assert sorted(before) == list(range(made + (made > 0)))
    assert recalled == {}
    monkeypatch.setattr(curator, "draw_noise", lambda *given: (drawn.append(1), draw_noise(*given))[1])
    observer = Listener()
    trained = train(features, observer, method="dp-ls")
    assert len(drawn) == 5 - made
    assert sorted(kept) == list(range(6))
    assert recalled.keys() == before.keys()
    assert all(np.array_equal(recalled[number], before[number]) for number in before)
    assert f"{[0, 1, 1, 1, 2][made]} of its 3 releases have their answers" in observer.said[-1]
    assert rows(features) == ["written"]
    assert dpfc.verify(trained.path, ledger=ledger.ledger_path(features.folder)).contradictions == []


def test_an_answer_that_is_drawn_again_would_be_found(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "keep", lambda self, number, answer: None)
        killed_at(2, monkeypatch)
    before = dict(seen)
    seen.clear()
    train(features)
    with pytest.raises(AssertionError, match="has two answers"):
        assert_one_answer_each(before, dict(seen))


def test_a_program_that_forgets_to_look_for_an_answer_gets_no_second_one(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    seen.clear()
    monkeypatch.setattr(Answers, "recall", lambda self, number, shape: None)
    with pytest.raises(RuntimeError, match="release 0 would have a second answer"):
        train(features)
    assert seen == []


def test_an_answer_is_on_disk_before_it_is_seen(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced after digest and answer, marked, and synced again."""
    order: list[str] = []
    sync, write, release = os.fsync, os.pwrite, curator.Curator.release
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("sync"), sync(file))[1])
    monkeypatch.setattr(
        os,
        "pwrite",
        lambda file, data, at: (order.append("mark" if data == b"\n" else "write"), write(file, data, at))[1],
    )

    def watched(self: curator.Curator, query: Query) -> np.ndarray:
        order.clear()
        answer = release(self, query)
        assert order == ["write", "write", "sync", "mark", "sync"]
        return answer

    monkeypatch.setattr(curator.Curator, "release", watched)
    train(features)
    assert order


ANSWERS = [np.arange(3.0), np.eye(2)]
PLAN: Any = SimpleNamespace(releases=[SimpleNamespace(parts=[answer.shape]) for answer in ANSWERS])


def filled(path: Path) -> list[int]:
    """Fill a file with the answers. Where it ended before the first one, and after each."""
    file = claimed(path)
    assert file is not None
    header = dict.fromkeys(("training", "at", "head", "ledger"), "") | {"file": str(path.stat().st_ino)}
    path.write_bytes(json.dumps(header).encode() + b"\n")
    answers, ends = Answers(path, file), [path.stat().st_size]
    for number, answer in enumerate(ANSWERS):
        answers.keep(number, answer)
        ends.append(path.stat().st_size)
    answers.close()
    return ends


def opened(path: Path) -> Answers:
    file = claimed(path)
    assert file is not None
    return Answers(path, file)


def test_a_file_that_was_cut_anywhere_has_the_answers_that_were_marked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ends = filled(path)
    data = path.read_bytes()
    for end in range(ends[0], len(data) + 1):
        # A disk may have put zeros where something was to be, as far as the end of that answer.
        upper = next((each for each in ends if each >= end), len(data))
        for left in {data[:end], data[:end].ljust(upper, b"\0")} if end not in ends else {data[:end]}:
            path.write_bytes(left)
            again = opened(path)
            again.find(PLAN)
            whole = sum(end >= each for each in ends[1:])
            assert again.answered == whole
            for number, answer in enumerate(ANSWERS):
                found = again.recall(number, answer.shape)
                assert (found is None) == (number >= whole)
                if found is None:
                    again.keep(number, answer)
                else:
                    assert np.array_equal(found, answer)
            again.close()
            # What was cut is written again, and nothing of the rest is left.
            assert path.read_bytes() == data


def test_any_change_of_what_was_handed_out_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ends = filled(path)
    data = path.read_bytes()
    for at in range(ends[0], len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[at] ^= bit
            path.write_bytes(changed)
            again = opened(path)
            with pytest.raises(DamagedError, match=f"answer {int(at >= ends[1])} has changed"):
                again.find(PLAN)
            again.close()
    for rest in (1, len(data)):
        # A mark is gone, and something follows it: the answer was handed out.
        path.write_bytes(data[: ends[1] - 1] + b"\0" + data[ends[1] :][:rest])
        again = opened(path)
        with pytest.raises(DamagedError, match="answer 0 has changed"):
            again.find(PLAN)
        again.close()
    path.write_bytes(data + b"more")
    again = opened(path)
    with pytest.raises(DamagedError, match="more answers than releases"):
        again.find(PLAN)
    again.close()


@contextmanager
def failing_from(number: int, monkeypatch: pytest.MonkeyPatch, *calls: tuple[Any, str]) -> Iterator[None]:
    """From the answer of that number on these calls fail."""
    keep = Answers.keep

    def kept_or_not(self: Answers, at: int, answer: np.ndarray) -> None:
        with monkeypatch.context() as patch:
            for place, name in calls if at >= number else ():
                patch.setattr(place, name, failing)
            keep(self, at, answer)

    with monkeypatch.context() as patch:
        patch.setattr(Answers, "keep", kept_or_not)
        yield


def test_an_answer_that_is_gone_since_it_was_found_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ends = filled(path)
    again = opened(path)
    again.find(PLAN)
    os.truncate(path, ends[1])
    with pytest.raises(OSError, match="ends early"):
        again.recall(1, ANSWERS[1].shape)
    again.close()


def test_what_cannot_be_kept_is_given_up_on_disk_before_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the file must not come back: the answers that follow are not in it."""
    path = tmp_path / "file"
    filled(path)
    again, done = opened(path), list[str]()
    again.find(PLAN)
    truncate, unlink = os.ftruncate, Path.unlink
    monkeypatch.setattr(os, "pwrite", failing)
    monkeypatch.setattr(os, "fsync", lambda file: done.append("sync the file"))
    monkeypatch.setattr(answers_module, "sync", lambda folder: done.append(f"sync {folder.name}"))
    monkeypatch.setattr(os, "ftruncate", lambda file, size: (done.append(f"cut at {size}"), truncate(file, size))[1])
    monkeypatch.setattr(Path, "unlink", lambda self, **more: (done.append("unlink"), unlink(self, **more))[1])
    again.keep(len(ANSWERS), ANSWERS[0])
    assert done == ["cut at 0", "sync the file", "unlink", f"sync {tmp_path.name}"]
    assert not again.held


@pytest.mark.parametrize("left", ["nothing", "an empty file", "no file"])
def test_a_full_disk_costs_the_way_back_and_not_the_training(
    left: str, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    also = {"nothing": (), "an empty file": ((Path, "unlink"),), "no file": ((os, "ftruncate"),)}[left]
    with failing_from(2, monkeypatch, (os, "pwrite"), *also):
        train(features)
    assert rows(features) == ["written"]
    assert kept() == []
    train(features)
    assert rows(features) == ["written", "written"]


def test_an_answer_that_cannot_be_kept_is_not_seen_if_others_are_on_disk(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays, and the same command goes on with it. So the answers that it does not have must stay unseen."""
    with (
        failing_from(2, monkeypatch, (os, "pwrite"), (os, "ftruncate"), (Path, "unlink")),
        pytest.raises(dpfc.UserError, match="can neither be written nor removed") as refused,
    ):
        train(features)
    assert "The same command goes on" in refused.value.__notes__[0]
    before = dict(seen)
    assert sorted(before) == [0, 1]
    seen.clear()
    train(features)
    assert_one_answer_each(before, dict(seen))
    assert rows(features) == ["written"]


def test_who_stops_a_training_that_cannot_go_on_is_not_told_that_it_does(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    real = curator.draw_noise

    def dying(*given: Any) -> np.ndarray:
        drawn.append(1)
        if len(drawn) == 4:
            raise KeyboardInterrupt
        return real(*given)

    with failing_from(2, monkeypatch, (os, "pwrite")), monkeypatch.context() as patch:
        patch.setattr(curator, "draw_noise", dying)
        with pytest.raises(KeyboardInterrupt) as end:
            train(features)
    assert "stays charged. No head was written." in end.value.__notes__[0]
    assert "goes on" not in end.value.__notes__[0]


@pytest.mark.parametrize(
    ("call", "does"),
    [("claimed", failing), ("claimed", lambda path: None), ("sync", failing)],
    ids=["no place", "in use", "no disk"],
)
def test_where_no_file_can_be_kept_the_training_runs_without(
    call: str, does: Any, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, call, does)
    train(features)
    assert (kept(), rows(features)) == ([], ["written"])


def test_heads_without_a_guarantee_keep_no_answers(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "begun", lambda *given: pytest.fail("answers were kept"))
    monkeypatch.setattr(charge_module, "begun", lambda *given: pytest.fail("answers were kept"))
    train(features, seed=1)
    train(features, epsilon=None, non_private=True)
    assert kept() == []


def test_answers_are_for_their_owner_alone(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(2, monkeypatch)
    assert kept()[0].stat().st_mode & 0o777 == 0o600
