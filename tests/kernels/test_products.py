"""Exact sums are the same integers for any sharding, any number of devices and any kernel."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import Any

import jax
import numpy as np
import pytest

from dpfc_cli.kernels import products, rows
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.directions import Directions, InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.passes import block_rows
from dpfc_cli.privacy.queries import Mean
from tests import instead
from tests.support import LOST, every_query, exact_sum, of_each_way, stream_of

PROGRAM = """
import sys
import jax, numpy as np
from tests.kernels.test_products import sums_here
assert len(jax.devices()) == int(sys.argv[2])
np.savez(sys.argv[1], *sums_here())
"""


def sums_here() -> list[np.ndarray]:
    """Sums of which one reads weights and one does not, on the devices of this process."""
    facts, rng = Facts(n=700, m=3, d=8), np.random.default_rng(0)
    x, y = rng.normal(size=(700, 8)).astype(np.float32), rng.integers(0, 3, 700).astype(np.int32)
    return [exact_sum(query, stream_of(x, y), facts, Lattice(18)) for query in of_each_way(facts)[::2]]


def sums_with(devices: int, folder: Path) -> list[np.ndarray]:
    """The same by so many processors."""
    out, flags = folder / "sums.npz", f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    subprocess.run([sys.executable, "-c", PROGRAM, str(out), str(devices)], check=True, env=environment)
    with np.load(out) as file:
        return [file[name] for name in file.files]


def assert_same_sums(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for query, a, b in zip(of_each_way(Facts(n=700, m=3, d=8))[::2], one, other, strict=True):
        if query.arrays:
            # Logits are float32 and may differ between block shapes. The sums differ little.
            assert np.allclose(a, b, atol=700 * 4e-6 * 4.0**18)
        else:
            assert np.array_equal(a, b)


def test_one_and_four_devices_sum_to_the_same_integers(tmp_path: Path) -> None:
    assert_same_sums(sums_here(), sums_with(4, tmp_path))


@pytest.mark.skipif(jax.default_backend() == "cpu", reason="this machine has no accelerator")
def test_an_accelerator_and_the_processor_sum_to_the_same_integers(tmp_path: Path) -> None:
    assert_same_sums(sums_with(1, tmp_path), sums_here())


def test_no_blas_has_several_threads_in_each_of_several_threads() -> None:
    """Not SciPy's own either, though a process loads it late. They would wait for one another, and for the others."""
    program = """
import numpy as np
from threadpoolctl import threadpool_info
from dpfc_cli import threads
from dpfc_cli.kernels import products
threads.cores = lambda: 2
def blocks():
    for number in range(8):
        yield np.ones((2048, 300)), np.ones((2048, 100))
    # The first ones were multiplied.
    print(*(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"))
assert (products.summed(blocks(), (300, 100)) == 8 * 2048).all()
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    line = [sys.executable, "-c", program]
    assert subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout == "1 1\n"


def test_blas_and_xla_make_the_same_exact_product() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-(2**18), 2**18, size=(4096, 37)).astype(np.float64)
    b = rng.integers(-(2**18), 2**18, size=(4096, 11)).astype(np.float64)
    exact = a.astype(np.int64).T @ b.astype(np.int64)
    assert np.array_equal(np.asarray(products._device_product(a, b)).astype(np.int64), exact)
    assert np.array_equal((a.T @ b).astype(np.int64), exact)
    assert np.array_equal((a.T @ a).astype(np.int64), a.astype(np.int64).T @ a.astype(np.int64))


@pytest.mark.parametrize("panel", [1, 3, 7, 8, 4096])
def test_grams_do_not_depend_on_their_panels_and_no_product_is_wider(
    monkeypatch: pytest.MonkeyPatch, panel: int
) -> None:
    """512 rows of 12,000 columns in one product end the process with a segmentation fault."""
    widths: list[int] = []

    class Watched(np.ndarray):
        def __matmul__(self, other: Any) -> Any:
            widths.extend((len(self), other.shape[1]))
            return np.asarray(self) @ np.asarray(other)

    assert products.PANEL <= 4096
    monkeypatch.setattr(products, "PANEL", panel)
    a = np.random.default_rng(0).integers(-(2**18), 2**18, size=(100, 13)).astype(np.float64)
    assert np.array_equal(products.gram(a.view(Watched)).astype(np.int64), a.astype(np.int64).T @ a.astype(np.int64))
    assert max(widths) == min(panel, 13)


def test_class_grams_and_weighted_grams_are_exact() -> None:
    rng = np.random.default_rng(0)
    q = rng.integers(-100, 100, size=(50, 4)).astype(np.float64)
    labels = rng.integers(0, 3, size=50)
    members = np.eye(4)[labels]
    total = np.zeros((4, 4, 4))
    products.add_class_grams(total, labels, q.astype(np.int16))
    assert np.array_equal(total, np.einsum("nm,nd,ne->mde", members, q, q))
    weights = rng.integers(0, 2**14, size=(50, 4)).astype(np.float64)
    products.add_weighted_grams(total, weights, q)
    assert np.array_equal(total, np.einsum("nm,nd,ne->mde", members + weights, q, q))


def test_devices_make_the_same_weighted_grams_as_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q = rng.integers(-(2**11), 2**11, size=(64, 5)).astype(np.float64)
    weights = rng.integers(0, 2**14, size=(64, 3)).astype(np.float64)
    host, device = np.ones((3, 5, 5)), np.ones((3, 5, 5))
    products.add_weighted_grams(host, weights, q)
    instead.on_host(monkeypatch, False)
    monkeypatch.setattr(products, "_add_symmetric", None)
    products.add_weighted_grams(device, jax.numpy.asarray(weights), jax.numpy.asarray(q))
    assert np.array_equal(host, device)


def test_without_64_bits_nothing_is_computed() -> None:
    def doubled(block: tuple[jax.Array, ...], arrays: object, xp: object) -> tuple[jax.Array, ...]:
        return (2 * block[0],)

    block = (np.ones((4, 2)),)
    assert rows.run(doubled, block, {})[0].dtype == np.float64
    with jax.enable_x64(False), pytest.raises(TypeError, match="float64"):
        rows.run(doubled, block, {})


def test_jaxs_search_for_nan_does_not_tell_of_a_record() -> None:
    """With JAX_DEBUG_NANS and JAX_DISABLE_JIT a record with NaN stopped the training, and a null record did not."""
    facts = Facts(n=4, m=2, d=3)
    x, y = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1], np.int32)
    last = np.arange(4) == 3
    query = Mean((Clip(1.0),))
    with jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(True):
        null, unusable = (
            exact_sum(query, stream_of(*records), facts, Lattice(18))
            for records in ((x, np.where(last, np.int32(-1), y)), (np.where(last[:, None], np.float32(np.nan), x), y))
        )
    assert np.array_equal(null, unusable)


# Threads

RNG = np.random.default_rng(0)
TYPES = ("int16", "float32", "float64")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many multiplications are few. By default threads are started for products of any size."""

    def says(most: int) -> None:
        monkeypatch.setattr(products, "SMALL", most)

    says(0)
    return says


