"""Exact sums are the same integers for any sharding, any number of devices and any kernel."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dpfc_cli.kernels import products, rows
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.queries import Gradient
from tests.support import exact_sum, one_of_each, stream_of

PROGRAM = """
import sys
import jax, numpy as np
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.facts import Facts
from tests.support import one_of_each, exact_sum, stream_of
assert len(jax.devices()) == int(sys.argv[2])
facts = Facts(n=700, m=3, d=8)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(700, 8)).astype(np.float32), rng.integers(0, 3, 700).astype(np.int32)
sums = [exact_sum(q, stream_of(x, y), facts, Lattice(18)) for q in one_of_each(facts)]
np.savez(sys.argv[1], *sums)
"""


def sums_with(devices: int, folder: Path, platform: str = "cpu") -> list[np.ndarray]:
    out = folder / f"{devices}.npz"
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    if platform == "cpu":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    subprocess.run([sys.executable, "-c", PROGRAM, str(out), str(devices)], check=True, env=environment)
    with np.load(out) as file:
        return [file[name] for name in file.files]


def assert_same_sums(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for query, a, b in zip(one_of_each(Facts(n=700, m=3, d=8)), one, other, strict=True):
        if query.arrays:
            # Logits are float32 and may differ between block shapes. The sums differ little.
            assert np.allclose(a, b, atol=700 * 4e-6 * 4.0**18)
        else:
            assert np.array_equal(a, b)


def test_one_and_four_devices_sum_to_the_same_integers(tmp_path: Path) -> None:
    assert_same_sums(sums_with(1, tmp_path), sums_with(4, tmp_path))


@pytest.mark.skipif(jax.default_backend() == "cpu", reason="this machine has no accelerator")
def test_an_accelerator_and_the_processor_sum_to_the_same_integers(tmp_path: Path) -> None:
    accelerator = sums_with(jax.device_count(), tmp_path, platform="")
    (tmp_path / "processor").mkdir()
    assert_same_sums(sums_with(1, tmp_path / "processor"), accelerator)


def test_blas_and_xla_make_the_same_exact_product() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-(2**18), 2**18, size=(4096, 37)).astype(np.float64)
    b = rng.integers(-(2**18), 2**18, size=(4096, 11)).astype(np.float64)
    exact = a.astype(np.int64).T @ b.astype(np.int64)
    assert np.array_equal(np.asarray(products._device_product(a, b)).astype(np.int64), exact)
    assert np.array_equal((a.T @ b).astype(np.int64), exact)
    assert np.array_equal((a.T @ a).astype(np.int64), a.astype(np.int64).T @ a.astype(np.int64))


@pytest.mark.parametrize("panel", [1, 3, 7, 8, 4096])
def test_grams_do_not_depend_on_their_panels(monkeypatch: pytest.MonkeyPatch, panel: int) -> None:
    monkeypatch.setattr(products, "PANEL", panel)
    a = np.random.default_rng(0).integers(-(2**18), 2**18, size=(100, 8)).astype(np.float64)
    assert np.array_equal(products.gram(a).astype(np.int64), a.astype(np.int64).T @ a.astype(np.int64))


def test_very_wide_grams_do_not_crash() -> None:
    """512 rows of 12,000 columns in one product end the process with a segmentation fault. 256 rows do not."""
    assert products.gram(np.ones((512, 12_000)))[-1, 0] == 512


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
    monkeypatch.setattr(products, "_on_host", lambda: False)
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
    query = Gradient((Clip(1.0),), np.ones((4, 2)), clip=1.0, loss="softmax")
    with jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(True):
        null, unusable = (
            exact_sum(query, stream_of(*records), facts, Lattice(18))
            for records in ((x, np.where(last, np.int32(-1), y)), (np.where(last[:, None], np.float32(np.nan), x), y))
        )
    assert np.array_equal(null, unusable)
