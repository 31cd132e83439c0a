"""Masks hide each answer in the sum of all, which is that of one place. What they hide is what the proof says."""

import contextlib
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from bench.federation import plan_of
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.federation import plan as plans
from dpfc_cli.extensions.federation.coordinator import Part, Remote, Sums
from dpfc_cli.extensions.federation.masks import Masks, new_key
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, Unprotected, lattice_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.parts import encoded
from dpfc_cli.privacy.queries import Gram, Mean, Query
from dpfc_cli.verification import verify
from tests import instead
from tests.extensions.federation.sites import (
    CLASSES,
    JOINT,
    PARTS,
    Serving,
    X,
    Y,
    agreed,
    made_set,
    remote,
    said,
    say,
    trained,
)
from tests.support import plan_of as releases
from tests.support import refuses, replace, stream_of
from tests.training.requests import charges

IDS = [bytes([i]) * 16 for i in range(5)]
"""Of the charges of sites."""


def masks_of(keys: list[str], digest: str = "ab" * 32, ids: list[bytes] = IDS) -> list[Masks]:
    """The masks of all sites, which have begun with these charges and no others."""
    return [begun(keys, i, digest, ids) for i in range(len(keys))]


def begun(keys: list[str], own: int, digest: str = "ab" * 32, ids: list[bytes] = IDS) -> Masks:
    for each in Path("keys").glob("*.charges"):
        each.unlink()
    made = Masks(keys, own, digest, Path("keys"))
    assert made.begin(ids[own], b"".join(ids[: len(keys)]))
    return made


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
    lied = [*IDS[:1], b"another charge: ", *IDS[2:]]
    strangers = masks_of(keys, "ac" * 32), masks_of(keys, ids=lied), masks_of([*keys[:2], new_key(Path("keys"))])
    for other in (sent(2, number=5), sent(2, part=1), *(sent(2, by=each) for each in strangers)):
        assert not (sent(0) + sent(1) + other == total).any()
    assert not (sent(0) + sent(1) == (answers[0] + answers[1]).view(np.uint64)).any()


def zeros_of(masks: Masks, count: int) -> np.ndarray:
    return masks.masked(np.zeros(count), 0, 0).view(np.uint64)


def is_uniform(numbers: np.ndarray) -> bool:
    """And none is there twice."""
    for shift in (0, 30, 60):
        found = np.bincount(((numbers >> np.uint64(shift)) % np.uint64(16)).astype(int), minlength=16)
        if np.abs(found - len(numbers) / 16).max() > 6 * math.sqrt(len(numbers) / 16):
            return False
    return len(np.unique(numbers)) == len(numbers)


def test_a_masked_answer_is_uniform_however_long_it_is(keys: list[str]) -> None:
    """Whatever it hides: here it is always the same number."""
    assert is_uniform(zeros_of(masks_of(keys)[1], 200_000))


@pytest.mark.parametrize("count", [4, 5])
def test_each_pair_of_sites_has_a_pad_that_no_other_site_knows(count: int) -> None:
    """Another key of one site changes what each other one sends in a random way. All secrets of the rest are the same,
    so nobody of them knows the difference.
    """
    keys = [new_key(Path("keys")) for _ in range(count)]
    for own, other in itertools.permutations(range(count), 2):
        changed = [*keys[:other], new_key(Path("keys")), *keys[other + 1 :]]
        assert is_uniform(zeros_of(begun(keys, own), 2_000) - zeros_of(begun(changed, own), 2_000))


@pytest.mark.parametrize("views", [(0, 0, 1), (0, 1, 1), (0, 1, 2)])
def test_of_sites_that_were_told_of_other_charges_nothing_is_seen(keys: list[str], views: tuple[int, ...]) -> None:
    """A coordinator that lies gets random numbers of each of them, and of any sum of some."""
    lists = [[*IDS[:3]] for _ in range(3)]
    for at, view in enumerate(views):
        # Each finds its own in its place. Of those with another view it is told something else.
        for own, seen in enumerate(views):
            if seen != view:
                lists[at][own] = bytes([7 + view]) * 16
    sent = [zeros_of(begun(keys, at, ids=lists[at]), 2_000) for at in range(3)]
    for some in itertools.chain.from_iterable(itertools.combinations(sent, many) for many in (1, 2, 3)):
        assert is_uniform(np.sum(some, axis=0))


def test_a_site_takes_one_list_of_charges_with_its_own_in_its_place() -> None:
    plan = agreed({name: made_set(name) for name in PARTS}, method="dp-fc", colluding=1)
    Serving(plan, {"south": FeatureSet(Path("south", "set"))}, ("south",))
    own, query = said("south", plan, "charge"), encoded(Gram((Clip(0.005),), 0.2), None)
    before, behind = IDS[:2]
    assert say("south", plan, "begin") == "other-charges"
    for wrong in (own, before + behind + own, own + before + behind, before + own + behind + behind, before + own):
        assert say("south", plan, "begin", wrong) == "other-charges"
    assert say("south", plan, "release", query, number=0, part=0) == "not-charged"
    for _ in range(2):
        assert say("south", plan, "begin", before + own + behind) == "charged"
        assert say("south", plan, "begin", behind + own + before) == "other-charges"
        assert say("south", plan, "release", query, number=0, part=0) == "answered"
    # Another plan of the same invitations has another list.
    other = replace(plan, id="0" * 32)
    Serving(other, {"south": FeatureSet(Path("south", "set"))}, ("south",), at="other.sock")
    assert say("other", other, "begin", before + said("other", other, "charge") + behind) == "charged"


