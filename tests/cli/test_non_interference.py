"""Non-interference: whatever leaves a training beside the curator's answers depends on no record.

The true curator is at work, with two changes: it reads and sums the records and then forgets the sums, and its noise
comes from a fixed seed. Two sets of records with the same public facts, and nothing else in common, must then give the
same bytes everywhere: heads, cards, rows of the ledger, both output streams, exit codes, and names and sizes of files.
Clocks and random names count how often they are asked for, so that one time more or less is seen, too.
"""

import json
import os
import pickle
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import points
from dpfc_cli.cli import train as command
from dpfc_cli.cli.typed import typed
from dpfc_cli.ledger.facts import KINDS
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.unlabelled import ARRAYS
from dpfc_cli.privacy import curator
from dpfc_cli.training.request import Request, added_hooks
from tests import instead
from tests.cli.worlds import LINE, PRIVATE, Seen, both, differences

SEVERAL = "train --features several --epsilon 1"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "dp-whitened": (f"{PRIVATE} --steps 2 --damping 0.5",),
    "dp-fc": (f"{PRIVATE} --method dp-fc --adjacency replace-one --steps 2 --budget-split 0.3,0.7 --json",),
    "dp-ls": (
        f"{PRIVATE} --method dp-ls --negative-weight 0.2 --damping 1 --raw-matrices --delta 0.02 --allow-large-delta",
    ),
    "dp-newton": (f"{PRIVATE} --method dp-newton --as-published --accounting exact --steps 1 --json",),
    "dp-sgd, sampled": (
        "train --features private --method dp-sgd --noise-multiplier 9 --steps 2 --sampling-rate 0.3 --average",
    ),
    "dp-momentum, verbose": (f"-v {PRIVATE} --method dp-momentum --steps 2 --feature-clip 0.1 --gradient-clip 1",),
    "dp-adam, quiet": (
        f"-q {PRIVATE} --method dp-adam --raw-features --steps 2 --learning-rate 1 --weight-decay 0.5 --memory 8GB",
    ),
    "noise of a seed": (f"{PRIVATE} --method dp-sgd --steps 2 --seed 3 --out heads/a.research.safetensors",),
    "several trainings": (
        f"{PRIVATE} --epsilon 2 --method dp-ls --dry-run",
        f"{PRIVATE} --epsilon 2 --method dp-ls",
        f"{PRIVATE} --epsilon 2 --method dp-ls --score --json",
    ),
    "label sets": (
        f"{SEVERAL} --steps 2",
        f"{SEVERAL} --method dp-sgd --steps 2 --loss softmax --bias-feature 1 --json",
    ),
    "what comes afterwards": (
        "train --epsilon 1 --method dp-sgd --steps 2 --yes --full",
        "train --epsilon 1 --method dp-sgd --steps 2 --again --yes --json",
        "list",
        "list --json",
        "budget",
        "budget --json",
        "statement private-dp-sgd-eps1 --json",
        "evaluate",
        "evaluate private-dp-sgd-eps1 --features private --json",
    ),
    "persons": (
        "train --features persons --epsilon 1 --steps 2 --out heads/p.safetensors",
        "train --features persons --epsilon 1 --method dp-ls --delta 0.02 --json",
        "train --features persons --noise-multiplier 9 --method dp-sgd --steps 2 --sampling-rate 0.3",
        "statement p",
        "budget --features persons",
        "evaluate p --features persons",
        "list",
    ),
    "evaluate --epsilon": (
        f"{PRIVATE} --method dp-ls --out heads/h.safetensors",
        "evaluate h --features private --split train --epsilon 1 --delta 0.001 --by me --purpose paper",
        "-v evaluate h --features private --split train --epsilon 80 --json",
        "evaluate h --features private --epsilon 8 --csv",
        "evaluate h --features private --split train --epsilon 80 --figures both --threshold 0.4 --json",
        "evaluate h --features private --split train --epsilon 8 --figures auroc",
        "evaluate h --features private --split train --epsilon 8 --subgroups sex",
        "evaluate h --features private --released --json",
        "budget --features private --full",
        "list --json",
        f"{PRIVATE} --method dp-ls --again --out heads/later.safetensors",
        "train --features persons --epsilon 1 --method dp-ls --out heads/p.safetensors",
        "evaluate p --features persons --split train --epsilon 1 --markdown",
        "evaluate p --features persons --split train --epsilon 80 --figures auroc --json",
        f"{SEVERAL} --steps 2 --out heads/s.safetensors",
        "evaluate s --features several --split train --epsilon 80 --figures auroc --full",
    ),
    "a rehearsal": (f"{PRIVATE} --dry-run", f"{PRIVATE} --method dp-ls --dry-run --json"),
    "refusals": (
        f"{PRIVATE} --delta 0.5",
        f"{PRIVATE} --memory 1KB",
        f"{PRIVATE} --plot figure.svg",
        f"{PRIVATE} --out a.research.safetensors",
        "evaluate --epsilon 1",
        "train --features private --sigma 1e30",
    ),
    "an extraction": (
        "extract imagefolder:pictures --classes flu,cold,rare --on-error null --most-null 0.95 --image-size 8 "
        "--pool mean --out found",
    ),
    "a cap": (
        "cap 3 --features private --delta 1e-5 --by officer --note plan",
        f"{PRIVATE} --method dp-ls --by me --purpose figures --json",
        f"{PRIVATE} --method dp-ls --dry-run",
        "cap 2 --features private --json",
        "cap none --features private --note end",
        "budget",
    ),
    "sets with records in common": (
        "train --features ward --epsilon 1 --method dp-ls --out heads/w.safetensors",
        "train --features later --epsilon 1 --method dp-ls --json",
        "train --features copy --epsilon 1 --method dp-ls --dry-run --json",
        "train --features copy --epsilon 1 --method dp-ls",
        "evaluate w --features later --split test --epsilon 1 --json",
        "evaluate w --features copy --json",
        "verify w",
        "budget",
        "budget --json",
        "budget --features later --json",
        "list --json",
        "population a --features ward",
        "population b --features later",
    ),
    "a cap refuses what is for sets with records in common": (
        "population ward7 --features ward",
        "cap 1.2 --features ward --delta 1e-5",
        "train --features ward --epsilon 1 --method dp-ls --out heads/w.safetensors",
        "train --features later --epsilon 1 --method dp-ls",
        "train --features copy --epsilon 1 --method dp-ls --dry-run",
        "evaluate w --features later --split test --epsilon 1 --json",
        "cap 1 --features copy",
        "budget --features copy --json",
    ),
    "two ledgers": (
        "population ward7 --features elsewhere/fresh",
        "train --features elsewhere/fresh --epsilon 1 --method dp-ls --json",
        "merge elsewhere --apart ward7 --by me",
        f"{PRIVATE} --method dp-ls --json",
        "budget --json",
    ),
    "refusals under a cap": (
        f"{PRIVATE} --method dp-ls --by {'x' * 101}",
        "cap 3 --features private --delta 0.5",
        "cap none --features private",
        "budget --features private --sigma 1",
    ),
}
HOOKS = {
    "public_features": f"{PRIVATE} --public-features known --steps 2 --json",
    "public_head": "train --features persons --epsilon 1 --public-head vectors.safetensors --steps 2 --json",
    "class_similarity": f"{PRIVATE} --class-similarity vectors.safetensors --steps 2 --json",
    "unlabelled": f"{PRIVATE} --unlabelled known --steps 2 --json",
    "tune_on": f"{PRIVATE} --method dp-newton --steps 1 --damping 1 --tune-on known --json",
}
"""What packages add to trainings, by its option."""
SCENARIOS |= {name: (line,) for name, line in HOOKS.items() if name in points.added("dpfc.hooks")}
if "tune_on" in points.added("dpfc.hooks"):
    SCENARIOS["refusals of a hook"] = (f"{PRIVATE} --tune-on several",)
