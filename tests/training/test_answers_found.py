"""Which stopped training goes on: that of the same command on the same records, from its own file."""

import fcntl
import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.locks import claimed
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.training import answers as answers_module
from dpfc_cli.training import ledger, run
from dpfc_cli.training.answers import SUFFIX, Answers
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.charge import charge
from dpfc_cli.training.request import Privacy, Request, facts_of
from dpfc_cli.training.train import plan
from tests.support import blobs
from tests.training.stopped import STEPS, Killed, Listener, failing, kept, killed_at, rows, train


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


def test_the_digest_of_a_training_tells_values_apart() -> None:
    def digest_of(value: object) -> str:
        digest = hashlib.sha256()
        answers_module._add(digest, value)
        return digest.hexdigest()

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


def test_the_digest_of_a_training_is_of_its_command_and_not_of_its_records(features: FeatureSet) -> None:
    """The records are named in the ledger alone. The digest lies beside the head."""
    facts = facts_of(features)
    calibrated = calibrate(METHODS["dp-fc"], facts, {"steps": 2}, Privacy(epsilon=1.0))
    entry = entry_of(calibrated, features, "", "", "me", "a purpose")
    digest = answers_module.digest_of(calibrated, features, entry)
    elsewhere = replace(entry, at="2026", head="h", records="others", persons="a" * 64)
    assert answers_module.digest_of(calibrated, features, elsewhere) == digest
    others = [replace(entry, **changed) for changed in ({"who": "you"}, {"purpose": None}, {"mu": 1.0}, {"n": 7})]
    made = [replace(calibrated, tuning={"chosen": 1}), replace(calibrated, before={"epsilon": 1})]
    made.append(calibrate(METHODS["dp-fc"], facts, {"steps": 3}, Privacy(epsilon=1.0)))
    digests = {answers_module.digest_of(calibrated, features, each) for each in others}
    digests |= {answers_module.digest_of(each, features, entry) for each in made}
    assert len(digests | {digest}) == 8


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


def test_a_training_that_another_process_took_meanwhile_is_left_to_it(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the check and before the charge: it holds the file, has ended with a head, or has put another there."""
    killed_at(2, monkeypatch)
    (path,) = kept()
    same: dict[str, Any] = {"method": "dp-fc", "options": {"steps": STEPS}, "by": "me"}
    wanted = Request(features=features, folder=Path("heads"), privacy=Privacy(epsilon=1.0), **same)
    ready = plan(wanted, Listener())
    assert ready.unfinished is not None

    def refused() -> None:
        with pytest.raises(dpfc.UserError, match="Another process goes on with this training") as found:
            charge(ready)
        assert found.value.code == "busy"

    held = claimed(path)
    assert held is not None
    refused()
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
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "receipt_of", lambda *given: None)
        refused()
    # What stopped them let go of the file.
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "find", failing)
        with pytest.raises(OSError, match="No space"):
            charge(ready)
    assert charge(ready).receipt == ready.unfinished.receipt


def test_a_training_on_another_set_is_left_alone(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their heads lie in one folder, and each set has a ledger of its own."""
    killed_at(2, monkeypatch)
    shutil.copytree("set", "other")
    train(FeatureSet(Path("other")))
    assert len(kept()) == 1
    train(features)
    assert rows(features) == ["written"]


def test_a_file_of_a_training_that_was_not_charged_is_removed(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*given: object) -> None:
        raise Killed

    killed_at(0, monkeypatch, purpose="another", out="heads/other.safetensors")
    (other,) = kept()
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "charge", dying)
        patch.setattr(Answers, "remove", lambda self: self.close())
        with pytest.raises(Killed):
            train(features)
    assert (len(kept()), rows(features)) == (2, ["charged"])
    observer = Listener()
    train(features, observer)
    assert (kept(), rows(features)) == ([other], ["charged", "written"])
    assert sum("was stopped" in text for text in observer.said) == 1


def test_a_training_that_was_stopped_just_after_its_charge_goes_on(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses Ctrl-C there is told of no charge. So what is needed to go on stays."""
    real, synced = ledger.charge, list[str]()

    def stopped(*given: Any) -> None:
        assert synced == ["the file", "its folder"]
        real(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "charge", stopped)
        patch.setattr(os, "fsync", lambda file: synced.append("the file"))
        patch.setattr(answers_module, "sync", lambda folder: synced.append("its folder"))
        with pytest.raises(KeyboardInterrupt):
            train(features)
    assert (len(kept()), rows(features)) == (1, ["charged"])
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


@pytest.mark.parametrize("data", [b"", b"{}", b"{}\n", b"[]\n", b"\xff\n", b'{"training": "x", "at": 1}\n'])
def test_a_file_of_another_kind_is_left_alone(data: bytes, features: FeatureSet) -> None:
    Path("heads").mkdir()
    path, link = (Path("heads", f".{name}.0123456789abcdef{SUFFIX}") for name in ("x", "link"))
    path.write_bytes(data)
    link.symlink_to(path.name)
    train(features)
    assert (path.read_bytes(), link.is_symlink()) == (data, True)
    # It is not held any more.
    held = claimed(path)
    assert held is not None
    os.close(held)


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
