"""A training that was stopped goes on under its charge: nothing is charged twice, no release has two answers, and one
charge pays for one training.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.features import hdf5, reader
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.folders import LEDGER, LEDGER_LOCKS
from dpfc_cli.heads import head as head_module
from dpfc_cli.kernels import products
from dpfc_cli.ledger import answers as answers_module
from dpfc_cli.ledger import file as ledger_file
from dpfc_cli.ledger.answers import Answers
from dpfc_cli.ledger.facts import Outcome
from dpfc_cli.ledger.merge import merge_ledgers
from dpfc_cli.methods import whitened
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training import check, run
from dpfc_cli.training.charged import Charged
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.train import plan
from tests import instead
from tests.support import blobs, feature_set, other_source, refuses, replace, shards_of
from tests.training.conftest import features, seen
from tests.training.requests import charges, ledger, states
from tests.training.stopped import STEPS, Listener, assert_one_answer_each, failing, kept, killed_at, train

__all__ = ["features", "seen"]


def heads() -> list[str]:
    return sorted(path.name for path in Path("heads").glob("*.safetensors"))


def agrees(path: Path) -> bool:
    return dpfc.verify(path, ledger=LEDGER).contradictions == []


def answers(patch: pytest.MonkeyPatch, **methods: Any) -> None:
    """Answers are kept, or recalled, so."""
    for name, method in methods.items():
        patch.setattr(Answers, name, method)


# Going on


def test_a_stopped_training_goes_on_and_is_never_charged_twice(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It charges nothing more. With the same noise its head is the same, but for its date and its charge."""
    draw, drawn = curator.draw_noise, list[Query]()

    def noise(query: Query, shape: tuple[int, ...], sigma: int, _: Bits) -> np.ndarray:
        drawn.append(query)
        return draw(query, shape, sigma, SeededBits(1))

    instead.draw_noise(monkeypatch, noise)
    whole = train(features).head
    for number in range(STEPS + 1):
        seen.clear()
        killed_at(number, monkeypatch)
        assert states(features)[number + 1 :] == ["charged"]
        before = dict(seen)
        assert sorted(before) == list(range(number))
        seen.clear()
        drawn.clear()

        observer = Listener()
        trained = train(features, observer)
        assert states(features) == ["written"] * (number + 2)
        assert observer.asked == []
        assert f"{number} of its {STEPS + 1} releases have their answers" in observer.said[-1]
        after = dict(seen)
        assert sorted(after) == list(range(STEPS + 1))
        assert len(drawn) == STEPS + 1 - number
        assert_one_answer_each(before, after)
        assert (kept(), len(heads())) == ([], number + 2)
        made = charges(features)[-1]
        assert (made.head, made.at) == (trained.path.name, trained.head.card.date)
        assert ledger(features).written(trained.sha256) == [made]
        assert agrees(trained.path)
        assert (trained.head.weight.tobytes(), trained.head.bias.tobytes()) == (
            whole.weight.tobytes(),
            whole.bias.tobytes(),
        )
        for card in (whole.card, trained.head.card):
            assert replace(card, date="", ledger=None) == replace(whole.card, date="", ledger=None)


def test_each_time_that_it_goes_on_the_ledger_says_how_many_answers_there_were(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 1, 0):
        killed_at(number, monkeypatch)
    train(features)
    outcomes = ledger(features).all(Outcome)
    assert [(each.state, each.answers) for each in outcomes] == [
        ("resumed", 2), ("resumed", 3), ("resumed", 3), ("written", STEPS + 1),
    ]  # fmt: skip
    assert [each.after for each in outcomes] == [None, *(each.id for each in outcomes[:-1])]
    assert len(charges(features)) == 1


