"""A training that was stopped goes on under its row: nothing is charged twice, and no release has two answers."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.locks import claimed
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import curator, forms
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training import answers as answers_module
from dpfc_cli.training import charge as charge_module
from dpfc_cli.training import ledger, run
from dpfc_cli.training.answers import SUFFIX, Answers, DamagedError
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.run import Trained
from tests.support import blobs

STEPS = 4
"""dp-fc releases a Gram matrix before them."""


class Listener(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(text)

    def confirm(self, charge: str) -> bool:
        self.asked.append(charge)
        return True


def train(features: FeatureSet, observer: Observer | None = None, **given: Any) -> Trained:
    chosen = {} if "method" in given else {"method": "dp-fc", "steps": STEPS}
    wanted: dict[str, Any] = {**chosen, "epsilon": 1.0, "by": "me", **given}
    return dpfc.train(features, observer=observer or Listener(), **wanted)


def rows(features: FeatureSet) -> list[str]:
    return [row.state for row in ledger.read(ledger.ledger_path(features.folder))]


def kept(folder: str = "heads") -> list[Path]:
    return sorted(Path(folder).glob(f".*{SUFFIX}"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, np.ndarray]]:
    """Each answer that a method sees, with the number of its release."""
    found: list[tuple[int, np.ndarray]] = []
    release = curator.Curator.release

    def watched(self: curator.Curator, query: Query) -> np.ndarray:
        number = self.released
        found.append((number, release(self, query).copy()))
        return found[-1][1]

    monkeypatch.setattr(curator.Curator, "release", watched)
    return found


class Killed(BaseException):
    """Stops a process where nothing else does."""


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, where: str = "draw_noise", **given: Any) -> None:
    """Kill the next training when it draws the noise of that release. Its process settles nothing."""
    real, drawn = getattr(curator, where), [0]

    def dying(*arguments: Any) -> Any:
        drawn[0] += 1
        if drawn[0] == number + 1:
            raise Killed
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(curator, where, dying)
        patch.setattr(run, "_settled", lambda *given: None)
        features = FeatureSet(Path("set"))
        with pytest.raises(Killed):
            train(features, **given)


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


def assert_one_answer_each(before: dict[int, np.ndarray], after: dict[int, np.ndarray]) -> None:
    for number in before.keys() & after.keys():
        assert np.array_equal(before[number], after[number]), f"release {number} has two answers"


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
    path.write_bytes(data + b"more")
    again = opened(path)
    with pytest.raises(DamagedError, match="more answers than releases"):
        again.find(PLAN)
    again.close()


def test_a_changed_answer_stops_the_training_from_going_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new answer in its place would be a second one. So a new training is charged, and that is said."""
    killed_at(2, monkeypatch)
    (path,) = kept()
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    observer = Listener()
    train(features, observer)
    assert rows(features) == ["charged", "written"]
    assert any("cannot go on" in text and "has changed" in text for text in observer.said)


