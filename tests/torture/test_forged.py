"""A head that somebody changed is given away: each number of its claim by itself, everything else by the ledger."""

import copy
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.methods import METHODS
from dpfc_cli.training.observer import TrainingWarning
from dpfc_cli.training.train import train
from dpfc_cli.verification import verify
from tests.support import blobs
from tests.torture.conftest import is_long, some

TRAININGS: dict[str, dict[str, Any]] = {
    "ls": {"epsilon": 1.0, "method": "dp-ls", "adjacency": "replace-one"},
    "persons": {"epsilon": 1.0, "method": "dp-ls"},
    "whitened": {"epsilon": 2.0},
    "sampled": {"noise_multiplier": 4.0, "delta": 1e-5, "method": "dp-sgd", "steps": 3, "sampling_rate": 0.2},
    "adam": {"epsilon": 1.0, "method": "dp-adam", "steps": 5, "average": True},
    "continued": {"epsilon": 1.0, "public_head": "whitened"},
    "seeded.research": {"epsilon": 1.0, "method": "dp-ls", "seed": 3},
    "open.nonprivate": {"method": "dp-ls", "non_private": True},
}
SHORT = ("ls", "persons")
CLAIM = ("claim", "epsilon", "delta", "mu", "eta", "plan")
"""The keys of a card that no one can change unseen, even without a ledger."""
REST = (
    "method",
    "options",
    "facts",
    "classes",
    "adjacency",
    "unit",
    "ledger",
    "public_head",
    "date",
    "features",
    "versions",
)
WORDS = [*METHODS, "private", "research", "non-private", "zero-out", "replace-one", "record", "person", "mean", "gram"]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Heads of a small set, and one of a set that knows persons. No feature set is at hand when they are verified."""
    root = tmp_path_factory.mktemp("forged")
    x, y = blobs(120, 4, 3, seed=1)
    np.savez(root / "raw.npz", train_x=x, train_y=y)
    np.savez(root / "grouped.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 3)
    sets = {
        name: import_features(root / f"{name}.npz", root / "sets" / name, classes=3).features
        for name in ("raw", "grouped")
    }
    made: dict[str, Path] = {}
    for name in TRAININGS if is_long() else SHORT:
        options = TRAININGS[name]
        if "public_head" in options:
            options = {**options, "public_head": made[options["public_head"]]}
        with warnings.catch_warnings(action="ignore", category=TrainingWarning):
            features = sets["grouped" if name == "persons" else "raw"]
            made[name] = train(features, out=root / f"{name}.safetensors", **options).path
    return made


def caught(path: Path, ledger: Path | None) -> bool:
    """Whether a head is refused, or contradicts itself or the ledger."""
    try:
        return bool(verify(path, ledger=ledger).contradictions)
    except UserError:
        return True


def leaves(tree: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values of a card that are no objects or lists, and of lists of such values."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    for key, item in items:
        yield from leaves(item, (*so_far, key))
    if not items or isinstance(tree, list):
        yield so_far


def others(value: Any) -> st.SearchStrategy[Any]:
    """Other values of the same kind, or of none."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from(sorted({value + 1, value - 1, 2 * value, value // 2} - {value}))
    if isinstance(value, float):
        return st.sampled_from([value * factor for factor in (0.05, 0.5, 0.999, 1.001, 2.0, 20.0)] if value else [0.5])
    if isinstance(value, str):
        return st.sampled_from([each for each in (f"{value}x", value[1:], *WORDS) if each != value])
    if isinstance(value, list):
        return st.sampled_from([[*value, *value[:1]], value[1:]] if value else [[1]])
    return st.sampled_from([1, 0.5, "x"])


@st.composite
def forged(draw: st.DrawFn, path: Path) -> tuple[bytes, tuple[Any, ...], bool]:
    """A head's file with one change; its place, and whether the change makes the claim weaker only."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    card, chain = json.loads(metadata["card"]), json.loads(metadata["chain"])
    before = after = None
    match draw(st.sampled_from(["claim", "claim", "rest", "rest", "weights", "chain"])):
        case "weights":
            place: tuple[Any, ...] = (draw(st.sampled_from(sorted(arrays))),)
            flat = arrays[place[0]].reshape(-1)
            i = draw(st.integers(0, flat.size - 1))
            flat[i] = draw(st.sampled_from([flat[i] * 1.01 + 1e-6, -flat[i] - 1, float("nan"), 0.5]))
        case "chain":
            i, place = draw(st.integers(0, len(chain) - 1)), ("chain",)
            if "norm" in chain[i]:
                chain[i]["norm"] = draw(others(chain[i]["norm"]))
            else:
                chain.insert(i, {"step": "clip", "norm": 1.0})
        case kind:
            key = draw(st.sampled_from([key for key in (CLAIM if kind == "claim" else REST) if key in card]))
            place = draw(st.sampled_from(list(leaves(card[key], (key,)))))
            within = card
            for step in place[:-1]:
                within = within[step]
            before = copy.deepcopy(within[place[-1]])
            within[place[-1]] = after = draw(others(before))
    harmless = place == ("eta",) and isinstance(after, float) and after > (before or 0)
    return save(arrays, {**metadata, "card": json.dumps(card), "chain": json.dumps(chain)}), place, harmless


def test_a_changed_head_is_given_away(
    heads: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "nowhere"))
    ledgers = {name: ledger_path(path.parent / "sets" / "raw") for name, path in heads.items()}
    for name, path in heads.items():
        assert not any(caught(path, ledger) for ledger in (None, ledgers[name]))
    changed, alone = tmp_path / "changed.safetensors", set()

    @some(100)
    @given(data=st.data(), name=st.sampled_from(sorted(heads)))
    def check(data: st.DataObject, name: str) -> None:
        made, place, harmless = data.draw(forged(heads[name]))
        changed.write_bytes(made)
        assert caught(changed, ledgers[name])
        if caught(changed, None):
            alone.add(place[0])
        else:
            assert place[0] not in CLAIM or harmless

    check()
    assert set(CLAIM) <= alone