def test_a_public_key_has_one_encoding_and_no_twin() -> None:
    """Each private key has the same secret with a twin: the top bit counts for nothing, nor do points of low order."""
    sets, prime = {name: made_set(name) for name in PARTS}, 2**255 - 19
    plan = agreed(sets, colluding=1)
    first = int.from_bytes(bytes.fromhex(plan.sites[0].key), "little")
    low = 39382357235489614581723060781553021112529911719440698176882885853963445705823
    for wrong in (
        *(first + 2**255, first),
        # It and the point (0, 0) make a point of the same secrets.
        pow(first, -1, prime),
        *(0, 1, low, prime - 1, prime, prime + 1, prime + 9, 2**255 - 1),
    ):
        key = wrong.to_bytes(32, "little").hex()
        twin = replace(plan, sites=(plan.sites[0], replace(plan.sites[1], key=key), plan.sites[2]))
        Path("twin.json").write_bytes(twin.data)
        with refuses("damaged"):
            plans.load(Path("twin.json"))
        invited = json.loads(Path("south.json").read_text()) | {"key": key}
        Path("twin.json").write_text(json.dumps(invited))
        with pytest.raises(UserError):
            plans.agreed([Path("north.json"), Path("twin.json"), Path("west.json")])


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

    instead.draw_noise(monkeypatch, noise)
    sites = [site(i, cut) for i, cut in enumerate((slice(0, 500), slice(500, 800), slice(800, 900)))]
    total = np.sum(drawn, axis=0)
    instead.draw_noise(monkeypatch, lambda *_: total.copy())
    alone = Curator(mechanism(900, None), Unprotected(stream_of(X, Y)), SeededBits(0)).release(query)
    assert np.array_equal(Sums(mechanism(900, MOST_BITS), sites, [1.0] * 3).release(query), alone)


@pytest.mark.parametrize("method", ["dp-whitened", "dp-ls"])
def test_sites_with_masks_train_one_head_over_sockets(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of dp-ls come in pieces. What each of them sends says nothing, and is sent again."""
    instead.piece_bytes(monkeypatch, 8 * 8 * 8)
    sets = {name: made_set(name) for name in PARTS}
    plan = agreed(sets, epsilon=20.0, method=method, colluding=1)
    real, sent = Remote._part, list[np.ndarray]()

    def part(self: Remote, *given: Any) -> np.ndarray:
        answer = real(self, *given)
        assert np.array_equal(answer.view(np.uint64), real(self, *given).view(np.uint64))
        sent.append(answer.view(np.uint64).ravel())
        return answer

    remote(monkeypatch, _part=part)
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
        assert own.card.parts["federation"].masked(own.card.guarantee) < 16
        assert [each.suffix for each in Path(name, "ledger.federation").iterdir()] == [".json"]
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
    # Nor does a file make such a plan.
    several = plans.agreed(invited)
    for colluding, taken in ((2, True), (1, False)):
        Path("several.json").write_bytes(replace(several, colluding=colluding).data)
        with contextlib.nullcontext() if taken else refuses("damaged"):
            plans.load(Path("several.json"))


def test_a_site_that_was_put_back_from_a_backup_answers_nothing_under_pads_that_were_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of before its charge: so it charges again, and its noise is another one. The difference of two answers under one
    pad would be that of the noise. A coordinator that asks it all the same gets numbers that nobody can unmask.
    """
    sets = {name: made_set(name) for name in PARTS}
    plan = agreed(sets, method="dp-fc", options={"steps": 1}, colluding=1)
    shutil.copytree("north", "restored")
    real, sent = Remote._part, dict[tuple[str, int], bytes]()

    def part(self: Remote, number: int, *given: Any) -> np.ndarray:
        answer = real(self, number, *given)
        sent[self.name, number] = answer.tobytes()
        return answer

    remote(monkeypatch, _part=part)
    serving = Serving(plan, sets, tuple(PARTS))
    with monkeypatch.context() as patch:
        remote(patch, give=lambda *_: None)
        first = trained(plan)
    JOINT.unlink()
    answered, charged = dict(sent), said("north", plan, "charge")
    sent.clear()
    Path("again").mkdir()
    for name in ("south", "west"):
        Path("again", f"{name}.sock").symlink_to(Path(f"{name}.sock").absolute())
    put_back = {"north": FeatureSet(Path("restored", "set"))}
    Serving(plan, put_back, ("north",), at="again/north.sock")
    with refuses("conflict") as refused:
        trained(plan, sockets="again")
    assert refused.value.fields["site"] in ("south", "west")
    assert refused.value.fields["ledgers"] == dict.fromkeys(PARTS, "charged")
    assert not sent, "nobody has answered"
    assert len(charges(put_back["north"])) == 1

    others = b"".join(said(name, plan, "charge") for name in ("south", "west"))
    anew = said("again/north", plan, "charge")
    assert say("again/north", plan, "begin", charged + others) == "other-charges"
    assert say("south", plan, "begin", anew + others) == "other-charges"
    assert say("again/north", plan, "begin", anew + others) == "charged"
    query = encoded(Gram((Clip(0.005),), 0.2), None)
    again = np.frombuffer(said("again/north", plan, "release", query, number=0, part=0), np.uint64)
    moved = again - np.frombuffer(answered["north", 0], np.uint64)
    assert len(set((moved >> np.uint64(60)).tolist())) > 8, "the difference of two noises is far smaller"

    # Those of the first run go on, with the same bytes.
    assert np.array_equal(trained(plan).weight, first.weight)
    assert all(sent[of] == answered[of] for of in answered)
    serving.heads()
