"""Masks hide each answer in the sum of all, which is that of one place. What they hide is what the proof says."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from bench.federation import plan_of
from dpfc_cli.errors import UserError
from dpfc_cli.federation import plan as plans
from dpfc_cli.federation.coordinator import Part, Remote, Sums
from dpfc_cli.federation.masks import Masks, new_key
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import forms
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, Unprotected, lattice_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import Gram, Mean, Query
from dpfc_cli.trust.claims import masked_epsilon
from dpfc_cli.verification import verify
from tests.federation.sites import CLASSES, PARTS, Serving, X, Y, agreed, made_set, trained
from tests.support import plan_of as releases
from tests.support import refuses, stream_of
from tests.training.requests import charges


def masks_of(keys: list[str], digest: str = "ab" * 32) -> list[Masks]:
    return [Masks(keys, i, digest, Path("keys")) for i in range(len(keys))]


@pytest.fixture
def keys() -> list[str]:
    return [new_key(Path("keys")) for _ in range(3)]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("s", [0.4, 0.5, 0.7, 1.0])
def test_the_noise_of_several_sites_is_as_near_to_one_normal_sum_as_the_theorem_says(s: float, count: int) -> None:
    numbers = np.arange(-60, 61)
    one = norm.cdf((numbers + 0.5) / s) - norm.cdf((numbers - 0.5) / s)
    several = one
    for _ in range(count - 1):
        several = np.convolve(several, one)
    # The density of a normal number and `count` uniform ones, of their characteristic function.
    omega, step = np.linspace(-60, 60, 40_001, retstep=True)
    transformed = np.exp(-count * s**2 * omega**2 / 2) * np.sinc(omega / (2 * np.pi)) ** count
    middle = len(several) // 2
    near = np.array([(np.cos(omega * j) * transformed).sum() * step / (2 * np.pi) for j in range(-25, 26)])
    distance = 0.5 * np.abs(several[middle - 25 : middle + 26] - near).sum()
    series = math.fsum(
        math.exp(-2 * math.pi**2 * s**2 * at**2 * k / (k + 1)) for k in range(1, count) for at in range(1, 50)
    )
    assert distance <= series
    assert count > 2 or distance > series / 4, "the bound says something"
    assert s < 1 or series <= 1.001 * (count - 1) * math.exp(-(math.pi**2) * s**2)


def test_pads_cancel_in_the_sum_of_all_sites_alone(keys: list[str]) -> None:
    masks = masks_of(keys)
    answers = [np.arange(6, dtype=np.int64).reshape(2, 3) * at for at in (1, -(2**60), 2**61)]

    def sent(site: int, number: int = 4, part: int = 0, by: list[Masks] = masks) -> np.ndarray:
        return by[site].masked(answers[site].view(np.float64), number, part).view(np.uint64)

    total = sent(0) + sent(1) + sent(2)
    assert np.array_equal(total.view(np.int64), sum(answers))
    assert np.array_equal(sent(0), sent(0))
    for other in (sent(2, number=5), sent(2, part=1), sent(2, by=masks_of(keys, "ac" * 32))):
        assert not (sent(0) + sent(1) + other == total).any()
    assert not (sent(0) + sent(1) == (answers[0] + answers[1]).view(np.uint64)).any()


def test_a_masked_answer_is_uniform(keys: list[str]) -> None:
    """Whatever it hides: here it is always the same number."""
    sent = masks_of(keys)[1].masked(np.full(200_000, 7, np.int64).view(np.float64), 0, 0).view(np.uint64)
    for shift in (0, 30, 60):
        found = np.bincount(((sent >> np.uint64(shift)) % np.uint64(16)).astype(int), minlength=16)
        assert np.abs(found - len(sent) / 16).max() < 6 * math.sqrt(len(sent) / 16)


@pytest.mark.parametrize(("n", "count", "epsilon"), [(1000, 3, 1.0), (10**5, 400, 1.0), (10, 400, 1e-4)])
def test_the_sum_of_all_sites_fits_into_64_bits(n: int, count: int, epsilon: float) -> None:
    """And each site's own sums are exact on that lattice."""
    noise = plan_of([n] * count, 8, 3, [epsilon] * count, colluding=1).claims[0].noise
    assert noise.pool == lattice_of(noise).bits
    assert (n * count + 40 * count * max(noise.sigmas)) * 4**noise.pool < 2**63
    assert n * 4**noise.pool <= 2**52


