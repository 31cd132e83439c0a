"""The noise of the curator's releases is what the proofs assume, and planted faults are found."""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import noise as noise_module
from dpfc_cli.privacy import sums as sums_module
from dpfc_cli.privacy.curator import draw_noise, lattice_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import Bits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Hessians, Mean, Query, contribution
from tests import noise as noise_checks
from tests.leaks import FAULTS, Draw, Planted
from tests.noise import CHECKS, Drawn, drawn_from, failed
from tests.support import CHAIN, blobs, curator, plan_of

MU = 0.7


class Setting:
    """Releases that are drawn again and again.

    The records and the queries stay the same. So their sums are computed once, and the noise is what differs.
    """

    def __init__(self, m: int, d: int, runs: int, *queries: Callable[[np.ndarray], Query]) -> None:
        self.facts, self.runs = Facts(n=3, m=m, d=d), runs
        theta = np.random.default_rng(0).normal(size=(d + 1, m))
        self.queries = [query(theta) for query in queries]
        plan = plan_of(self.facts, *[(query, 1.0 + i) for i, query in enumerate(self.queries)])
        self.mechanism = Mechanism(facts=self.facts, plan=plan, mu=MU)
        self.lattice = lattice_of(self.mechanism)
        # Two of the records are of one class, so most classes have none.
        self.records = blobs(3, d, 2)

    @cached_property
    def sums(self) -> list[np.ndarray]:
        x, y = self.records
        return [
            sum(
                (contribution(query, x[i], y[i : i + 1], self.facts, self.lattice) for i in range(len(x))),
                np.zeros(query.shape(self.facts)),
            )
            for query in self.queries
        ]

    def drawn(self, draw: Draw, runs: int) -> Drawn:
        """The noise of so many runs, drawn by `draw`."""
        answers: list[list[np.ndarray]] = [[] for _ in self.queries]
        sums = {id(query): total for query, total in zip(self.queries, self.sums, strict=True)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sums_module, "exact_sum", lambda query, *others: sums[id(query)])
            patch.setattr(curator_module, "draw_noise", draw)
            # So large answers take several batches.
            patch.setattr(noise_module, "_BATCH", 512)
            for seed in range(runs):
                oracle = curator(self.facts, self.mechanism.plan, MU, *self.records, seed)
                for query, all_answers in zip(self.queries, answers, strict=True):
                    all_answers.append(oracle.release(query))
        noise = [
            np.array(got) / query.scale(self.facts, self.lattice) - total
            for query, got, total in zip(self.queries, answers, self.sums, strict=True)
        ]
        return drawn_from(self.queries, noise, self.facts, self.mechanism.sigmas, self.lattice)

    @cached_property
    def _honest(self) -> tuple[Drawn, list[np.ndarray]]:
        kept: list[np.ndarray] = []

        def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
            kept.append(draw_noise(query, shape, sigma, bits))
            return kept[-1].copy()

        return self.drawn(draw, self.runs), kept

    @property
    def honest(self) -> Drawn:
        return self._honest[0]

    def faulty(self, planted: Planted) -> Drawn:
        """With a fault. It changes the honest noise that was drawn before."""
        again = iter(self._honest[1])
        draw = planted.fault(lambda query, shape, sigma, bits: next(again).copy())
        return self.drawn(draw, min(self.runs, planted.runs))


def gradient(theta: np.ndarray) -> Query:
    return Gradient(CHAIN, theta, clip=1.0)


SETTINGS = {
    "small": Setting(
        3, 4, 400,
        lambda theta: Mean(CHAIN),
        lambda theta: Gram(CHAIN, constant=0.5),
        lambda theta: ClassSums(CHAIN),
        lambda theta: ClassGrams(CHAIN),
        gradient,
        gradient,
        lambda theta: Hessians(CHAIN, theta, 1, 3, constant=1.0),
    ),
    "wide": Setting(
        10, 50, 200,
        lambda theta: Mean(CHAIN),
        lambda theta: Gram(CHAIN),
        lambda theta: ClassSums(CHAIN),
        gradient,
        gradient,
        lambda theta: Hessians(CHAIN, theta, 9, 10, constant=1.0),
    ),
    "many classes": Setting(12, 5, 100, lambda theta: ClassGrams(CHAIN), lambda theta: ClassSums(CHAIN), gradient),
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_honest_noise_passes_every_check(setting: str) -> None:
    assert failed(SETTINGS[setting].honest) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_the_noise_is_found(name: str) -> None:
    planted = FAULTS[name]
    for setting in planted.settings:
        assert not CHECKS[planted.found_by](SETTINGS[setting].faulty(planted)), setting


def test_honest_noise_fails_a_check_as_rarely_as_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level where it can be counted. Normal numbers of NumPy stand for the noise."""
    monkeypatch.setattr(noise_checks, "FALSE_ALARM", 0.05)
    rng, trials = np.random.default_rng(0), 150
    sigma, parts = np.full(30, 2.0**38), (slice(0, 10), slice(10, 30))
    times = Counter(
        name
        for _ in range(trials)
        for name in failed(Drawn(np.rint(sigma * rng.normal(size=(100, 30))), sigma, parts, symmetric=True))
    )
    assert max(times.values()) <= stats.binom.isf(1e-6, trials, 0.05)
