"""The temperature is the one that was planted, and it is fitted on public records alone."""

from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import FeatureSet, Head, predict, train
from dpfc_cli.prediction.calibration import fit, fitted_temperature
from tests.prediction.conftest import head_of
from tests.support import feature_set, refuses, replace

N, M = 20_000, 4
PLANTED = 2.5


def drawn(seed: int, several: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and labels that are drawn with the probabilities of scores / PLANTED."""
    rng = np.random.default_rng(seed)
    scores = 4 * rng.normal(size=(N, M))
    if several:
        return scores, rng.random((N, M)) < 1 / (1 + np.exp(-scores / PLANTED))
    noisy = scores / PLANTED + rng.gumbel(size=scores.shape)
    return scores, noisy.argmax(axis=1)[:, None] == np.arange(M)


@pytest.mark.parametrize("several", [False, True])
def test_the_temperature_is_that_of_the_labels(several: bool) -> None:
    """The seed is fixed. Its standard error is 0.02: 0.1 is five of them."""
    scores, right = drawn(3, several)
    assert abs(fitted_temperature(scores, right, several) - PLANTED) < 0.1
    assert fitted_temperature(7 * scores, right, several) == pytest.approx(
        7 * fitted_temperature(scores, right, several), 1e-4
    )


def made(folder: Path, name: str, seed: int = 0) -> FeatureSet:
    """A set whose labels follow scores that are `PLANTED` times too large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, M)).astype(np.float32)
    y = (4 * x / PLANTED + rng.gumbel(size=x.shape)).argmax(axis=1)
    folder.mkdir(exist_ok=True)
    half = N // 2
    np.savez(folder / f"{name}.npz", train_x=x[:half], train_y=y[:half], test_x=x[half:], test_y=y[half:])
    return feature_set(folder / f"{name}.npz", folder / name, classes=M)


def of(features: FeatureSet) -> Head:
    return replace(head_of(features), weight=4 * np.eye(M))


def test_probabilities_are_divided_by_it_and_the_order_stays(tmp_path: Path) -> None:
    head, public = of(made(tmp_path, "private")), made(tmp_path, "public", seed=1)
    x = public.arrays("test")[0]
    found = predict(head, x, top=M, calibrate_on=public)
    assert found.calibration is not None
    assert (found.calibration.name, found.calibration.split, found.calibration.n) == ("public", "test", N // 2)
    temperature = found.calibration.temperature
    assert abs(temperature - PLANTED) < 0.2
    rows, plain = list(found), list(predict(head, x, top=M))
    assert [row.classes for row in rows] == [row.classes for row in plain]
    wanted = head.probabilities(x, temperature).max(axis=1)
    np.testing.assert_allclose([row.probabilities[0] for row in rows], wanted)
    assert wanted.mean() < np.mean([row.probabilities[0] for row in plain])


def test_the_set_of_the_training_is_refused(tmp_path: Path) -> None:
    private = made(tmp_path, "private")
    with refuses("private-records", parameter="calibrate_on"):
        predict(of(private), np.zeros((1, M)), calibrate_on=private)
    # A head without a claim protects nobody.
    open_head = replace(of(private), card=replace(of(private).card, claim="non-private"))
    assert fit(open_head, private).n == N // 2


def test_records_that_a_training_protects_are_refused_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    private, head = made(tmp_path, "private"), of(made(tmp_path, "another", seed=4))
    assert fit(head, private).n == N // 2
    with np.load("private.npz") as arrays:
        some = {name: np.concatenate([each[:9], each[20:]]) for name, each in arrays.items()}
    np.savez("mixed.npz", allow_pickle=True, **some)
    mixed = feature_set("mixed.npz", classes=M)
    train(private, epsilon=1.0, method="dp-ls")
    # A set that only shares some of its records is another one: which they are is a fact about private records.
    assert fit(head, mixed).n == N // 2 - 11
    again = made(tmp_path, "private copy")
    for each in (private, again):
        with refuses("private-records", parameter="calibrate_on"):
            fit(head, each)


def test_a_set_that_does_not_fit_is_refused_or_warned_of(tmp_path: Path) -> None:
    head, public = of(made(tmp_path, "private")), made(tmp_path, "public", seed=1)
    for other in (
        replace(head, card=replace(head.card, classes=tuple("abcd"))),
        replace(head, weight=np.eye(M + 1, M)),
    ):
        with refuses("conflict", parameter="calibrate_on"):
            fit(other, public)
    elsewhere = replace(head, card=replace(head.card, features=replace(head.card.features, fingerprint="other")))
    assert [len(fit(each, public).warnings) for each in (head, elsewhere)] == [1, 1]


def test_a_set_without_labels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = made(tmp_path, "public", seed=1)
    bare = np.zeros((9, M), np.float32), np.full((9, 1), -1)
    monkeypatch.setattr(public, "stream", lambda split: lambda rows: iter([(0, *bare)]))
    with refuses("missing", parameter="calibrate_on"):
        fit(of(made(tmp_path, "private")), public)