if "adapt" in points.added("dpfc.predictions"):
    SCENARIOS["predictions that adapt a head"] = (
        f"{PRIVATE} --steps 2 --out judged",
        "predict judged.safetensors known --adapt",
    )
if "ray" in points.added("dpfc.engines"):
    # In which order workers end is seen in the progress.
    SCENARIOS["a training on an engine"] = (f"{PRIVATE} -q --method dp-ls --on ray",)
if "import" in points.added("dpfc.commands"):
    SCENARIOS |= {
        "an import": (
            "import arrays --out fresh --classes 3 --labels-per-record 1 --json",
            "import arrays --out again --classes 3 --labels-per-record 1",
            "train --features fresh --method dp-sgd --steps 2 --epsilon 1",
        ),
    }


@pytest.fixture(scope="module")
def seen_of(
    worlds: dict[str, Path], here: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Seen]]:
    """What can be seen of a scenario, in each world. Of several processes one finds it out for all."""
    top = tmp_path_factory.getbasetemp()
    known = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / "seen"
    known.mkdir(exist_ok=True)

    def found(scenario: str) -> list[Seen]:
        kept = known / str([*SCENARIOS].index(scenario))
        if not kept.exists():
            own = kept.with_name(f"{kept.name}.{os.getpid()}")
            own.write_bytes(pickle.dumps(both(worlds, here, SCENARIOS[scenario])))
            own.replace(kept)
        seen: list[Seen] = pickle.loads(kept.read_bytes())
        return seen

    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_can_be_seen_depends_on_what_was_released_alone(
    seen_of: Callable[[str], list[Seen]], scenario: str
) -> None:
    one, other = seen_of(scenario)
    assert not differences(one, other)
    codes = {code for name, code in one.items() if name.endswith(": code")}
    assert codes == ({2} if scenario.startswith("refusals") else {0, 3} if "refuses" in scenario else {0})


