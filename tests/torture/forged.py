"""Heads that somebody changed: `python -m tests.torture.forged`.

Heads of several methods are trained once. Each mutant is one of them with one field of its card, one step of its
preprocessing or one number of its weights changed. `verify` is asked with the ledger and without it. The ledger must
give away every mutant. Without it, every change of the claim and of the releases must be found; the other areas are
counted. A head that was not changed must pass.
"""

import collections
import copy
import json
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
from tests.torture import campaign, machine

TRAININGS: dict[str, dict[str, Any]] = {
    "whitened": {"epsilon": 2.0},
    "ls": {"epsilon": 1.0, "method": "dp-ls", "adjacency": "replace-one"},
    "sampled": {"noise_multiplier": 4.0, "delta": 1e-5, "method": "dp-sgd", "steps": 3, "sampling_rate": 0.2},
    "seeded": {"epsilon": 1.0, "method": "dp-ls", "seed": 3},
    "open": {"method": "dp-ls", "non_private": True},
}
MORE: dict[str, dict[str, Any]] = {
    "fc": {"epsilon": 0.5, "method": "dp-fc", "steps": 4},
    "newton": {"epsilon": 4.0, "method": "dp-newton", "steps": 2},
    "adam": {"epsilon": 1.0, "method": "dp-adam", "steps": 5, "average": True},
    "continued": {"epsilon": 1.0, "public_head": "whitened"},
}
WEIGHTS, CHAIN = "weights", "preprocessing"
AREAS: dict[str, Sequence[str]] = {
    "claim": ("claim", "epsilon", "delta", "mu", "eta", "accounting"),
    "releases": ("plan",),
    "method": ("method",),
    "options": ("options",),
    "facts": ("facts", "classes", "adjacency", "unit"),
    "other trainings": ("ledger", "public_head"),
    "free text": ("date", "features", "versions"),
}
"""The keys of a card, by what a change of them says."""
CERTAIN = ("claim", "releases")
"""Areas in which no change may pass, even without a ledger. (First-order methods have the same releases and options, so
the name of one can stand for another.)
"""
HARMLESS = ("eta",)
"""What may grow unseen: the claim is then weaker than the truth."""
WORDS = [*METHODS, "private", "research", "non-private", "zero-out", "replace-one", "record", "person", "mean", "gram"]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A changed head. area: of `AREAS`, or `WEIGHTS` or `CHAIN`. place: what was changed. before, after: its values."""

    head: str
    area: str
    place: tuple[str | int, ...]
    before: Any
    after: Any
    data: bytes

    @property
    def harmless(self) -> bool:
        """Whether the change makes the claim weaker only."""
        return self.place[-1] in HARMLESS and type(self.after) is float and self.after > self.before


@dataclass(frozen=True, kw_only=True)
class Original:
    """A head as it was trained: its card, its chain, its arrays."""

    path: Path
    ledger: Path
    metadata: Mapping[str, str]
    arrays: Mapping[str, np.ndarray]


def originals(root: Path, trainings: Mapping[str, Mapping[str, Any]]) -> dict[str, Original]:
    """Heads of a small set, and one of a set that knows persons."""
    x, y = blobs(120, 4, 3, seed=1)
    np.savez(root / "raw.npz", train_x=x, train_y=y)
    np.savez(root / "grouped.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 3)
    plain = import_features(root / "raw.npz", root / "sets" / "plain", classes=3).features
    grouped = import_features(root / "grouped.npz", root / "sets" / "grouped", classes=3).features
    made: dict[str, Original] = {}
    wanted = [(name, plain, dict(options)) for name, options in trainings.items()]
    for name, features, options in [*wanted, ("persons", grouped, {"epsilon": 1.0, "method": "dp-ls"})]:
        if "public_head" in options:
            options["public_head"] = made[options["public_head"]].path
        ends = {"seed": ".research", "non_private": ".nonprivate"}
        end = next((end for option, end in ends.items() if option in options), "")
        with warnings.catch_warnings(action="ignore", category=TrainingWarning):
            path = train(features, out=root / f"{name}{end}.safetensors", **options).path
        with safe_open(path, framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            made[name] = Original(
                path=path, ledger=ledger_path(features.folder), metadata=file.metadata(), arrays=arrays
            )
    return made


def leaves(tree: Any, so_far: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all values of a card that are no objects or lists, and of lists of such values."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    for key, item in items:
        yield from leaves(item, (*so_far, key))
    if not items or isinstance(tree, list):
        yield so_far


def changed(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind, or of none."""
    while True:
        if isinstance(value, bool):
            after: Any = not value
        elif isinstance(value, int):
            after = rng.choice([value + 1, value - 1, 2 * value, value // 2])
        elif isinstance(value, float):
            after = value * rng.choice([0.05, 0.5, 0.999, 1.001, 2.0, 20.0]) if value else 0.5
        elif isinstance(value, str):
            after = rng.choice([value + "x", value[1:], *WORDS])
        elif isinstance(value, list):
            i = rng.randrange(len(value)) if value else 0
            after = [*value[:i], *value[i + 1 :]] if rng.random() < 0.5 else [*value, *value[i : i + 1]]
        else:
            after = rng.choice([1, 0.5, "x"])
        if after != value:
            return after


def mutant(name: str, head: Original, rng: random.Random) -> Mutant:
    """A changed head: in one of five cases its weights, in one of ten its chain, else its card."""
    card, chain = json.loads(head.metadata["card"]), json.loads(head.metadata["chain"])
    arrays = {key: value.copy() for key, value in head.arrays.items()}
    kind = rng.random()
    before: Any
    after: Any
    place: tuple[str | int, ...]
    if kind < 0.2:
        key = rng.choice(sorted(arrays))
        flat = arrays[key].reshape(-1)
        i = rng.randrange(flat.size)
        before = float(flat[i])
        flat[i] = after = rng.choice([before * 1.01 + 1e-6, -before - 1.0, float("nan"), 0.5])
        area, place = (CHAIN if key.startswith("chain") else WEIGHTS), (key, i)
    elif kind < 0.3:
        area, i = CHAIN, rng.randrange(len(chain))
        before = copy.deepcopy(chain)
        if "norm" in chain[i] and rng.random() < 0.7:
            chain[i]["norm"] = changed(chain[i]["norm"], rng)
        else:
            chain.insert(i, {"step": "clip", "norm": 1.0})
        after, place = chain, ("chain", i)
    else:
        keys = [key for key in card if any(key in named for named in AREAS.values())]
        key = rng.choice(keys)
        area = next(area for area, named in AREAS.items() if key in named)
        place = rng.choice(list(leaves(card[key], (key,))))
        within = card
        for step in place[:-1]:
            within = within[step]
        before = within[place[-1]]
        within[place[-1]] = after = changed(before, rng)
    metadata = {**head.metadata, "card": json.dumps(card), "chain": json.dumps(chain)}
    return Mutant(head=name, area=area, place=place, before=before, after=after, data=save(arrays, metadata))


def caught(path: Path, ledger: Path | None) -> bool:
    """Whether a head is refused, or contradicts itself or the ledger."""
    try:
        return bool(verify(path, ledger=ledger).contradictions)
    except UserError:
        return True


@dataclass(kw_only=True)
class Found:
    """How many mutants there were by area, how many were found without the ledger and with it, and what broke."""

    tried: collections.Counter[str]
    alone: collections.Counter[str]
    ledger: collections.Counter[str]
    passed: collections.Counter[str]
    broke: list[str]


def carried_out(root: Path, trainings: Mapping[str, Mapping[str, Any]], count: int, seed: int) -> Found:
    """Make the mutants and verify each of them. No feature set is at hand."""
    os.environ["DPFC_FEATURES"] = str(root / "nowhere")
    heads = originals(root, trainings)
    found = Found(**{name: collections.Counter() for name in ("tried", "alone", "ledger", "passed")}, broke=[])
    for name, head in heads.items():
        if any(caught(head.path, ledger) for ledger in (None, head.ledger)):
            found.broke.append(f"{name} as it was trained is refused")
    path = root / "mutant.safetensors"
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        name = rng.choice(list(heads))
        made = mutant(name, heads[name], rng)
        path.write_bytes(made.data)
        alone, known = caught(path, None), caught(path, heads[name].ledger)
        found.tried[made.area] += 1
        found.alone[made.area] += alone
        found.ledger[made.area] += known
        said = f"{number} ({name}): {'.'.join(map(str, made.place))} {made.before!r} → {made.after!r}"
        if not alone:
            found.passed[".".join(str(step) for step in made.place if isinstance(step, str))] += 1
        if not known:
            found.broke.append(f"the ledger does not give away {said}")
        if not alone and made.area in CERTAIN and not made.harmless:
            found.broke.append(f"nothing gives away {said}")
    return found


def main() -> int:
    """The campaign."""
    options = campaign.arguments(str(__doc__), 1000).parse_args()
    with machine.scratch() as root:
        campaign.prepared(root)
        found = carried_out(root, {**TRAININGS, **MORE}, options.count, options.seed)
    print(f"{'':18}{'mutants':>9}{'found alone':>13}{'with ledger':>13}")
    for area, tried in found.tried.most_common():
        print(f"{area:18}{tried:>9,}{found.alone[area]:>13,}{found.ledger[area]:>13,}")
    totals = (found.tried, found.alone, found.ledger)
    print("{:18}{:>9,}{:>13,}{:>13,}".format("in all", *(sum(each.values()) for each in totals)))
    print("not found without the ledger: " + ", ".join(f"{key} {n}" for key, n in found.passed.most_common()))
    for broke in found.broke:
        print(f"BROKE {broke}")
    return len(found.broke)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