def test_a_training_that_was_killed_between_two_pieces_goes_on_with_those_that_were_made(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dp-ls: a Gram matrix, three pieces of one class each, and class sums."""
    instead.piece_bytes(monkeypatch, 1)
    kept_, recalled, drawn = dict[int, np.ndarray](), dict[int, np.ndarray](), list[int]()
    keep, recall, draw_noise = Answers.keep, Answers.recall, curator.draw_noise

    def keeping(self: Answers, number: int, answer: np.ndarray) -> None:
        assert number not in kept_, f"{number} has two answers"
        kept_[number] = answer.copy()
        keep(self, number, answer)

    def recalling(self: Answers, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        found = recall(self, number, shape)
        if found is not None:
            recalled[number] = found
        return found

    answers(monkeypatch, keep=keeping, recall=recalling)
    for made in range(5):
        for each in (kept_, recalled, drawn):
            each.clear()
        killed_at(made, monkeypatch, method="dp-ls")
        before = dict(kept_)
        # Before the first piece it is kept which query they are of.
        assert sorted(before) == list(range(made + (made > 0)))
        assert recalled == {}
        observer = Listener()
        with monkeypatch.context() as patch:
            instead.draw_noise(patch, lambda *given: (drawn.append(1), draw_noise(*given))[1])
            trained = train(features, observer, method="dp-ls")
        assert len(drawn) == 5 - made
        assert sorted(kept_) == list(range(6))
        assert recalled.keys() == before.keys()
        assert all(np.array_equal(recalled[number], before[number]) for number in before)
        assert f"{[0, 1, 1, 1, 2][made]} of its 3 releases have their answers" in observer.said[-1]
        assert states(features) == ["written"] * (made + 1)
        assert agrees(trained.path)


def test_a_program_that_forgets_to_look_for_an_answer_gets_no_second_one(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    seen.clear()
    answers(monkeypatch, recall=lambda self, number, shape: None)
    with pytest.raises(RuntimeError, match="release 0 would have a second answer"):
        train(features)
    assert seen == []


def test_a_training_that_was_killed_or_stopped_after_its_head_has_one_head_and_counts_once(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, Any] = {"out": "heads/mine.safetensors"}
    for given in ({}, named):
        count = len(charges(features))
        with monkeypatch.context() as patch:
            instead.settle(patch)
            first = train(features, **given)
        second = train(features, **given)
        assert (kept(), second.path, second.sha256) == ([], first.path, first.sha256)
        assert states(features)[count:] == ["written"]
    count, settle = len(charges(features)), Charged.settle
    with monkeypatch.context() as patch:
        instead.settle(patch, lambda self: (settle(self), patch.undo(), interrupted()))
        with pytest.raises(KeyboardInterrupt) as end:
            train(features)
    assert "The head was written" in end.value.__notes__[0]
    assert (states(features)[count:], kept()) == (["written"], [])


def interrupted(*given: object, **named: object) -> Any:
    raise KeyboardInterrupt


def test_a_training_that_was_stopped_just_after_its_charge_goes_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses Ctrl-C there is told of no head."""
    with monkeypatch.context() as patch:
        patch.setattr("dpfc_cli.training.charged.Charged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(features)
    assert (len(kept()), states(features), [*Path("heads").glob("*")]) == (1, ["charged"], [])
    train(features)
    assert (kept(), states(features)) == ([], ["written"])


# Which training goes on


OTHERS: dict[str, dict[str, Any]] = {
    "options": {"damping": 0.5},
    "steps": {"steps": STEPS + 1},
    "noise": {"epsilon": 1.5},
    "δ": {"delta": 1e-6},
    "method": {"method": "dp-sgd"},
    "name of the head": {"out": "heads/other.safetensors"},
    "no claim": {"seed": 1, "out": "heads/other.research.safetensors"},
}


def test_another_command_is_another_training(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(2, monkeypatch)
    for count, (name, other) in enumerate(OTHERS.items(), start=1):
        observer = Listener()
        train(features, observer, **other)
        assert (states(features), len(kept())) == (["charged"] + ["written"] * count, 1), name
        assert any("1 other training" in text for text in observer.said) is (name != "no claim")
    train(features)
    assert states(features) == ["written"] * (1 + len(OTHERS))


def test_who_and_why_are_no_part_of_a_training(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on under its own charge, of which nothing is rewritten, and is charged again only if somebody says so."""
    killed_at(2, monkeypatch, purpose="a study")
    (before,), told = charges(features), Listener()
    train(features, told, by="you", purpose="another")
    assert (charges(features), states(features)) == ((before,), ["written"])
    assert any("a study" in text and "me" in text for text in told.said)
    # Who goes on with it has an outcome of its own.
    assert [each.by for each in ledger(features).all(Outcome)] == ["you", "you"]
    for by, purpose in (("me", "another"), ("you", None), ("you", "a study")):
        with refuses("exists"):
            train(features, Observer(), by=by, purpose=purpose)
    train(features, by="you", again=True)
    assert [each.by for each in charges(features)] == ["me", "you"]


def test_another_version_and_other_features_are_another_training(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    for module in (curator, products, whitened, reader, hdf5):
        with other_source(module):
            assert plan(asked(features), Listener()).unfinished is None
    with other_source(reader):
        train(features)
    assert states(features) == ["charged", "written"]
    manifest = features.folder / "manifest.json"
    before = manifest.read_text()
    manifest.write_text(before.replace('"backbone": {', '"backbone": {"made": "otherwise", '))
    train(FeatureSet(features.folder))
    assert states(features) == ["charged", "written", "written"]
    manifest.write_text(before)
    train(features)
    assert states(features) == ["written"] * 3


def test_a_training_on_another_set_is_left_alone(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one of the same records, or of the same name."""
    killed_at(2, monkeypatch)
    other = feature_set(Path("raw.npz"), tmp_path / "other", classes=("a", "b", "c"))
    observer = Listener()
    train(other, observer)
    assert (len(kept()), states(features)) == (1, ["charged", "written"])
    assert not any("other training" in text for text in observer.said)
    shutil.move("set", "elsewhere")
    train(feature_set(Path("raw.npz"), tmp_path / "set", classes=("a", "b", "c")))
    assert (len(kept()), states(features)) == (1, ["charged", "written", "written"])
    train(FeatureSet(Path("elsewhere")))
    assert states(features) == ["written"] * 3


def test_a_training_that_another_process_has_or_took_meanwhile_is_left_to_it(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the check and before the charge: it holds the lock, or has ended with a head."""
    killed_at(0, monkeypatch, (head_module, "save"))
    (charge,) = kept()
    ready = plan(replace(asked(features), by="me"), Listener())
    assert ready.unfinished is not None
    held = Answers(Path(LEDGER), charge)
    with refuses("busy"):
        run.run(ready, Observer())
    train(features)
    assert states(features) == ["charged", "written"]
    held.close()
    train(features)
    with refuses("busy"):
        run.run(ready, Observer())
    assert states(features) == ["written", "written"]


# One charge and one training


PROGRAM = """
import sys
import dpfc_cli as dpfc
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.training import charged

def told(what, real, wait=False):
    def calling(*given):
        print(what, flush=True)
        if wait:
            sys.stdin.readline()
        return real(*given)
    return calling

charged.append = told("ready", told("charging", charged.append), True)
if sys.argv[1:]:
    Curator.release = told("running", Curator.release, True)
dpfc.train(dpfc.open_features("set"), method="dp-fc", steps=1, epsilon=1.0, by="me", again=True)
"""


@pytest.fixture
def typed() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """The same command in a process of its own. It waits for a line before its charge, and with a word at releases."""
    with ExitStack() as stack:

        def made(*words: str) -> "subprocess.Popen[str]":
            line, pipe = [sys.executable, "-W", "ignore", "-c", PROGRAM, *words], subprocess.PIPE
            process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield made


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    # Of an error all is heard.
    return said if said in ("ready", "charging", "running") else said + process.stdout.read()


def told(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    print(file=process.stdin, flush=True)


def test_one_charge_pays_for_one_training_whatever_becomes_of_equal_commands_that_wait(
    features: FeatureSet, typed: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Two equal commands wait for the ledger. One is killed, and the other is charged. While it runs the command is
    typed again.
    """
    waiting = [typed(), typed("hold")]
    assert [heard(each) for each in waiting] == ["ready"] * 2
    with closing(sqlite3.connect(LEDGER, isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        for each in waiting:
            told(each)
        assert [heard(each) for each in waiting] == ["charging"] * 2
        killed, other = waiting
        killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert heard(other) == "running"
    assert (states(features), len(list(Path(LEDGER_LOCKS).iterdir()))) == (["charged"], 2)
    again = typed()
    again.communicate("\n")
    assert (again.returncode, states(features), len(heads())) == (0, ["charged", "written"], 1)
    other.communicate("\n" * 9)
    assert (other.returncode, kept()) == (0, [])
    assert states(features) == ["written"] * 2
    assert len(heads()) == len(charges(features)) == 2


# Copies, and what was put back


def test_an_older_ledger_that_is_put_back_draws_no_answer_anew(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fewer answers than were handed out, or its training has its head: a new one is charged."""
    killed_at(1, monkeypatch)
    older = Path(LEDGER).read_bytes()
    killed_at(2, monkeypatch)
    newer = Path(LEDGER).read_bytes()

    def told() -> str:
        observer = Listener()
        train(features, observer)
        return " ".join(observer.warned)

    Path(LEDGER).write_bytes(older)
    assert "3 answers were handed out, and this ledger has 1" in told()
    assert states(features) == ["charged", "written"]
    Path(LEDGER).write_bytes(newer)
    assert "cannot go on" not in told()
    assert (states(features), kept()) == (["written"], [])
    Path(LEDGER).write_bytes(newer)
    assert "its lock is gone" in told()
    assert states(features) == ["resumed", "written"]


def test_of_a_ledger_that_was_copied_no_training_goes_on(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(2, monkeypatch)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree("set", elsewhere / "set")
    shutil.copy(LEDGER, elsewhere)
    train(FeatureSet(elsewhere / "set"))
    assert states(FeatureSet(elsewhere / "set")) == ["charged", "written"]
    train(features)
    assert states(features) == ["written"]


def test_a_training_that_goes_on_in_two_copies_of_ledger_and_locks_counts_twice_where_they_meet(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can see that such a copy was made."""
    killed_at(2, monkeypatch)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree("set", elsewhere / "set")
    shutil.copy(LEDGER, elsewhere)
    shutil.copytree(LEDGER_LOCKS, elsewhere / LEDGER_LOCKS)
    for each in (features, FeatureSet(elsewhere / "set")):
        train(each)
        assert len(charges(each)) == 1
    merge_ledgers(Path(LEDGER), elsewhere)
    assert len(charges(features)) == 2


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET answer = CAST(zeroblob(length(answer)) AS BLOB) WHERE number = 2",
        "UPDATE answers SET number = number + 1 WHERE number > 1",
        "DELETE FROM answers WHERE number = 1",
        "DELETE FROM answers WHERE number = 2",
        "DELETE FROM answers",
    ],
)
def test_a_ledger_with_fewer_or_other_answers_does_not_go_on(
    change: str, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New answers in their place would be second ones. So a new training is charged, and that is said."""
    killed_at(2, monkeypatch)
    with closing(sqlite3.connect(LEDGER, isolation_level=None)) as rows:
        rows.execute(change)
    train(features, observer := Listener())
    assert states(features) == ["charged", "written"]
    assert ("cannot go on" in " ".join(observer.warned)) is (change != "DELETE FROM answers")


def test_a_lock_that_a_kill_has_left_is_removed_and_other_files_are_not(features: FeatureSet) -> None:
    Path(LEDGER_LOCKS).mkdir()
    for name in ("0" * 32, "a note"):
        Path(LEDGER_LOCKS, name).touch()
    train(features)
    assert [path.name for path in Path(LEDGER_LOCKS).iterdir()] == ["a note"]


def asked(features: FeatureSet) -> Request:
    """What `train` asks for."""
    given: dict[str, Any] = {"method": "dp-fc", "steps": STEPS}
    return Request(features=features, folder=Path("heads"), epsilon=1.0, **given)


# On disk


def test_an_answer_is_on_disk_before_it_is_seen(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finds it there."""
    release = curator.Curator.release

    def watched(self: curator.Curator, query: Query) -> np.ndarray:
        answer = release(self, query)
        read = f"import sqlite3; print(*sqlite3.connect({LEDGER!r}).execute('SELECT count(*) FROM answers').fetchone())"
        found = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True).stdout
        assert int(found) == self.released + 1
        return answer

    instead.release(monkeypatch, watched)
    train(features)
    assert kept() == []


def test_a_training_whose_answer_cannot_be_kept_stops_before_it_is_seen_and_goes_on_with_the_others(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger cannot be written, or another one lies there."""
    keep = Answers.keep

    def broken(self: Answers, number: int, answer: np.ndarray) -> None:
        if number == 2:
            Path(LEDGER).rename("away")
            Path(LEDGER).symlink_to("nowhere")
        keep(self, number, answer)

    with monkeypatch.context() as patch, refuses("damaged") as refused:
        answers(patch, keep=broken)
        train(features)
    assert "The same command resumes" in refused.value.__notes__[0]
    Path("away").rename(LEDGER)
    before = dict(seen)
    assert sorted(before) == [0, 1]
    seen.clear()
    train(features)
    assert_one_answer_each(before, dict(seen))
    assert states(features) == ["written"]


def test_where_no_answers_can_be_kept_nothing_is_charged(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(answers_module, "claimed", failing)
        with refuses("unwritable"):
            train(features)
    instead.free_disk(monkeypatch, 100)
    with refuses("memory"):
        train(features)
    assert (kept(), states(features)) == ([], [])


def test_answers_that_are_too_large_for_a_ledger_are_not_kept_and_that_is_said_before(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LARGEST", 100)
    killed_at(2, monkeypatch)
    assert kept() == []
    ready = plan(replace(asked(features), by="me"), told := Listener())
    assert ready.unfinished is None
    assert "it cannot go on" in told.warned[-1]


def test_heads_without_a_guarantee_keep_no_answers(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, keep=lambda *given: pytest.fail("answers were kept"))
    train(features, seed=1)
    train(features, epsilon=None, non_private=True)
    assert kept() == []


def test_the_ledger_is_small_again_where_there_is_a_head(features: FeatureSet) -> None:
    train(features)
    before = Path(LEDGER).stat().st_size
    with ledger_file.writing(Path(LEDGER)) as rows:
        rows.execute("INSERT INTO answers VALUES ('x', 0, '', zeroblob(1000000))")
    assert Path(LEDGER).stat().st_size > 10**6
    with ledger_file.writing(Path(LEDGER)) as rows:
        answers_module.delete(rows, "x")
    assert Path(LEDGER).stat().st_size == before


@pytest.mark.parametrize("umask", [0o022, 0])
def test_what_is_private_is_for_its_owner_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    """Sets, also one that is not complete, the ledger and what lies beside it: files and folders."""
    monkeypatch.chdir(tmp_path)
    for name in ("set", "begun"):
        x, y = blobs(120, 5, 3, seed=len(name))
        np.savez(tmp_path / f"{name}.npz", train_x=x, train_y=y)

    def stopped(stage: str, done: int, total: int | None) -> None:
        if done == 80:
            raise KeyboardInterrupt

    before = os.umask(umask)
    try:
        feature_set(Path("set.npz"), tmp_path / "set", classes=3)
        with shards_of(40), pytest.raises(KeyboardInterrupt):
            feature_set(Path("begun.npz"), tmp_path / "begun", classes=3, progress=stopped)
        killed_at(2, monkeypatch)
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.suffix != ".npz"]
    assert len(kept()) == 1
    assert {"begun.partial", "settings.json", LEDGER} < {path.name for path in made}
    assert {(path.name, oct(path.stat().st_mode & 0o777)) for path in made if path.stat().st_mode & 0o077} == set()
