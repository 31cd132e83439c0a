"""A head in JAX: what JAX transforms computes what NumPy does, and claims nothing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from tests.heads.test_head import head as plain
from tests.heads.test_head import saved
from tests.support import refuses, replace

X = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
X[3] = 0
CHAIN = (Clip(1e-30), Centre(np.array([0.25, -1.0])), Linear(np.array([[1.0, 2.0], [0.0, 3.0]])), Clip(0.5))
USES: dict[str, Callable[[Head, jax.Array], jax.Array]] = {
    "scores": lambda head, x: head.scores(x),
    "jit of scores": lambda head, x: jax.jit(head.scores)(x),
    "jit of a head": jax.jit(Head.apply),
    "vmap": jax.vmap(Head.apply, in_axes=(None, 0)),
    "on the device": lambda head, x: jax.device_put(head, jax.devices()[0]).scores(x),
    "features of NumPy": lambda head, x: jax.device_put(head).scores(np.asarray(x)),
    "other axes": lambda head, x: Head.apply(head, x[:, None])[:, 0],
}


@pytest.fixture
def head() -> Head:
    return replace(plain(), chain=CHAIN)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_in_jax_are_those_of_numpy(head: Head, dtype: type) -> None:
    with jax.enable_x64(dtype == np.float64):
        for use, scores in USES.items():
            found = scores(head, jnp.asarray(X))
            assert (isinstance(found, jax.Array), found.dtype) == (True, np.dtype(dtype)), use
            np.testing.assert_allclose(found, head.scores(X), rtol=1e-5, atol=1e-6, err_msg=use)


def test_names_and_probabilities_are_those_of_numpy(head: Head) -> None:
    for several in (False, True):
        own = replace(head, card=replace(head.card, facts=replace(head.card.facts, k=2 if several else 1)))
        for each in (own, jax.device_put(own)):
            assert each.predict(jnp.asarray(X)) == own.predict(X)
            found = each.probabilities(jnp.asarray(X), 2.0)
            assert isinstance(found, jax.Array)
            np.testing.assert_allclose(found, own.probabilities(X, 2.0), atol=1e-6)
    with refuses("bad-record"):
        head.predict(jnp.full((1, 2), jnp.nan))
    with refuses("bad-value", match="2, not 7 × 3"):
        jax.jit(head.scores)(jnp.zeros((7, 3)))


def test_scores_have_derivatives_in_features_and_in_numbers(head: Head) -> None:
    """Norms that are rounded to a grid have others."""
    with jax.enable_x64(True):
        inside, outside = replace(head, chain=(Clip(9.0),)), replace(head, chain=(Clip(0.5), Centre(np.ones(2))))
        for each in (inside, outside):
            check_grads(jax.jit(Head.apply), (each, jnp.asarray(X[:3], float)), 1, ("rev",), rtol=1e-4)  # type: ignore[no-untyped-call]
        slope = jax.grad(lambda x: Head.apply(head, x).sum())(jnp.zeros((1, 2)))
        assert jnp.isfinite(slope).all()


def test_what_jax_makes_of_a_head_has_its_shape_and_claims_nothing(head: Head) -> None:
    slope = jax.grad(lambda head: Head.apply(head, X).sum())(head)
    moved = jax.tree.map(lambda value, step: value - 0.1 * step, head, slope)
    assert isinstance(moved, Head)
    assert moved.classes == head.classes
    assert not np.array_equal(moved.scores(jnp.asarray(X)), head.scores(X))
    assert "epsilon" not in repr(moved)
    uses: tuple[Callable[[Head], object], ...] = (Head.statement, encoded, lambda each: each.card)
    for use in uses:
        with refuses("unsupported"):
            use(moved)
    with pytest.raises(AttributeError):
        _ = moved.cards  # type: ignore[attr-defined]


def test_jax_is_loaded_by_nobody_who_does_not_use_it(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors")
    program = (
        "import sys, numpy, dpfc_cli; head = dpfc_cli.Head.load(sys.argv[1]); head.probabilities(numpy.ones((1, 2)));"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