def test_all_methods_and_all_flags_of_a_training_with_noise_take_part() -> None:
    words = {word for lines in SCENARIOS.values() for line in lines for word in line.split()}
    flags = {each.flag for each in typed(command.train, Request, *added_hooks()).values()}
    engines = set() if points.added("dpfc.engines") else {"--on"}
    assert {*flags, "-q", "-v"} - words == {"--non-private", *engines}
    assert set(METHODS) - words == {"dp-whitened"}, "which is the default"


@pytest.mark.parametrize("how", [ValueError, MemoryError, KeyboardInterrupt])
def test_a_training_that_is_stopped_after_its_charge_ends_in_the_same_way(
    worlds: dict[str, Path], here: Path, how: type[BaseException]
) -> None:
    def stopped(patch: pytest.MonkeyPatch) -> None:
        real, calls = curator.draw_noise, count()

        def drawn(*given: Any) -> np.ndarray:
            if next(calls) == 1:
                raise how
            return real(*given)

        instead.draw_noise(patch, drawn)
        patch.setattr(os, "_exit", sys.exit)

    one, other = both(worlds, here, (LINE, "budget"), stopped)
    assert not differences(one, other)
    assert b"stays charged" in one[f"{LINE}: stderr"] or how is ValueError
    assert b"stopped" in one["budget: stdout"]


# --- The closed lists: every name that a card or a row may have, and why it is public. A new one needs a reason here.