def test_a_copy_of_the_file_does_not_count(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would draw the rest of the answers, each its own."""
    killed_at(2, monkeypatch)
    (path,) = kept()
    copy = Path("heads", f".copy.0123456789abcdef{SUFFIX}")
    shutil.copyfile(path, copy)
    # Both are there at once, so they cannot have one number.
    path.rename("elsewhere")
    train(features)
    assert rows(features) == ["charged", "written"]
    Path("elsewhere").rename(path)
    copy.unlink()
    train(features)
    assert rows(features) == ["written", "written"]


OTHERS: dict[str, dict[str, Any]] = {
    "options": {"damping": 0.5},
    "steps": {"steps": STEPS + 1},
    "noise": {"epsilon": 1.5},
    "δ": {"delta": 1e-6},
    "purpose": {"purpose": "another"},
    "somebody else": {"by": "you"},
    "method": {"method": "dp-sgd"},
    "name of the head": {"out": "heads/other.safetensors"},
    "no claim": {"seed": 1, "out": "heads/other.research.safetensors"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_command_is_another_training(
    other: dict[str, Any], features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    train(features, **other)
    assert rows(features) == ["charged", "written"]
    assert len(kept()) == 1
    train(features)
    assert rows(features) == ["written", "written"]


def test_another_version_does_not_go_on(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(2, monkeypatch)
    monkeypatch.setattr(answers_module, "__version__", "0")
    train(features)
    assert rows(features) == ["charged", "written"]


def test_a_training_that_runs_is_left_alone(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(2, monkeypatch)
    held = claimed(kept()[0])
    assert held is not None
    train(features)
    assert rows(features) == ["charged", "written"]
    os.close(held)
    train(features)
    assert rows(features) == ["written", "written"]


def test_a_file_of_a_training_that_was_not_charged_is_removed(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "charge", dying)
        patch.setattr(Answers, "remove", lambda self: self.close())
        with pytest.raises(Killed):
            train(features)
    assert (len(kept()), rows(features)) == (1, [])
    train(features)
    assert (kept(), rows(features)) == ([], ["written"])


@pytest.mark.parametrize("given", [{}, {"out": "heads/mine.safetensors"}], ids=["own name", "--out"])
@pytest.mark.parametrize("settled", [False, True], ids=["the row says nothing", "the row says written"])
def test_a_training_that_was_killed_after_its_head_has_one_head(
    settled: bool, given: dict[str, Any], features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "remove", lambda self: self.close())
        if not settled:
            patch.setattr(run, "_settled", lambda *given: None)
        first = train(features, **given)
    assert rows(features) == ["written" if settled else "charged"]
    if settled and given:
        with pytest.raises(dpfc.UserError, match="exists"):
            train(features, **given)
        return
    second = train(features, **given)
    assert kept() == []
    if settled:
        assert rows(features) == ["written", "written"]
        assert second.path != first.path
    else:
        assert rows(features) == ["written"]
        assert (second.path, second.sha256) == (first.path, first.sha256)


def test_what_a_killed_training_left_beside_its_head_is_removed(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of a training whose head is to have the same name."""
    killed_at(2, monkeypatch)
    (left,) = (path.with_suffix(".tmp") for path in kept())
    left.touch()
    other = left.with_name(f"{left.name.removesuffix(left.suffixes[-2] + '.tmp')}.0123456789abcdef.tmp")
    other.touch()
    trained = train(features)
    assert sorted(path.name for path in Path("heads").iterdir()) == sorted([other.name, trained.path.name])


def test_a_cap_that_is_used_up_does_not_stop_what_was_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    dpfc.set_cap(features, epsilon=1.2, delta=1e-5, by="me")
    killed_at(3, monkeypatch)
    with pytest.raises(dpfc.UserError, match="cap"):
        train(features, purpose="another")
    train(features)
    assert rows(features) == ["written"]


def failing(*given: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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


def test_other_features_of_the_same_records_are_another_training(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    manifest = features.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"backbone": {', '"backbone": {"made": "otherwise", '))
    train(FeatureSet(features.folder))
    assert rows(features) == ["charged", "written"]


def test_who_types_another_command_is_told_of_a_training_that_was_stopped(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    observer = Listener()
    train(features, observer, purpose="another")
    assert any("was stopped. It goes on when its own command is typed again" in text for text in observer.said)


def test_a_tuned_training_goes_on_under_a_cap_that_is_used_up(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(120, 5, 3, seed=4)
    np.savez("open.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    known = features.folder.with_name("open")
    import_features(Path("open.npz"), known, classes=("a", "b", "c"))
    dpfc.set_cap(features, epsilon=1.2, delta=1e-5, by="me")
    tuned: dict[str, Any] = {"tune_on": FeatureSet(known), "method": "dp-sgd", "steps": 2}

    def dying(*given: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("dpfc_cli.training.train.run", dying)
        with pytest.raises(Killed):
            train(features, **tuned)
    assert rows(features) == ["charged"]
    with pytest.raises(dpfc.UserError, match="cap"):
        train(features, purpose="another", **tuned)
    train(features, **tuned)
    assert rows(features) == ["written"]


def test_where_no_file_can_be_kept_the_training_runs_without(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "claimed", failing)
    train(features)
    assert rows(features) == ["written"]


def test_heads_without_a_guarantee_keep_no_answers(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "begun", lambda *given: pytest.fail("answers were kept"))
    monkeypatch.setattr(charge_module, "begun", lambda *given: pytest.fail("answers were kept"))
    train(features, seed=1)
    train(features, epsilon=None, non_private=True)
    assert kept() == []


def test_answers_are_for_their_owner_alone(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(2, monkeypatch)
    assert kept()[0].stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [b"", b"{}", b"{}\n", b"[]\n", b"\xff\n", b'{"training": 1}\n'])
def test_a_file_of_another_kind_is_left_alone(data: bytes, features: FeatureSet) -> None:
    Path("heads").mkdir()
    path = Path("heads", f".x.0123456789abcdef{SUFFIX}")
    path.write_bytes(data)
    train(features)
    assert path.read_bytes() == data


def test_a_training_on_other_records_of_that_name_is_left_alone(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    shutil.rmtree(features.folder)
    x, y = blobs(120, 5, 3, seed=9)
    np.savez("raw.npz", train_x=x, train_y=y)
    import_features(Path("raw.npz"), features.folder, classes=("a", "b", "c"))
    train(FeatureSet(features.folder))
    assert rows(features) == ["charged", "written"]
    assert len(kept()) == 1
