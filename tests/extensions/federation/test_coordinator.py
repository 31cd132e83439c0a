"""A head of several sites is that of one place, and what a site sends is looked at before it counts."""

import itertools
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench.federation import local, plan_of
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.federation import coordinator, messages
from dpfc_cli.extensions.federation import plan as plans
from dpfc_cli.extensions.federation.card import COMPUTED
from dpfc_cli.extensions.federation.coordinator import Remote, Sums
from dpfc_cli.extensions.federation.messages import SHORT
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.methods import FEDERATED
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import NonPrivate, Unprotected
from dpfc_cli.privacy.parts import framed, unframed
from dpfc_cli.privacy.queries import Gram, Mean
from dpfc_cli.training.observer import Observer
from dpfc_cli.verification import verify
from tests import instead
from tests.extensions.federation.sites import (
    CLASSES,
    JOINT,
    NAMES,
    Serving,
    X,
    Y,
    agreed,
    made_set,
    patience,
    remote,
    trained,
)
from tests.support import LOST, curator, refuses, replace, stream_of
from tests.training.requests import charges, states
from tests.training.stopped import Listener


@pytest.mark.parametrize("method", FEDERATED)
def test_without_noise_several_sites_give_the_head_of_one_place(method: str) -> None:
    def head(sizes: list[int]) -> Solution:
        plan = plan_of(sizes, 8, 3, [2.0] * len(sizes), method)
        cuts = np.split(np.arange(len(X)), np.cumsum(sizes)[:-1])
        sites = [
            local(NonPrivate(claim.facts, Unprotected(stream_of(X[cut], Y[cut]))))
            for claim, cut in zip(plan.claims, cuts, strict=True)
        ]
        # The noise is what shapes the options, so all have those of one place.
        solver = plan_of([len(X)], 8, 3, [2.0], method).solver
        sums = Sums(solver.noise, sites, [1.0] * len(sizes))
        return solver.method.solve(sums, solver.facts, solver.options)

    alone, joint = head([len(X)]), head([449, 449, 1, 1])
    assert np.allclose(joint.weight, alone.weight, rtol=0, atol=1e-5 * np.abs(alone.weight).max())
    assert np.allclose(joint.bias, alone.bias, rtol=0, atol=1e-5 * max(1.0, float(np.abs(alone.bias).max())))


def test_the_noise_of_a_sum_is_what_the_solver_is_told() -> None:
    """Its weights are the best ones: others make more noise for the same number of records."""
    plan = plan_of([800, 150, 50], 8, 3, [1.0, 4.0, 0.5])
    mus = [claim.guarantee.mu for claim in plan.claims if claim.guarantee is not None]

    def noise_of_mean(weights: Any) -> float:
        total = sum(a * each.n for a, each in zip(weights, plan.sites, strict=True))
        return float(np.sqrt(sum((a / mu) ** 2 for a, mu in zip(weights, mus, strict=True))) / total)

    best = noise_of_mean(plan.weights)
    solver = plan.solver
    assert max(plan.weights) == 1
    assert 1 / (solver.noise.mu * solver.facts.n) == pytest.approx(best, rel=1e-3)
    for i in range(3):
        for factor in (0.8, 1.2):
            assert noise_of_mean([a * (factor if j == i else 1) for j, a in enumerate(plan.weights)]) > best


def test_the_weighted_sum_has_the_noise_that_the_solver_is_told() -> None:
    plan = plan_of([80, 15, 5], 64, 3, [1.0, 4.0, 0.5], "dp-fc")
    sites = []
    for i, claim in enumerate(plan.claims):
        nulls = np.zeros((claim.facts.n, 64), np.float32), np.full(claim.facts.n, -1)
        sites.append(local(curator(claim.facts, claim.plan, claim.noise.mu, *nulls, seed=i)))
    solver, query = plan.solver, Gram((Clip(1.0),), 0.2)
    found = Sums(solver.noise, sites, plan.weights).release(query)
    # Beside the diagonal it is σ/√2, in units of 1 + 0.2².
    beside = found[np.triu_indices(65, 1)].std() / 1.04 * np.sqrt(2)
    assert beside == pytest.approx(solver.noise.sigmas[0], rel=0.06)