STATED = "what the user asked for"
FACTS = "a function of public facts and of what the user asked for"
OPTIONS = {
    "average": STATED,
    "bias_feature": FACTS,
    "budget_split": FACTS,
    "damping": FACTS,
    "feature_clip": FACTS,
    "gradient_clip": FACTS,
    "learning_rate": FACTS,
    "loss": STATED,
    "negative_weight": FACTS,
    "raw_features": STATED,
    "raw_matrices": STATED,
    "sampling_rate": STATED,
    "steps": STATED,
    "weight_decay": STATED,
}
"""Those that are tuned are functions of public records, too."""
PLANNED = {
    "kind": "the method's plan",
    "shape": FACTS,
    "share": FACTS,
    "sigma": FACTS,
    "rate": STATED,
    "times": "the method's plan",
}
CARD = {
    "method": STATED,
    "date": "when the training was charged, before a record was summed",
    **{f"options.{name}": why for name, why in OPTIONS.items()},
    "claim": STATED,
    "epsilon": FACTS,
    "delta": FACTS,
    "mu": FACTS,
    "eta": FACTS,
    "adjacency": STATED,
    "unit": "a word",
    "facts.n": "the number of records is public",
    "facts.m": "the number of classes is asserted",
    "facts.d": "the backbone's",
    "facts.k": "the most labels of a record are asserted",
    "facts.origin": "who asserts them",
    "facts.records": "the number of records is public",
    **{f"plan[].{name}": why for name, why in PLANNED.items()},
    **{f"seeded.{name}": STATED for name in ("seed", "epsilon", "delta")},
    "classes": "their names are asserted",
    "features.name": "the name of a folder",
    "features.split": "a word",
    "features.fingerprint": "a digest of backbone, preparation, precision and classes, and of no record",
    "features.backbone.name": "the backbone's",
    "features.preparation": STATED,
    "features.grouped_by.by": STATED,
    "features.grouped_by.column": STATED,
    "features.dtype": STATED,
    "features.hold_out": STATED,
    "ledger.charge": "random",
    **{f"ledger.{name}": "how often dpfc was run" for name in ("private", "unprotected")},
    **{f"ledger.{name}": "of the plans in the ledger" for name in ("epsilon", "exact", "unit")},
    "versions.dpfc": "the program's",
    "public_features.name": "the name of a folder",
    "public_features.rows": "of public records",
    "public_features.fingerprint": "as that of the features",
    "public_features.backbone.name": "the backbone's",
    "unlabelled.name": "the name of a folder",
    "unlabelled.rows": "of public records",
    "unlabelled.fingerprint": "as that of the features",
    "unlabelled.backbone.name": "the backbone's",
    "class_similarity.name": "the name of a file",
    "class_similarity.sha256": "of public class vectors",
    "class_similarity.holds": "what kind of file it is",
    "public_head.name": "the name of a file",
    "public_head.sha256": "of public class vectors",
    "public_head.classes": "of public class vectors",
    "public_head.without": "of public class vectors, and names of classes, which are asserted",
    "public_head.made.source": "of public class vectors: a word",
    "public_head.made.model": "of public class vectors: the name of a backbone",
    "public_head.made.count": "of public class vectors: how many prompts or rows",
    "public_head.trusted": "a function of the gradients that are released",
    "public_head.doubted": "a function of the gradients that are released",
    "tuning.name": "the name of a folder",
    "tuning.fingerprint": "as that of the features",
    "tuning.facts.n": "of public records",
    "tuning.facts.m": "of public records",
    "tuning.runs": "a constant",
    "tuning.tried[].factors": "the method's grid",
    "tuning.tried[].score": "a function of public records",
    "tuning.finalists[].factors": "the method's grid",
    "tuning.finalists[].score": "a function of public records",
    "tuning.finalists[].sd": "a function of public records",
    "tuning.chosen": "a function of public records",
}
MADE = "a function of what was released"
FIGURES = {
    "head": "the name of a file",
    "head_sha256": "of the head",
    "features": "the name of a folder",
    "split": STATED,
    "unit": "a word",
    **dict.fromkeys(("epsilon", "delta"), FACTS),
    "charge": "random",
    **dict.fromkeys(("n", "top1", "interval", "noise", "top5", "top5_interval", "top5_noise", "per_class"), MADE),
    "per_class[].class": "the classes are asserted",
    **{f"per_class[].{name}": MADE for name in ("n", "top1", "interval", "noise")},
    "threshold": STATED,
    **dict.fromkeys(("subgroups[].column", "subgroups[].value"), STATED),
    **{f"subgroups[].{name}": MADE for name in ("n", "top1", "interval", "noise", "auroc")},
    "ranks[].class": "the classes are asserted",
    **dict.fromkeys(("ranks[].n", "ranks[].sensitivity", "ranks[].specificity"), MADE),
    **{
        f"{of}.{name}": MADE
        for of in (
            "auroc",
            "balanced_accuracy",
            *(f"ranks[].{rate}" for rate in ("auroc", "sensitivity", "specificity")),
        )
        for name in ("value", "interval", "noise")
    },
}
RANDOM, TYPED = "random", "what the user typed. It is in the ledger alone"
SHARED = {
    "at": "when it was written down",
    "by": "the name of an account, or what the user typed. It is in the ledger alone",
    "replaces": "ids of earlier facts, by what the user asked for",
}
LEDGER = {
    "set": {
        "set": RANDOM,
        "name": "the name of a folder",
        "records": "digests of shards: they depend on the records. The ledger stays with whoever holds them",
        **dict.fromkeys(("listing.train", "listing.test"), "digests of records, as above"),
        "population": STATED,
        "adopted": STATED,
    },
    "charge": {
        "set": RANDOM,
        "split": STATED,
        "method": STATED,
        "claim": STATED,
        **dict.fromkeys(("epsilon", "delta", "mu", "eta"), FACTS),
        "adjacency": STATED,
        "unit": "a word",
        "n": "the number of records is public",
        **{f"releases[].{name}": why for name, why in PLANNED.items()},
        "head": "the name of a file",
        "digest": "of options, public facts and the program; of an evaluation, of the head",
        "purpose": TYPED,
    },
    "outcome": {
        "charge": RANDOM,
        "after": RANDOM,
        "state": "whether the training ended",
        "head": "the name of a file",
        "sha256": "of the head, which is a function of what was released",
        "answers": "how many of the planned releases were made",
    },
    "released": {f"figures.{name}": why for name, why in FIGURES.items()},
    "cap": {"population": STATED, "unit": "a word", **dict.fromkeys(("epsilon", "delta"), STATED), "note": TYPED},
    "merge": {"apart": STATED, "same": STATED, "ignored": "ids of facts"},
}
"""What each kind of fact has, and why it depends on no record; `records` and `listing` do."""
HEAD = {
    "format": "a constant",
    "card": "see `CARD`",
    "chain": "steps with norms; a function of options and releases",
    "weight": "a function of releases",
    **{f"evidence.{name}": "a function of releases" for name in (*ARRAYS, "numbers")},
    "evidence.similarity": "public class vectors",
    "bias": "a function of releases",
    "chain.0": "a function of releases",
}
LEAVES = ("tuning.tried[].factors", "tuning.finalists[].factors", "tuning.chosen")
"""They have the names of options."""


