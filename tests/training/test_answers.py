"""A training that was stopped goes on under its charge: nothing is charged twice, no release has two answers, and one
charge pays for one training.
"""

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features import hdf5, reader
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import claimed
from dpfc_cli.folders import LEDGER, LEDGER_ANSWERS
from dpfc_cli.heads import head as head_module
from dpfc_cli.kernels import products
from dpfc_cli.ledger.facts import Outcome, new_id
from dpfc_cli.ledger.file import append
from dpfc_cli.ledger.merge import merge_ledgers
from dpfc_cli.methods import METHODS, whitened
from dpfc_cli.privacy import curator, forms
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training import answers as answers_module
from dpfc_cli.training import charge as charge_module
from dpfc_cli.training import run
from dpfc_cli.training.answers import Answers, DamagedError, begun, digest_of
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import charge_of_training
from dpfc_cli.training.charge import charge
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request, facts_of
from dpfc_cli.training.train import plan
from tests.closed import closed
from tests.support import blobs, other_source, refuses, replace, shards_of
from tests.training.requests import charges, ledger, states
from tests.training.stopped import STEPS, Killed, Listener, assert_one_answer_each, failing, kept, killed_at, train


def heads() -> list[str]:
    return sorted(path.name for path in Path("heads").glob("*.safetensors"))


def agrees(path: Path) -> bool:
    return dpfc.verify(path, ledger=LEDGER).contradictions == []


# Going on