@pytest.mark.parametrize("query", [Mean((Clip(1.0),)), Gram((Clip(1.0),), 0.2)])
def test_sums_of_sites_are_those_of_one_place_with_the_same_noise(
    query: Query, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit."""
    masks, real, drawn = masks_of(keys), curator_module.draw_noise, list[np.ndarray]()

    def mechanism(n: int, pool: int | None) -> Mechanism:
        facts = Facts(n=n, m=3, d=8)
        return Mechanism(facts=facts, plan=releases(facts, (query, 1.0)), mu=1.0, pool=pool)

    def noise(*given: Any) -> np.ndarray:
        drawn.append(real(*given))
        return drawn[-1].copy()

    def site(i: int, cut: slice) -> Part:
        records = Unprotected(stream_of(X[cut], Y[cut]))
        answer = Curator(mechanism(cut.stop - cut.start, MOST_BITS), records, SeededBits(i)).release(query)
        return lambda number, part, query: masks[i].masked(answer, number, part)

    monkeypatch.setattr(curator_module, "draw_noise", noise)
    sites = [site(i, cut) for i, cut in enumerate((slice(0, 500), slice(500, 800), slice(800, 900)))]
    total = np.sum(drawn, axis=0)
    monkeypatch.setattr(curator_module, "draw_noise", lambda *_: total.copy())
    alone = Curator(mechanism(900, None), Unprotected(stream_of(X, Y)), SeededBits(0)).release(query)
    assert np.array_equal(Sums(mechanism(900, MOST_BITS), sites, [1.0] * 3).release(query), alone)


@pytest.mark.parametrize("method", ["dp-whitened", "dp-ls"])
def test_sites_with_masks_train_one_head_over_sockets(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of dp-ls come in pieces. What each of them sends says nothing, and is sent again."""
    monkeypatch.setattr(forms, "PIECE_BYTES", 8 * 8 * 8)
    sets = {name: made_set(name) for name in PARTS}
    plan = agreed(sets, epsilon=20.0, method=method, colluding=1)
    real, sent = Remote._part, list[np.ndarray]()

    def part(self: Remote, *given: Any) -> np.ndarray:
        answer = real(self, *given)
        assert np.array_equal(answer.view(np.uint64), real(self, *given).view(np.uint64))
        sent.append(answer.view(np.uint64).ravel())
        return answer

    monkeypatch.setattr(Remote, "_part", part)
    serving = Serving(plan, sets, tuple(PARTS))
    joint = trained(plan)
    ended = serving.heads()
    high = np.concatenate(sent) >> np.uint64(60)
    assert set(high.tolist()) == set(range(16)), "noise alone is far smaller"
    for name in PARTS:
        own = Head.load(ended[name].path)
        assert np.array_equal(own.weight, joint.weight)
        assert not verify(ended[name].path, ledger=Path(name, "ledger.sqlite")).contradictions
        assert [each.epsilon for each in charges(sets[name])] == [20.0]
        assert "1 of the 2 other sites" in own.statement()["trust some"]
        assert masked_epsilon(own.card) < 16
        assert not list(Path(name, "ledger.federation").glob("*.key"))
    # One that was killed before its key was gone.
    key = Path("north", "ledger.federation", f"{plan.part('north').key}.key")
    key.touch()
    assert Serving(plan, sets, ("north",)).heads()["north"].state == "written"
    assert not key.exists()
    assert np.mean([found == CLASSES[y] for found, y in zip(joint.predict(X), Y, strict=True)]) > 0.9


def test_a_total_that_records_and_noise_cannot_give_is_refused() -> None:
    plan, query = plan_of([500, 300, 100], 8, 3, [2.0] * 3, "dp-fc", colluding=1), Gram((Clip(1.0),), 0.2)
    answers = [
        Curator(claim.noise, Unprotected(stream_of(X[:n], Y[:n])), SeededBits(n)).release(query)
        for claim, n in zip(plan.claims, (500, 300, 100), strict=True)
    ]

    def total() -> np.ndarray:
        sites: list[Part] = [lambda *_, answer=answer: answer for answer in answers]
        return Sums(plan.solver.noise, sites, plan.weights).release(query)

    assert np.isfinite(total()).all()
    answers[2] = np.full((9, 9), 2**59, np.int64).view(np.float64)
    with refuses("damaged"):
        total()


def test_a_site_whose_private_key_is_gone_or_whose_peer_has_none_is_not_ready(keys: list[str]) -> None:
    sets = {name: made_set(name) for name in PARTS}
    plan = agreed(sets, colluding=1)
    kept = Path("north", "ledger.federation", f"{plan.part('north').key}.key")
    assert kept.stat().st_mode & 0o777 == 0o600
    other = kept.read_bytes()
    for wrong in (other[:-1], other[::-1], None):
        kept.unlink()
        if wrong is not None:
            kept.write_bytes(wrong)
        assert isinstance(Serving(plan, sets, ("north",)).heads()["north"], UserError)
    assert not charges(sets["north"])
    with refuses("conflict"):
        # A point of small order: its secret is known to all.
        Masks([keys[0], "00" * 32, keys[2]], 0, "ab" * 32, Path("keys"))


def test_masks_need_three_sites_with_one_epsilon() -> None:
    sets = {name: made_set(name) for name in PARTS}
    for colluding in (0, 2):
        with refuses("bad-value", parameter="colluding"):
            agreed(sets, colluding=colluding)
    Path("south.json").write_text(Path("south.json").read_text().replace('"epsilon": 2.0', '"epsilon": 1.0'))
    invited = [Path(f"{name}.json") for name in PARTS]
    assert not plans.agreed(invited).masked
    with refuses("conflict", match="another epsilon"):
        plans.agreed(invited, colluding=1)