def names_in(value: Any, place: str = "") -> Iterator[str]:
    """The names in a JSON value, with those that they lie in."""
    if place in LEAVES:
        assert set(value) <= set(OPTIONS)
    if value and isinstance(value, Mapping) and place not in LEAVES:
        for name, inner in value.items():
            yield from names_in(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from names_in(inner, f"{place}[]")
    else:
        yield place


def test_cards_heads_and_facts_have_the_names_of_the_closed_lists_and_no_other(
    seen_of: Callable[[str], list[Seen]], tmp_path: Path
) -> None:
    of_cards, of_heads = set[str](), set[str]()
    of_facts: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for scenario in SCENARIOS:
        for name, data in seen_of(scenario)[0].items():
            if name.startswith("heads/"):
                size = int.from_bytes(data[:8], "little")
                tensors = json.loads(data[8 : 8 + size])
                told = tensors.pop("__metadata__")
                assert len(data) == 8 + size + max(tensor["data_offsets"][1] for tensor in tensors.values())
                of_heads |= {*told, *tensors}
                of_cards |= set(names_in(json.loads(told["card"])))
            elif name.endswith("ledger.sqlite"):
                (tmp_path / "ledger.sqlite").write_bytes(data)
                with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
                    for kind, body in connection.execute("SELECT kind, body FROM facts"):
                        of_facts[kind] |= set(names_in(json.loads(body)))
    absent = {"tuning" if name == "tune_on" else name for name in HOOKS if name not in SCENARIOS}
    assert of_cards == {name for name in CARD if name.partition(".")[0] not in absent}
    assert of_heads == set(HEAD)
    assert of_facts == {kind: {*names, *SHARED} for kind, names in LEDGER.items()}
