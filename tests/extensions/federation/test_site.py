"""A site answers the queries of its plan, each with one answer, whatever else it is asked."""

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extensions.federation import coordinator, masks, messages
from dpfc_cli.extensions.federation import site as sites
from dpfc_cli.extensions.federation.messages import Door
from dpfc_cli.extensions.federation.plan import check_policy, load
from dpfc_cli.extensions.federation.site import ready, site_of
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head
from dpfc_cli.methods import whitened
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.parts import bytes_of, encoded, framed
from dpfc_cli.privacy.queries import ClassSums, Gradient, Gram, Mean
from dpfc_cli.training import calibrate
from dpfc_cli.training.observer import Observer, TrainingWarning
from tests import instead
from tests.extensions.federation.sites import (
    JOINT,
    NAMES,
    PARTS,
    Serving,
    agreed,
    made_set,
    patience,
    remote,
    said,
    say,
    trained,
    word,
)
from tests.support import LOST, drawn_sigmas, other_source, refuses, replace
from tests.training.requests import charges, states
from tests.training.stopped import Killed, Listener, train

FIRST = encoded(Gram((Clip(0.005),), 0.2), None)
"""The first query of dp-fc."""


@pytest.fixture
def sets() -> dict[str, FeatureSet]:
    return {name: made_set(name) for name in NAMES}