def test_a_stopped_training_goes_on_and_is_never_charged_twice(
    features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It charges nothing more. With the same noise its head is the same, but for its date and its charge."""
    draw, drawn = curator.draw_noise, list[Query]()

    def noise(query: Query, shape: tuple[int, ...], sigma: int, _: Bits) -> np.ndarray:
        drawn.append(query)
        return draw(query, shape, sigma, SeededBits(1))

    monkeypatch.setattr(curator, "draw_noise", noise)
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
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
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

    monkeypatch.setattr(Answers, "keep", keeping)
    monkeypatch.setattr(Answers, "recall", recalling)
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
            patch.setattr(curator, "draw_noise", lambda *given: (drawn.append(1), draw_noise(*given))[1])
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
    monkeypatch.setattr(Answers, "recall", lambda self, number, shape: None)
    with pytest.raises(RuntimeError, match="release 0 would have a second answer"):
        train(features)
    assert seen == []


def test_a_training_that_was_killed_or_stopped_after_its_head_has_one_head_and_counts_once(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, Any] = {"out": "heads/mine.safetensors"}
    for settled, given in ((False, {}), (True, {}), (False, named)):
        count = len(charges(features))
        with monkeypatch.context() as patch:
            patch.setattr(Answers, "remove", lambda self: self.close())
            if not settled:
                patch.setattr(run, "_settled", lambda *given: None)
            first = train(features, **given)
        second = train(features, **given)
        assert kept() == []
        assert (second.path == first.path) is (second.sha256 == first.sha256) is not settled
        assert states(features)[count:] == ["written"] * (1 + settled)
    count = len(charges(features))
    with monkeypatch.context() as patch:
        patch.setattr(run, "spent_now", interrupted)
        with pytest.raises(KeyboardInterrupt) as end:
            train(features)
    assert "The head was written" in end.value.__notes__[0]
    assert states(features)[count:] == ["written"]


def interrupted(*given: object) -> Any:
    raise KeyboardInterrupt


def test_a_training_that_was_stopped_just_after_its_charge_goes_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses Ctrl-C there is told of no head. So what is needed to go on is on disk before the charge."""
    real, synced = append, list[str]()

    def stopped(*given: Any) -> None:
        assert synced[-2:] == ["the file", "its folder"]
        real(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(charge_module, "append", stopped)
        patch.setattr(os, "fsync", lambda file: synced.append("the file"))
        patch.setattr(answers_module, "sync", lambda folder: synced.append("its folder"))
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
        told = any(kept()[0].name in text for text in observer.said)
        assert told is (name != "no claim")
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
    other = import_features(Path("raw.npz"), tmp_path / "other", classes=("a", "b", "c")).features
    observer = Listener()
    train(other, observer)
    assert (len(kept()), states(features)) == (1, ["charged", "written"])
    assert not any(kept()[0].name in text for text in observer.said)
    shutil.move("set", "elsewhere")
    train(import_features(Path("raw.npz"), tmp_path / "set", classes=("a", "b", "c")).features)
    assert (len(kept()), states(features)) == (1, ["charged", "written", "written"])
    train(FeatureSet(Path("elsewhere")))
    assert states(features) == ["written"] * 3


def test_the_digest_of_a_training_tells_values_apart() -> None:
    x = np.arange(6.0).reshape(2, 3)
    other = [x.T, x[:1], x + 1, x.astype(np.float32), x.ravel(), list(x.ravel()), "x", "X", 1, 1.5, None, Path("x")]
    other += [
        {"a": 1},
        {"a": 2},
        Clip(1.0),
        Clip(2.0),
        Centre(x[0]),
        Centre(x[1]),
        Linear(x[0]),
        Clip,
        ["a", "b"],
        ["ab"],
    ]
    # Of so long a vector `repr` does not show all.
    other += [made(np.arange(3000) == i) for i in (1500, 1501) for made in (np.asarray, Centre)]
    assert len({digest_of(value) for value in [x, *other]}) == 1 + len(other)
    assert digest_of(np.asfortranarray(x)) == digest_of(x)
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_the_digest_of_a_training_is_of_its_command_and_of_its_set(features: FeatureSet) -> None:
    def made(
        on: FeatureSet = features, steps: int = 2, head: str = "h", purpose: str | None = None, **more: Any
    ) -> str:
        found = calibrate(METHODS["dp-fc"], facts_of(on), {"steps": steps}, Privacy(epsilon=more.pop("epsilon", 1.0)))
        by = more.pop("by", "me")
        return charge_of_training(replace(found, **more), on, head, by, purpose).digest

    manifest = features.manifest
    sets = [replace(manifest, id=new_id()), replace(manifest, backbone={"name": "vit"})]
    others: list[dict[str, Any]] = [
        *({"steps": 3}, {"epsilon": 2.0}, {"parts": {"tuning": {"chosen": 1}}}),
        *({"on": SimpleNamespace(manifest=each, split=features.split)} for each in sets),
    ]
    assert made(head="another", purpose="a", by="you") == made()
    assert len({made(), *(made(**each) for each in others)}) == 1 + len(others)


def test_a_training_that_another_process_has_or_took_meanwhile_is_left_to_it(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the check and before the charge: it holds the file, has ended with a head, or has put another there."""
    killed_at(0, monkeypatch, (head_module, "save"))
    (path,) = kept()
    same: dict[str, Any] = {"method": "dp-fc", "steps": STEPS, "by": "me"}
    ready = plan(Request(features=features, folder=Path("heads"), epsilon=1.0, **same), Listener())
    assert ready.unfinished is not None

    def refused() -> None:
        with refuses("busy"):
            charge(ready)

    held = claimed(path)
    assert held is not None
    refused()
    train(features)
    assert states(features) == ["charged", "written"]
    os.close(held)
    with monkeypatch.context() as patch:
        lock = fcntl.flock

        def exchanged(file: int, how: int) -> None:
            path.rename("elsewhere")
            shutil.copyfile("elsewhere", path)
            lock(file, how)

        patch.setattr(fcntl, "flock", exchanged)
        refused()
    Path("elsewhere").rename(path)
    # What stopped it let go of the file.
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "find", failing)
        with pytest.raises(OSError, match="No space"):
            charge(ready)
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "remove", lambda self: self.close())
        train(features)
    refused()
    assert states(features) == ["written", "written"]


# One charge and one file


PROGRAM = """
import sys
import dpfc_cli as dpfc
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.training import charge

def told(what, real, wait=False):
    def calling(*given):
        print(what, flush=True)
        if wait:
            sys.stdin.readline()
        return real(*given)
    return calling

charge.pay = told("ready", told("charging", charge.pay), True)
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
    assert (states(features), len(kept())) == (["charged"], 2)
    again = typed()
    again.communicate("\n")
    assert (again.returncode, states(features), len(heads())) == (0, ["charged", "written"], 1)
    other.communicate("\n" * 9)
    assert (other.returncode, kept()) == (0, [])
    assert states(features) == ["written"] * 2
    assert len(heads()) == len(charges(features)) == 2


def test_a_file_without_a_charge_or_without_a_header_is_removed_and_one_of_another_name_is_not(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*given: object) -> None:
        raise Killed

    killed_at(0, monkeypatch, delta=1e-6, out="heads/other.safetensors")
    (other,) = kept()
    with monkeypatch.context() as patch:
        patch.setattr(charge_module, "append", dying)
        with pytest.raises(Killed):
            train(features)
    assert (len(kept()), states(features)) == (2, ["charged"])
    folder = Path(LEDGER_ANSWERS)
    for number, data in enumerate((b"", b"{", b'{"charge": "x", "tr')):
        (folder / f"{number:032x}.0").write_bytes(data)
    left = [folder / "notes.txt", folder / f"{7:032x}", folder / f"{8:032x}.0"]
    for path in left:
        path.write_bytes(b"[]\n")
    (folder / f"{9:032x}.0").symlink_to("notes.txt")
    observer = Listener()
    train(features, observer)
    assert any(left[2].name in text for text in observer.said)
    assert kept() == sorted([other, *left, folder / f"{9:032x}.0"])
    assert [path.read_bytes() for path in left] == [b"[]\n"] * 3
    assert states(features) == ["charged", "written"]
    # It is not held any more.
    held = claimed(left[2])
    assert held is not None
    os.close(held)


def test_a_training_begins_although_another_looks_through_the_files_at_that_moment(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one holds the new file for a moment, to see that it has no header."""
    lock, looked = fcntl.flock, list[int]()

    def taken(file: int, how: int) -> None:
        if not looked and str(Path(f"/proc/self/fd/{file}").readlink()).endswith(".0"):
            looked.append(file)
            raise BlockingIOError
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", taken)
    train(features)
    assert (len(looked), states(features)) == (1, ["written"])


def test_of_a_copy_and_without_a_file_no_training_goes_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a copy two processes would draw the rest of the answers, each its own."""
    killed_at(2, monkeypatch)
    (path,) = kept()
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    # Both are there at once, so they cannot have one number.
    path.rename("elsewhere")
    train(features)
    assert states(features) == ["charged", "written"]
    copy.rename(path)
    train(features)
    assert states(features) == ["charged", "written", "written"]
    path.unlink()
    train(features)
    assert states(features) == ["charged"] + ["written"] * 3
    other = path.with_name("0" * 32 + path.suffix)
    Path("elsewhere").rename(other)
    with refuses("damaged"):
        train(features)
    other.rename(path)
    train(features)
    assert (states(features), kept()) == (["written"] * 4, [])


def killed_twice(monkeypatch: pytest.MonkeyPatch) -> tuple[Path, bytes, Path]:
    """Where the answers lay after the first kill, the bytes of that file, and where they lie now."""
    killed_at(1, monkeypatch)
    (path,) = kept()
    older = path.read_bytes()
    killed_at(2, monkeypatch)
    (newer,) = kept()
    return path, older, newer


def test_an_older_file_that_is_put_over_a_newer_one_does_not_go_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill the ledger does not say how many answers there were. The name of the file does."""
    path, older, newer = killed_twice(monkeypatch)
    whole = newer.read_bytes()
    assert ledger(features).all(Outcome)[-1].answers == 1
    # Only the bytes are older ones: the file has the number that the header says.
    newer.write_bytes(older)
    train(features)
    assert states(features) == ["resumed", "written"]
    # Under its own name it is another file.
    newer.rename("newer")
    path.write_bytes(older)
    train(features)
    assert states(features) == ["resumed", "written", "written"]
    path.unlink()
    Path("newer").rename(newer)
    newer.write_bytes(whole)
    train(features)
    assert (states(features), kept()) == (["written"] * 3, [])


def test_an_older_copy_in_the_place_of_a_deleted_file_does_not_go_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many file systems then give it the number of the deleted one. Its generation says that it is another file."""
    generation = 1

    def told(file: int, asked: int, into: bytearray) -> None:
        if asked != 0x80087601:
            raise OSError
        into[0] = generation

    monkeypatch.setattr(fcntl, "ioctl", told)
    path, older, newer = killed_twice(monkeypatch)
    newer.write_bytes(older)
    newer.rename(path)
    generation = 2
    train(features)
    assert states(features) == ["resumed", "written"]


@pytest.mark.parametrize("older", [2, STEPS])
def test_where_there_is_a_head_no_answer_is_drawn_anew(
    older: int, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed before the ledger knew of it. Somebody puts the older file back, under its older name."""
    killed_at(older, monkeypatch)
    (path,) = kept()
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "remove", lambda self: self.close())
        patch.setattr(run, "_settled", lambda *given: None)
        train(features)
    kept()[0].rename(path).write_bytes(before)
    observer = Listener()
    train(features, observer)
    assert states(features) == ["resumed", "written"]
    assert any(kept()[0].name in text for text in observer.said)


def test_a_file_with_fewer_or_other_answers_than_before_does_not_go_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New answers in their place would be second ones. So a new training is charged, and that is said."""
    killed_at(2, monkeypatch)
    (path,) = kept()
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        drawn = iter(range(9))
        draw = curator.draw_noise
        patch.setattr(curator, "draw_noise", lambda *given: interrupted() if next(drawn) == 1 else draw(*given))
        with pytest.raises(KeyboardInterrupt):
            train(features)
    assert states(features) == ["stopped"]
    assert ledger(features).all(Outcome)[-1].answers == 3
    (path,), name = kept(), kept()[0]
    after = path.read_bytes()
    changed = bytearray(after)
    changed[-30] ^= 1
    # Somebody has renamed the last one.
    for count, (data, suffix) in enumerate(((before, ".3"), (bytes(changed), ".3"), (before, ".2")), start=1):
        path = path.rename(path.with_suffix(suffix))
        path.write_bytes(data)
        observer = Listener()
        train(features, observer)
        assert states(features) == ["stopped"] + ["written"] * count
        assert any(kept()[0].name in text for text in observer.said)
        assert path.read_bytes() == data
    path.write_bytes(after)
    path.rename(name)
    train(features)
    assert states(features) == ["written"] * 4


def test_while_the_ledger_lacks_the_charge_of_an_answer_nothing_is_charged(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too old a copy. It is put back, or the newer one is merged."""
    head, older = train(features, delta=1e-6).head, Path(LEDGER).read_bytes()
    killed_at(2, monkeypatch)
    newer, ready = Path(LEDGER).read_bytes(), plan(replace(asked(features), by="me"), Listener())
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / LEDGER).write_bytes(newer)

    def put_back() -> None:
        Path(LEDGER).write_bytes(newer)

    def merge() -> None:
        merge_ledgers(Path(), tmp_path / "backup")

    uses = (
        lambda: train(features), lambda: train(features, damping=0.5), lambda: train(features, seed=1),
        lambda: dpfc.evaluate_privately(head, features, "train", epsilon=1.0),
    )  # fmt: skip
    for mend in (put_back, merge):
        Path(LEDGER).write_bytes(older)
        for use in uses:
            with refuses("damaged", path=str(tmp_path / LEDGER)):
                use()
        # It was put there after the check.
        with refuses("missing"):
            charge(ready)
        assert (Path(LEDGER).read_bytes(), len(kept())) == (older, 1)
        mend()
        observer = Listener()
        assert plan(replace(asked(features), by="me"), observer).unfinished is not None
    train(features)
    assert (states(features), kept()) == (["written", "written"], [])


def asked(features: FeatureSet) -> Request:
    """What `train` asks for."""
    given: dict[str, Any] = {"method": "dp-fc", "steps": STEPS}
    return Request(features=features, folder=Path("heads"), epsilon=1.0, **given)


# On disk


def test_an_answer_is_on_disk_before_it_is_seen(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced after digest and answer, gets its name, and its folder is synced."""
    order, before = list[str](), list[list[str]]()

    def watch(place: Any, name: str) -> None:
        real = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given: (order.append(name), real(*given))[1])

    for place, name in ((os, "fsync"), (os, "pwrite"), (Path, "rename"), (answers_module, "sync")):
        watch(place, name)
    release = curator.Curator.release

    def watched(self: curator.Curator, query: Query) -> np.ndarray:
        before.append(order.copy())
        order.clear()
        answer = release(self, query)
        assert order == ["pwrite", "pwrite", "fsync", "rename", "sync", "fsync"]
        return answer

    monkeypatch.setattr(curator.Curator, "release", watched)
    train(features)
    # So is the file itself, before the first release.
    assert before[0][-4:] == ["pwrite", "fsync", "sync", "fsync"]


ANSWERS = [np.arange(3.0), np.eye(2)]
PLAN: Any = SimpleNamespace(releases=[SimpleNamespace(parts=[answer.shape]) for answer in ANSWERS])
CHARGE: Any = SimpleNamespace(id="0" * 32, digest="")


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, list[int]]:
    """A file with all answers. Where it ended before the first one, and after each."""
    answers = begun(CHARGE, PLAN, tmp_path / LEDGER)
    ends = [answers.path.stat().st_size]
    for number, answer in enumerate(ANSWERS):
        answers.keep(number, answer)
        ends.append(answers.path.stat().st_size)
    answers.close()
    return answers.path, ends


@contextmanager
def opened(path: Path) -> Iterator[Answers]:
    file = claimed(path)
    assert file is not None
    answers = Answers(path, file)
    yield answers
    answers.close()


def test_a_file_that_is_cut_while_it_is_made_keeps_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "sync", lambda folder: [os.truncate(path, 9) for path in folder.iterdir()])
    with refuses("unwritable"):
        begun(CHARGE, PLAN, tmp_path / LEDGER)
    assert not list((tmp_path / LEDGER_ANSWERS).iterdir())


def test_a_file_has_the_answers_that_are_whole_whatever_its_name_and_wherever_the_next_one_was_cut(
    filled: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (path, ends) = filled
    data, writes, write = path.read_bytes(), list[int](), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, what, at: (writes.append(at), write(file, what, at))[1])
    for end in range(ends[0], len(data) + 1):
        whole = sum(end >= each for each in ends[1:])
        # The last answer may be there, and its name not yet. Or the file was renamed after the answer was seen.
        for count in {whole, max(whole - (end in ends), 0)}:
            path = path.rename(path.with_suffix(f".{count}"))
            path.write_bytes(data[:end])
            with opened(path) as again:
                writes.clear()
                again.find(PLAN)
                # What lies behind the name may not be on disk: it is written anew.
                assert writes == ends[count:whole]
                assert again.path.suffix == f".{whole}"
                for number, answer in enumerate(ANSWERS):
                    found = again.recall(number, answer.shape)
                    assert (found is None) == (number >= whole)
                    if found is None:
                        again.keep(number, answer)
                    else:
                        assert np.array_equal(found, answer)
                path = again.path
            # What was cut is written again, and nothing of the rest is left.
            assert (path.suffix, path.read_bytes()) == (f".{len(ANSWERS)}", data)


def test_any_change_of_what_was_handed_out_is_found(filled: tuple[Path, list[int]]) -> None:
    path, ends = filled
    data = path.read_bytes()
    changed = [bytearray(data) for _ in range(2 * (len(data) - ends[0]))]
    for number, each in enumerate(changed):
        each[ends[0] + number // 2] ^= (1, 128)[number % 2]
    others = ((data + b"more", 2), (data, 0), (data, 3))
    for left, count in (*((bytes(each), 2) for each in changed), *others):
        path = path.rename(path.with_suffix(f".{count}"))
        path.write_bytes(left)
        with opened(path) as again, pytest.raises(DamagedError):
            again.find(PLAN)
    for end in range(ends[0], len(data)):
        path.write_bytes(data[:end])
        with opened(path) as again, pytest.raises(DamagedError):
            again.find(PLAN)


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


def test_an_answer_that_is_gone_since_it_was_found_is_no_answer(filled: tuple[Path, list[int]]) -> None:
    path, ends = filled
    with opened(path) as again:
        again.find(PLAN)
        os.truncate(path, ends[1])
        with pytest.raises(DamagedError):
            again.recall(1, ANSWERS[1].shape)


@pytest.mark.parametrize("fails", [(os, "pwrite"), (os, "fsync"), (Path, "rename"), (answers_module, "sync")])
def test_a_training_whose_answer_cannot_be_kept_stops_before_it_is_seen_and_goes_on_with_the_others(
    fails: tuple[Any, str], features: FeatureSet, seen: list[tuple[int, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing_from(2, monkeypatch, fails), refuses("unwritable") as refused:
        train(features)
    assert "The same command goes on" in refused.value.__notes__[0]
    before = dict(seen)
    assert sorted(before) == [0, 1]
    with monkeypatch.context() as patch, refuses("unwritable"):
        patch.setattr(*fails, failing)
        train(features)
    assert len(charges(features)) == 1, "the answers are whole, and no other training takes their place"
    seen.clear()
    train(features)
    assert_one_answer_each(before, dict(seen))
    assert states(features) == ["written"]


@pytest.mark.parametrize(
    ("place", "call", "does"),
    [
        (answers_module, "claimed", failing),
        (answers_module, "sync", failing),
        (os, "posix_fallocate", failing),
    ],
    ids=["no place", "no disk", "no room"],
)
def test_where_no_answers_can_be_kept_nothing_is_charged(
    place: Any, call: str, does: Any, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, call, does, raising=False)
    with refuses("unwritable") as refused:
        train(features)
    assert "1 MB" in refused.value.remedy
    assert (kept(), states(features)) == ([], [])


def test_heads_without_a_guarantee_keep_no_answers(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "begun", lambda *given: pytest.fail("answers were kept"))
    monkeypatch.setattr(charge_module, "begun", lambda *given: pytest.fail("answers were kept"))
    train(features, seed=1)
    train(features, epsilon=None, non_private=True)
    assert kept() == []


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
        import_features(Path("set.npz"), tmp_path / "set", classes=3)
        with shards_of(40), pytest.raises(KeyboardInterrupt):
            import_features(Path("begun.npz"), tmp_path / "begun", classes=3, progress=stopped)
        killed_at(2, monkeypatch)
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.suffix != ".npz"]
    assert len(kept()) == 1
    assert {"begun.partial", "settings.json", LEDGER} < {path.name for path in made}
    assert {(path.name, oct(path.stat().st_mode & 0o777)) for path in made if path.stat().st_mode & 0o077} == set()


def test_who_may_not_look_for_answers_charges_nothing(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(2, monkeypatch)
    with closed(Path(LEDGER_ANSWERS)), refuses("unreadable"):
        train(features)
    assert states(features) == ["charged"]