@pytest.mark.parametrize(("method", "persons"), [*((each, False) for each in FEDERATED), ("dp-ls", True)])
def test_sites_train_one_head_over_sockets(method: str, persons: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their classes have other orders, and answers of dp-ls come in pieces. One of them sends noise alone: it hardly
    counts, and makes the claim no smaller.
    """
    instead.piece_bytes(monkeypatch, 8 * 8 * 8)
    # The plan has the order of the first one, and most records are those of the second one.
    sets = {"south": made_set("south", persons, ("c", "a", "b")), "north": made_set("north", persons)}
    plan = agreed(sets, epsilon=20.0, others={"north": 0.05}, method=method)
    serving = Serving(plan, sets)
    joint = trained(plan)
    ended = serving.heads()
    for name in NAMES:
        own = Head.load(ended[name].path)
        assert np.array_equal(own.weight, joint.weight)
        assert np.array_equal(own.bias, joint.bias)
        assert own.card.parts["federation"] == replace(joint.card.parts["federation"], site=name)
        assert own.card.options == joint.card.options
        # The set is beside the ledger.
        found = verify(ended[name].path, ledger=Path(name, "ledger.sqlite"))
        assert [each.what for each in found.findings if each.result != "ok"] == ["signature"]
        assert COMPUTED in found.unproved
        assert [each.mu for each in charges(sets[name])] == [own.card.mu]
        assert not list(Path(name, "ledger.locks").iterdir())
    assert not verify(JOINT).contradictions
    assert joint.card.epsilon == pytest.approx(20.0, rel=1e-6)
    # No ledger has it, and none is made up.
    assert joint.card.ledger is None
    assert np.mean([found == CLASSES[y] for found, y in zip(joint.predict(X), Y, strict=True)]) > 0.9


def test_a_plan_may_have_a_public_start_that_the_coordinator_alone_reads() -> None:
    sets = {name: made_set(name) for name in NAMES}
    vectors, names = np.stack([X[j == Y].mean(axis=0) for j in range(2)]), {"classes": '["a", "b"]'}
    save_file({"vectors": vectors}, "start.safetensors", names)
    save_file({"vectors": vectors[::-1].copy()}, "other.safetensors", names)
    with refuses("conflict", match="dp-fc", parameter="public_head"):
        agreed(sets, method="dp-fc", start="start.safetensors")
    plain, plan = agreed(sets, epsilon=0.5), agreed(sets, epsilon=0.5, start="start.safetensors")
    assert plan.start is not None
    assert plan.start.without == ("c",)
    for wrong, start in ((plan, None), (plan, "other.safetensors"), (plain, "start.safetensors")):
        with refuses("conflict", parameter="public_head"):
            coordinator.run(wrong, Path(), JOINT, Observer(), 0.0, start)
    others: list[dict[str, Any]] = [{"classes": 30}, {"without": ("d",)}, {"without": ("c", "c"), "classes": 1}]
    for changed in (
        replace(plan, method="dp-fc"),
        *(replace(plan, start=replace(plan.start, **each)) for each in others),
    ):
        Path("changed.json").write_bytes(changed.data)
        with pytest.raises(UserError):
            plans.load(Path("changed.json"))
    serving = Serving(plan, sets)
    joint = trained(plan, "start.safetensors")
    ended = serving.heads()
    for head in (joint, Head.load(ended["north"].path)):
        assert replace(head.card.public_head, trusted=None, doubted=None) == plan.start
    assert not verify(ended["north"].path, ledger=Path("north", "ledger.sqlite")).contradictions
    with refuses("conflict", match="is a head", parameter="public_head"):
        agreed(sets, start=JOINT)


def test_where_one_site_is_not_ready_none_is_charged() -> None:
    sets = {name: made_set(name) for name in NAMES}
    plan = agreed(sets)
    serving = Serving(plan, sets)
    # The cap comes after the site was checked.
    set_cap(sets["south"], 1.0, delta=1e-5)
    with refuses("conflict") as refused:
        trained(plan)
    assert refused.value.fields["ledgers"] == dict.fromkeys(NAMES, "not charged")
    assert not any(map(charges, sets.values()))
    set_cap(sets["south"], 3.0, delta=1e-5, note="agreed")

    class Meanwhile(Observer):
        """A cap comes when all are ready."""

        def say(self, text: str) -> None:
            if text == "south: ready":
                set_cap(sets["south"], 1.0, delta=1e-5)

    with refuses("conflict", site="south") as refused:
        coordinator.run(plan, Path(), JOINT, Meanwhile(), LOST)
    assert refused.value.fields["ledgers"] == {"north": "charged", "south": "not charged"}
    assert [len(charges(each)) for each in sets.values()] == [1, 0]
    set_cap(sets["south"], 3.0, delta=1e-5, note="agreed")
    trained(plan)
    serving.heads()
    assert all(states(each) == ["written"] for each in sets.values())


def test_all_sites_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Barrier(2, timeout=LOST)

    def say(self: Remote, asked: str, *_: Any) -> tuple[str, memoryview]:
        met.wait()
        if asked == "charge" and self.name == "site-1":
            raise coordinator.RefusedError(self.name, "refused")
        return asked, memoryview(b"")

    remote(monkeypatch, say=say)
    with refuses("conflict", site="site-1"):
        trained(plan_of([600, 300], 8, 3, [2.0, 2.0]))


def test_the_file_of_a_joint_head_ends_as_its_claim_says() -> None:
    plan = agreed({name: made_set(name) for name in NAMES})
    with refuses("bad-value", parameter="out"):
        coordinator.run(plan, Path(), Path("joint.nonprivate.safetensors"), Observer(), 0.0)


def test_an_answer_that_records_and_noise_cannot_give_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of a mean is twice as large where a record may be replaced."""
    plan = replace(plan_of([600, 300], 400, 3, [0.01, 0.01]), adjacency="replace-one")
    claim, query = plan.claims[0], Mean((Clip(1.0),))
    north = Remote("north", Path("none"), plan.digest, claim.noise)
    nulls = np.zeros((600, 400), np.float32), np.full(600, -1)
    honest = curator(claim.facts, claim.plan, claim.noise.mu, *nulls).release(query)
    sent: list[bytes] = [b"", honest.tobytes()[:-8], honest.tobytes() + b"\0", (3 * honest).tobytes()]
    sent += [np.full_like(honest, wrong).tobytes() for wrong in (np.nan, np.inf, 1e300)]
    for body in sent:
        remote(monkeypatch, say=lambda *_, body=body, **__: ("answered", memoryview(body)))
        with refuses("damaged"):
            north.part(0, 0, query)
    remote(monkeypatch, say=lambda *_, **__: ("answered", memoryview(honest.tobytes())))
    assert np.array_equal(north.part(0, 0, query), honest)


def test_a_site_that_takes_a_message_and_does_not_reply_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    patience(monkeypatch, 0.05)
    claim = plan_of([600, 300], 8, 3, [2.0, 2.0]).claims[0]
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("north.sock")
        silent.listen()
        with refuses("lost", site="north"):
            Remote("north", Path("north.sock"), "0" * 64, claim.noise, 0.0).say("ready")


def test_patience_is_for_a_whole_reply_and_not_for_each_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second later, and each byte has one."""
    clock = itertools.count()
    patience(monkeypatch, 9.0, monotonic=lambda: next(clock), sleep=lambda _: None)
    monkeypatch.setattr(messages, "_AT_ONCE", 1)
    reply = framed({"state": "ready"}, b"")
    claim = plan_of([600, 300], 8, 3, [2.0, 2.0]).claims[0]
    with socket.socket(socket.AF_UNIX) as slow:
        slow.bind("north.sock")
        slow.listen()

        def answer() -> None:
            connection, _ = slow.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(len(reply).to_bytes(8, "big") + reply)

        threading.Thread(target=answer, daemon=True).start()
        with refuses("lost", site="north"):
            Remote("north", Path("north.sock"), "0" * 64, claim.noise, 0.0).say("ready")


@pytest.mark.parametrize("bad", [0, 2])
def test_a_site_that_stops_whenever_it_is_asked_for_one_release_is_named(
    bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something starts it again each time."""
    claim, begun = plan_of([600, 300], 8, 3, [2.0, 2.0], "dp-fc").claims[0], -1

    def asked(_: Path, message: bytes, limit: int, *more: Any) -> tuple[dict[str, str], memoryview]:
        nonlocal begun
        said = unframed(message)[0]
        if said["ask"] == "charge":
            begun = 0
            return {"state": "charged"}, memoryview(b"")
        if begun < 0 or said["number"] > begun:
            return {"error": "not-charged" if begun < 0 else "out-of-order"}, memoryview(b"")
        begun = -1 if said["number"] == bad else max(begun, said["number"] + 1)
        return {"error": "not-charged"} if begun < 0 else {"state": "answered"}, memoryview(bytes(limit - SHORT))

    monkeypatch.setattr(coordinator, "ask", asked)
    north = Remote("north", Path("none"), "0" * 64, claim.noise)
    with refuses("conflict", site="north"):
        for number in range(3):
            north.part(number, 0, Gram((Clip(1.0),), 0.2))


def test_where_the_place_of_a_joint_head_fails_the_same_command_gets_the_answers_that_were_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = {name: made_set(name) for name in NAMES}
    plan = agreed(sets, method="dp-fc", options={"steps": 1})
    real, lost, folder = coordinator._trained, list[Head](), Path("out")

    def trained_and_moved(*given: Any) -> Head:
        lost.append(real(*given))
        folder.rmdir()
        folder.write_text("no folder any more")
        return lost[-1]

    serving = Serving(plan, sets)
    folder.mkdir()
    with monkeypatch.context() as patch, refuses("unwritable"):
        patch.setattr(coordinator, "_trained", trained_and_moved)
        coordinator.run(plan, Path(), folder / JOINT, Listener(), 20.0)
    folder.unlink()
    folder.mkdir()
    joint = coordinator.run(plan, Path(), folder / JOINT, Listener(), 20.0)
    serving.heads()
    assert np.array_equal(joint.weight, lost[0].weight)