def test_what_is_not_asked_as_the_plan_says_is_refused_and_changes_nothing(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = drawn_sigmas(monkeypatch)
    plan = agreed(sets, method="dp-fc", options={"steps": 2})
    other = replace(plan, id="0" * 32)
    serving = Serving(plan, sets)
    assert say("north", plan, "release", FIRST, number=0, part=0) == "not-charged"
    assert say("north", plan, "head") == "not-charged"
    for asked in ("ready", "charge", "release", "head"):
        assert say("north", other, asked) == "other-plan"
    assert say("north", plan, "everything") == "unreadable"
    assert not charges(sets["north"])
    for name in NAMES:
        assert say(name, plan, "ready") == "ready"
        assert say(name, plan, "charge") == say(name, plan, "charge") == "charged"

    theta = np.zeros((9, 3))
    gradient = Gradient((Clip(0.005),), theta, clip=0.36, constant=0.2)
    hostile: list[tuple[str, bytes, Any, Any]] = [
        ("out-of-order", encoded(gradient, None), 1, 0),
        ("out-of-order", FIRST, -1, 0),
        ("out-of-order", FIRST, 10**30, 0),
        ("out-of-order", FIRST, "0", 0),
        ("out-of-order", FIRST, None, 0),
        ("out-of-order", encoded(ClassSums((Clip(1.0),)), None), 0, 0),
        ("out-of-order", encoded(Mean((Clip(1.0),)), None), 0, 0),
        ("unreadable", FIRST, 0, 1),
        ("unreadable", FIRST, 0, -1),
        ("unreadable", FIRST, 0, 0.0),
        ("unreadable", FIRST + b"\0", 0, 0),
        ("unreadable", FIRST[:-1], 0, 0),
        ("unreadable", b"", 0, 0),
        ("unreadable", encoded(Gram((Clip(0.005),), 0.2), np.ones(600, bool)), 0, 0),
        ("unreadable", framed({"kind": "gram", "plain": {"constant": 10**400}, "chain": [], "sampled": False}), 0, 0),
    ]
    for wanted, body, number, part in hostile:
        assert say("north", plan, "release", body, number=number, part=part) == wanted
    assert say("north", plan, "head", b"") == "out-of-order"
    for raw in (b"", b"\xff" * 20, framed({"ask": "release"}, b"x")[:-3]):
        assert word("north", raw) == "unreadable"
    # One that claims to be longer than any, and one that ends early.
    longest = messages.query_bytes(8, 3)
    for length, replies in ((longest + 1, True), (longest, False)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("north.sock")
            connection.sendall(length.to_bytes(8, "big"))
            connection.shutdown(socket.SHUT_WR)
            assert bool(connection.makefile("rb").read()) is replies
    assert not drawn, "noise was drawn for none of these"

    assert say("north", plan, "release", FIRST, number=0, part=0) == "answered"
    assert say("north", plan, "head") == "out-of-order"
    once = len(drawn)
    kept = said("north", plan, "release", FIRST, number=0, part=0)
    for other_norm in (0.3, 7.0, 1e-9):
        query = encoded(Gram((Clip(other_norm),), other_norm), None)
        assert said("north", plan, "release", query, number=0, part=0) == kept
    assert len(drawn) == once, "the second time the kept answer is sent, whatever is asked"
    # All but the last one.
    assert say("north", plan, "release", encoded(gradient, None), number=1, part=0) == "answered"
    assert say("north", plan, "head", bytes(8 * 27), chain=[{"step": "clip", "norm": 0.005}]) == "out-of-order"

    joint = trained(plan)
    serving.heads()
    assert all(states(each) == ["written"] for each in sets.values())
    assert np.isfinite(joint.weight).all()
    assert len(drawn) == 2 * 3, "one answer of each site to each of three releases"


def test_a_head_that_is_none_of_the_plan_is_refused(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = agreed(sets, method="dp-fc", options={"steps": 1})
    serving = Serving(plan, sets)
    words: list[str] = []

    def give(self: coordinator.Remote, head: Head) -> None:
        whole = b"".join(map(bytes_of, (head.weight, head.bias)))
        wrong: list[tuple[bytes, Any]] = [(whole[:-8], [{"step": "clip", "norm": 0.005}])]
        wrong += [(whole, steps) for steps in ([], [{"step": "linear"}], "clip", None, [{"step": "clip", "norm": "a"}])]
        wrong += [(np.full(27, np.nan).tobytes(), [{"step": "clip", "norm": 0.005}])]
        words.extend(say(self.name, plan, "head", body, chain=steps) for body, steps in wrong)
        real(self, head)

    real = coordinator.Remote.give
    remote(monkeypatch, give=give)
    trained(plan)
    assert words == ["unreadable"] * 14
    assert all(Head.load(each.path) for each in serving.heads().values())


def test_a_coordinator_that_is_started_again_on_another_machine_computes_the_same_head(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There LAPACK rounds otherwise, and takes other signs for eigenvectors."""
    drawn, real = drawn_sigmas(monkeypatch), whitened.whitening
    plan = agreed(sets)
    serving = Serving(plan, sets)

    def elsewhere(*given: Any) -> tuple[np.ndarray, np.ndarray]:
        matrix, variances = real(*given)
        return matrix * np.resize([-1.0, 1.0 + 1e-12, 1.0], len(matrix)), variances

    with monkeypatch.context() as patch:
        remote(patch, give=lambda *_: None)
        here = trained(plan)
    JOINT.rename("here.safetensors")
    once = len(drawn)
    monkeypatch.setattr(whitened, "whitening", elsewhere)
    there = trained(plan)
    serving.heads()
    assert len(drawn) == once, "nothing was answered twice"
    assert np.allclose(there.weight, here.weight, rtol=0, atol=1e-9 * np.abs(here.weight).max())


@pytest.mark.parametrize("names", [NAMES, tuple(PARTS)], ids=["", "masks"])
def test_a_site_that_was_killed_goes_on_and_draws_no_answer_again(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each point: before an answer, after it was kept, while it goes on, and before the head was written. The
    coordinator asks again, and was killed twice itself.

    What has masks is sent again with the same ones.
    """
    sets = {name: made_set(name) for name in names}
    plan = agreed(sets, method="dp-fc", colluding=1 if len(names) > 2 else None)
    got: dict[tuple[Any, ...], bytes] = {}
    real_part, refuse = coordinator.Remote._part, messages.Exchange.refuse
    # The answers are those of south: it is killed again at the second and at the first release that it repeats.
    stops, calls = {"draw_noise": [1], "_part": [2], "_kept": [4, 6, 7], "save": [1, 3]}, Counter[str]()

    def part(self: coordinator.Remote, number: int, part: int, query: Any) -> np.ndarray:
        answer = real_part(self, number, part, query)
        assert got.setdefault((self.name, number, part), answer.tobytes()) == answer.tobytes()
        return answer

    def silent(self: messages.Exchange, code: messages.Refusal) -> None:
        self.connection.close() if code == "failed" else refuse(self, code)

    monkeypatch.setattr(messages.Exchange, "refuse", silent)
    instead.settle(monkeypatch)

    def dying(name: str, real: Any) -> Any:
        def called(*given: Any) -> Any:
            done = real(*given)
            calls[name] += name != "_kept" or given[0]._site.name == "south"
            if calls[name] in stops[name]:
                stops[name].remove(calls[name])
                raise Killed
            return done

        return called

    with monkeypatch.context() as patch:
        instead.draw_noise(patch, dying("draw_noise", curator.draw_noise))
        patch.setattr(sites.Answering, "_kept", dying("_kept", sites.Answering._kept))
        patch.setattr(heads, "save", dying("save", heads.save))
        remote(patch, _part=dying("_part", part))
        serving = Serving(plan, sets, names, again=True)
        for _ in range(2):
            with pytest.raises(Killed):
                trained(plan)
        assert JOINT.exists()
        while any(each.is_alive() for each in serving.threads.values()):
            joint = trained(plan)
        ended = serving.heads()
    assert not any(stops.values()), "each of them was reached"
    for name in names:
        assert len(charges(sets[name])) == 1
        assert np.array_equal(Head.load(ended[name].path).weight, joint.weight)
    assert len({sum(of[0] == name for of in got) for name in names}) == 1


def test_a_site_that_has_its_head_serves_the_plan_no_more(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets, method="dp-fc", options={"steps": 1})
    serving = Serving(plan, sets)
    joint = trained(plan)
    serving.heads()
    assert not list(Path().rglob("*.key"))
    again = Serving(plan, sets).heads()
    assert [each.state for each in again.values()] == ["written"] * 2
    with refuses("exists"):
        ready(site_of(plan, "north", sets["north"]), Observer())
    # The coordinator has the head, and nobody needs it.
    listener = Listener()
    given = coordinator.run(plan, Path(), JOINT, listener)
    assert np.array_equal(given.weight, joint.weight)
    assert not any("Waiting" in text for text in listener.said), "those who have ended are not waited for"
    JOINT.unlink()
    with pytest.raises(UserError) as nobody:
        coordinator.run(plan, Path(), JOINT, Observer(), 0.0)
    assert nobody.value.exit_code == 4
    assert all(states(each) == ["written"] for each in sets.values())


def test_the_log_of_a_site_tells_a_new_answer_from_one_that_is_sent_again(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets, method="dp-fc", options={"steps": 1})
    serving = Serving(plan, sets, ("north",))
    assert say("north", plan, "charge") == "charged"
    for _ in range(2):
        assert say("north", plan, "release", FIRST, number=0, part=0) == "answered"
    assert say("north", plan, "ready") == "charged"
    first, second = (text.partition(" ")[2] for text in serving.log.said if "release 1 of 2" in text)
    assert first != second


def test_a_plan_whose_answers_are_gone_is_not_charged_again(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = agreed(sets, method="dp-fc")
    Serving(plan, sets, ("north",))
    assert say("north", plan, "charge") == "charged"
    site = site_of(plan, "north", sets["north"])
    with refuses("busy"):
        ready(site, Observer())
    for path in Path("north", "ledger.locks").iterdir():
        path.unlink()
    with pytest.warns(TrainingWarning, match="its lock is gone"), refuses("conflict"):
        ready(site, Observer())
    assert len(charges(sets["north"])) == 1


def test_a_site_is_known_by_its_training_and_by_no_words_in_its_ledger(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets)
    train(sets["north"], purpose=f"federation {plan.digest}", epsilon=0.1)
    site = site_of(plan, "north", sets["north"])
    assert site.ended is None
    assert ready(site, Observer()).unfinished is None


def test_other_features_or_another_name_are_refused(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets)
    with refuses("missing", known=["south"]):
        site_of(plan, "north", sets["south"])
    with refuses("conflict", match="counts"):
        site_of(replace(plan, k=2), "north", sets["north"])
    with refuses("missing"):
        site_of(plan, "west", sets["north"])
    strange = replace(plan, features=replace(plan.features, backbone={"name": "another"}))
    with refuses("conflict", match="recipe"):
        site_of(strange, "north", sets["north"])
    few = replace(plan, classes=("a", "b", "d"))
    with refuses("conflict", match="'c'"):
        site_of(few, "north", sets["north"])


def test_only_the_own_user_reaches_a_socket_and_what_a_killed_site_left_is_replaced() -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind("door.sock")
    left.close()
    with Door(Path("door.sock"), 100):
        assert Path("door.sock").stat().st_mode & 0o777 == 0o600
        with refuses("busy"):
            Door(Path("door.sock"), 100)
    Path("door.sock").write_text("a file")
    with refuses("busy"):
        Door(Path("door.sock"), 100)
    assert Path("door.sock").read_text() == "a file"


def test_who_says_nothing_or_takes_no_reply_keeps_nobody_out(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets, method="dp-fc", options={"steps": 1})
    Serving(plan, sets, ("north",))
    with contextlib.ExitStack() as stack:
        for begun in (b"", bytes(7), (100).to_bytes(8, "big") + b"{") * 4:
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect("north.sock")
            silent.sendall(begun)
        assert say("north", plan, "ready") == "ready"
        door = stack.enter_context(Door(Path("door.sock"), 100))
        both = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in NAMES]
        for name, each in zip(NAMES, both, strict=True):
            each.connect("door.sock")
            message = framed({"ask": name}, b"")
            each.sendall(len(message).to_bytes(8, "big") + message)
        asked = door.exchanges()
        next(asked).reply({}, bytes(2**24))
        second = next(asked)
        second.refuse("failed")
        assert second.said["ask"] == NAMES[1]


def test_a_site_is_told_where_nobody_asks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the coordinator has given up, or its machine has stopped."""
    told = threading.Event()
    with Door(Path("door.sock"), 100, quiet=told.set) as door:
        thread = threading.Thread(target=lambda: next(door.exchanges()).refuse("failed"))
        with monkeypatch.context() as patch:
            patience(patch, 0.05)
            thread.start()
            assert told.wait(LOST)
        assert word("door", framed({"ask": "ready"}, b"")) == "failed"
        thread.join()


def test_replies_leave_at_times_that_do_not_depend_on_how_long_a_pass_takes() -> None:
    for took, wait in ((0.0, 60.0), (59.5, 0.5), (60.0, 60.0), (61.0, 59.0)):
        assert messages.left(60.0, took) == wait
        assert messages.left(0.0, took) == 0


def test_every_reply_of_a_site_waits(sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    patience(monkeypatch, LOST, sleep=waited.append, monotonic=time.monotonic)
    plan = agreed(sets, method="dp-fc")
    Serving(plan, sets, ("north",), every=60.0)
    assert [say("north", plan, asked) for asked in ("ready", "nothing", "charge")] == ["ready", "unreadable", "charged"]
    assert say("north", plan, "release", FIRST, number=0, part=0) == "answered"
    assert word("north", b"") == "unreadable"
    assert len(waited) == sum(0 < each <= 60 for each in waited) == 5


def test_a_plan_that_says_something_else_than_the_invitation_is_refused(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets)
    north, south = plan.sites
    changes: list[dict[str, Any]] = [{"epsilon": 5.0}, {"epsilon": 1.0}, {"n": 601}, {"records": 700}]
    for more in (*changes, {"key": south.key}):
        with refuses("missing" if "key" in more else "conflict", match="invitation"):
            site_of(replace(plan, sites=(replace(north, **more), south)), "north", sets["north"])
    renamed = replace(plan, sites=(replace(north, name="west"), south))
    with refuses("conflict", match="its name"):
        site_of(renamed, "west", sets["north"])
    kept = Path("north", "ledger.federation", f"{north.key}.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.read_bytes() == Path("north.json").read_bytes()


def test_a_policy_refuses_what_it_does_not_allow_and_nothing_else(sets: dict[str, FeatureSet]) -> None:
    plan, path = agreed(sets), Path("policy.json")
    just = {"epsilon": 2, "delta": 1e-5, "adjacency": ["zero-out"], "methods": ["dp-whitened"], "sites": ["north"]}
    just["colluding"] = ["all"]
    west = replace(plan.sites[0], name="west")
    path.write_text('{"colluding": [1]}')
    check_policy(replace(plan, sites=(*plan.sites, west)), "south", path)
    for allowed in (just, {"sites": ["west", "north"]}):
        path.write_text(json.dumps(allowed))
        check_policy(plan, "south", path)
    limits: list[tuple[str, Any]] = [("epsilon", 1.9), ("delta", 1e-6), ("methods", ["dp-fc"]), ("methods", [])]
    limits.append(("colluding", [1]))
    for limit, value in [*limits, ("adjacency", ["replace-one"]), ("sites", ["west"])]:
        path.write_text(json.dumps({limit: value}))
        with refuses("conflict", match=limit):
            check_policy(plan, "south", path)
    for text in ("", "[]", "{}", '{"epsilons": 1}', '{"epsilon": "1"}', '{"sites": "north"}'):
        path.write_text(text)
        with refuses("damaged"):
            check_policy(plan, "south", path)
    path.unlink()
    with refuses("missing"):
        check_policy(plan, "south", path)


def test_a_plan_that_was_changed_is_another_plan_or_none(sets: dict[str, FeatureSet]) -> None:
    plan = agreed(sets)
    text, path, (north, south) = Path("plan.json").read_text(), Path("changed.json"), plan.sites
    for twin in (replace(north, key=south.key), replace(north, name=south.name)):
        path.write_bytes(replace(plan, sites=(twin, south)).data)
        with refuses("damaged"):
            load(path)
    for old, new in (
        ('"epsilon": 2.0', '"epsilon": 2.5'),
        ('"n": 600', '"n": 601'),
        ('"id": "', '"id": "0'),
        ('"colluding": 1', '"colluding": 2'),
        ('"colluding": 1', '"colluding": 0'),
        ('"key": "', '"key": "0'),
        ('"name": "south"', '"name": "north"'),
        ('"name": "south"', '"name": "../south"'),
        ('"method": "dp-whitened"', '"method": "dp-sgd"'),
        ('"delta": 1e-05', '"delta": 0.1'),
        ('"options": {}', '"options": {"sampling_rate": 0.5}'),
        ('"options": {}', '"options": {"steps": -1}'),
        ('"classes": [', '"classes": ["a",'),
        ("{", "{ "),
        ('"code": "', '"code": "0'),
        ('"records": null', '"records": 5'),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        try:
            assert load(path).digest != plan.digest
        except UserError:
            continue
    for module in (calibrate, curator, masks):
        with other_source(module), refuses("conflict"):
            load(Path("plan.json"))