def blocks(dtype: str, lengths: tuple[int, ...] = (1300, 512, 1, 700)) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (RNG.integers(-(2**14), 2**14, (n, 6)).astype(dtype), RNG.integers(-(2**17), 2**17, (n, 4)).astype(np.float64))
        for n in lengths
    ]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("cores", [1, 2, 5, 100])
def test_any_number_of_threads_adds_each_block_once(cores: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instead.cores(monkeypatch, cores)
    made = blocks(dtype)
    left, right = (np.concatenate(parts).astype(np.int64) for parts in zip(*made, strict=True))
    assert np.array_equal(products.summed(iter(made), (6, 4)), left.T @ right)
    assert np.array_equal(products.summed(((a, a) for a, _ in made), (6, 6), alone=True), left.T @ left)


@pytest.mark.parametrize("alone", [False, True], ids=["two factors", "one factor"])
@pytest.mark.parametrize("room", [0.5, 2, 3, 4.5, 100], ids=lambda room: f"room for {room} blocks")
def test_few_blocks_are_made_before_they_are_added(room: float, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks that are there, and all sums, fit into what is counted, and no fewer are made."""
    instead.cores(monkeypatch, 8)
    block = np.ones((100, 6)), np.ones((100, 6))
    monkeypatch.setattr(products, "SUMS", int(room * (1 if alone else 2) * block[0].nbytes))
    real, lock, made, added, working, peak, most = products._added, Lock(), 0, 0, 0, 0, 0
    late = Event()

    def counted(*given: Any) -> np.ndarray:
        nonlocal added, working, most
        with lock:
            working += 1
            most = max(most, working)
        # Until as many blocks are there as there can be.
        assert late.wait(LOST)
        total = real(*given)
        with lock:
            added, working = added + 1, working - 1
        return total

    def blocks_of() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal made, peak
        for _ in range(40):
            made += 1
            peak = max(peak, made - added)
            if made >= allowed:
                late.set()
            yield block

    allowed = 1 if room < 3 else min(8, int(room) - 1) + 1
    instead.on_host(monkeypatch, True)
    monkeypatch.setattr(products, "_added", counted)
    total = products.summed(blocks_of(), (6, 6), alone=alone)
    assert (total == 4000).all()
    assert (peak, made) == (allowed, 40)
    assert most <= max(1, allowed - 1)


def test_no_thread_is_started_for_products_that_are_small(
    small: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit makes thousands of them. Class matrices of real numbers are the same to the last bit, too."""
    instead.cores(monkeypatch, 2)
    made, labels = blocks("float64"), RNG.integers(0, 3, 1300)
    q, weights = RNG.normal(size=(1300, 6)), RNG.random((1300, 3))

    def sums() -> list[np.ndarray]:
        by_class, weighted = np.zeros((3, 6, 6)), np.zeros((3, 6, 6))
        products.add_class_grams(by_class, labels, q)
        products.add_weighted_grams(weighted, weights, q)
        return [products.summed(iter(made), (6, 4)), by_class, weighted]

    expected = sums()
    monkeypatch.setattr("threading.Thread.start", None)
    with pytest.raises(TypeError):
        sums()
    small(1300 * 6 * 6 * 3)
    for one, other in zip(expected, sums(), strict=True):
        assert np.array_equal(one, other)
    small(1300 * 6 * 6 * 3 - 1)
    with pytest.raises(TypeError):
        sums()


def test_real_numbers_are_added_in_the_order_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of these depend on the order, and the non-private baseline is to be the same in each run."""
    instead.cores(monkeypatch, 2)
    made = [(RNG.normal(size=(40, 6)), RNG.normal(size=(40, 4)) * 10.0**i) for i in range(8)]
    total = np.zeros((6, 4))
    for a, b in made:
        total += a.T @ b
    assert np.array_equal(products.summed(iter(made), (6, 4), integers=False), total)


class BrokenError(Exception):
    """What a pass raises in these tests."""


@pytest.mark.parametrize("where", ["in the stream", "in the products", "in the last product"])
def test_an_error_ends_the_sum(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that lacks a block is never returned, and no thread waits for one that has failed."""
    instead.cores(monkeypatch, 2)

    def failing() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from blocks("float32")
        if where == "in the stream":
            raise BrokenError
        for _ in range(1 if where == "in the last product" else 4):
            yield np.ones((3, 6)), np.ones((4, 4))

    with pytest.raises(BrokenError if where == "in the stream" else ValueError):
        products.summed(failing(), (6, 4))


N = 1025
"""Two parts of 512 records, and one record."""
FACTS = Facts(n=N, m=3, d=6)
X, Y = RNG.normal(size=(N, 6)).astype(np.float32), RNG.integers(0, 3, N).astype(np.int32)
QUERY = every_query(FACTS)[-1]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="an accelerator computes whole blocks")
def test_a_block_in_parts_gives_the_same_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts the last block is padded less. Logits are float32, and they are equal to the last bit all the same."""
    size = block_rows(FACTS)
    sample = RNG.random(FACTS.n) < 0.6

    def sums() -> list[np.ndarray]:
        kept = Directions(InMemory())
        passes = [(None, kept), (None, kept), (sample, kept)]
        return [exact_sum(QUERY, stream_of(X, Y), FACTS, Lattice(18), *each) for each in passes]

    found = []
    for part in (size, 512):
        monkeypatch.setattr(rows, "CHUNK", part)
        assert rows.chunk(size) == part
        found.append(sums())
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)
        assert a.any()
