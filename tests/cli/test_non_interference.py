"""Non-interference: whatever leaves a training beside the curator's answers depends on no record.

The true curator is at work, with two changes: it reads and sums the records and then forgets the sums, and its noise
comes from a fixed seed. Two sets of records with the same public facts, and nothing else in common, must then give the
same bytes everywhere: heads, cards, rows of the ledger, both output streams, exit codes, and names and sizes of files.
Clocks and random names count how often they are asked for, so that one time more or less is seen, too.
"""

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.cli import train as command
from dpfc_cli.cli.help import flag_of, parameters
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import curator
from tests.cli.worlds import LINE, PRIVATE, Seen, both, differences

SEVERAL = "train --features several --epsilon 1"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "dp-whitened": (f"{PRIVATE} --steps 2 --damping 0.5",),
    "dp-whitened with all that is public": (
        f"{PRIVATE} --public-features known --public-head vectors.safetensors --steps 2 --json",
    ),
    "a private head, continued": (
        f"{PRIVATE} --steps 2 --out heads/first.safetensors",
        f"{PRIVATE} --steps 2 --public-head first --out heads/second.safetensors --json",
        "statement second",
    ),
    "dp-fc": (f"{PRIVATE} --method dp-fc --adjacency replace-one --steps 2 --budget-split 0.3,0.7 --json",),
    "dp-ls": (f"{PRIVATE} --method dp-ls --negative-weight 0.2 --ridge 1 --delta 0.02 --allow-large-delta",),
    "dp-newton, tuned": (f"{PRIVATE} --method dp-newton --steps 1 --damping 1 --tune-on known --json",),
    "dp-sgd, sampled": (
        "train --features private --method dp-sgd --noise-multiplier 9 --steps 2 --sampling-rate 0.3 --average",
    ),
    "dp-momentum, verbose": (f"-v {PRIVATE} --method dp-momentum --steps 2 --feature-clip 0.1 --gradient-clip 1",),
    "dp-adam, quiet": (f"-q {PRIVATE} --method dp-adam --steps 2 --learning-rate 1 --memory 8GB",),
    "noise of a seed": (f"{PRIVATE} --method dp-sgd --steps 2 --seed 3 --out heads/a.research.safetensors",),
    "label sets": (f"{SEVERAL} --steps 2", f"{SEVERAL} --method dp-sgd --steps 2 --loss softmax --json"),
    "what comes afterwards": (
        "train --epsilon 1 --method dp-sgd --steps 2 --yes",
        "train --epsilon 1 --method dp-sgd --steps 2 --json",
        "list",
        "list --json",
        "budget",
        "budget --json",
        "statement private-dp-sgd-eps1 --json",
        "evaluate",
        "evaluate private-dp-sgd-eps1 --features private --json",
    ),
    "persons": (
        "train --features persons --epsilon 1 --steps 2 --public-head vectors.safetensors --out heads/p.safetensors",
        "train --features persons --epsilon 1 --method dp-ls --delta 0.02 --json",
        "train --features persons --noise-multiplier 9 --method dp-sgd --steps 2 --sampling-rate 0.3",
        "statement p",
        "budget --features persons",
        "evaluate p --features persons",
        "list",
    ),
    "private evaluations": (
        f"{PRIVATE} --method dp-ls --out heads/h.safetensors",
        "evaluate h --features private --split train --epsilon 1 --delta 0.001 --by me --purpose paper",
        "-v evaluate h --features private --split train --epsilon 80 --json",
        "evaluate h --features private --epsilon 0.1 --csv",
        "budget --features private",
        f"{PRIVATE} --method dp-ls --out heads/later.safetensors",
        "train --features persons --epsilon 1 --method dp-ls --out heads/p.safetensors",
        "evaluate p --features persons --split train --epsilon 1 --markdown",
    ),
    "a rehearsal": (f"{PRIVATE} --infer-classes --dry-run", f"{PRIVATE} --method dp-ls --dry-run --json"),
    "refusals": (
        f"{PRIVATE} --delta 0.5",
        f"{PRIVATE} --memory 1KB",
        f"{PRIVATE} --out heads",
        f"{PRIVATE} --public-features private",
        f"{PRIVATE} --tune-on several",
        "evaluate --epsilon 1",
        "train --features private --sigma 1e30",
    ),
    "an extraction": (
        "extract imagefolder:pictures --classes flu,cold,rare --on-error null --most-null 0.95 --image-size 8 "
        "--pool mean --out found",
    ),
    "a cap": (
        "budget --features private --cap 3 --delta 1e-5 --by officer --note plan",
        f"{PRIVATE} --method dp-ls --by me --purpose figures --json",
        f"{PRIVATE} --method dp-ls --dry-run",
        "budget --features private --cap 2 --json",
        "budget --features private --cap none",
        "budget",
    ),
    "sets that are said to share records": (
        f"{PRIVATE} --method dp-ls --also known --by me",
        f"{PRIVATE} --method dp-ls --also persons --also known --dry-run",
        "budget --features known --also several --by officer --json",
        "train --features persons --method dp-ls --epsilon 1 --json",
        "budget --features private",
        "list",
    ),
    "refusals of what is said to share records": (
        f"{PRIVATE} --method dp-ls --also private",
        f"{PRIVATE} --method dp-ls --also nowhere",
        "budget --also several",
        "budget --features several --also ./several",
    ),
    "refusals under a cap": (
        f"{PRIVATE} --method dp-ls --by {'x' * 101}",
        "budget --features private --cap 3 --delta 0.5",
        "budget --features private --cap none",
        "budget --cap 3",
    ),
    "an import": (
        "import arrays --out fresh --classes 3 --labels-per-record 1 --json",
        "import arrays --out again --classes 3 --labels-per-record 1",
        "train --features fresh --method dp-sgd --steps 2 --epsilon 1",
    ),
}


@pytest.fixture(scope="module")
def seen_of(worlds: dict[str, Path], here: Path) -> Callable[[str], list[Seen]]:
    """What can be seen of a scenario, in each world."""
    known: dict[str, list[Seen]] = {}

    def found(scenario: str) -> list[Seen]:
        if scenario not in known:
            known[scenario] = both(worlds, here, SCENARIOS[scenario])
        return known[scenario]

    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_that_can_be_seen_depends_on_a_record(seen_of: Callable[[str], list[Seen]], scenario: str) -> None:
    one, other = seen_of(scenario)
    assert not differences(one, other)
    codes = {code for name, code in one.items() if name.endswith(": code")}
    assert codes == {2 if scenario.startswith("refusals") else 0}


def test_all_methods_and_all_flags_of_a_training_with_noise_take_part() -> None:
    words = {word for lines in SCENARIOS.values() for line in lines for word in line.split()}
    flags = {flag_of(command.train, name) for name in parameters(command.train)}
    # Other processes see the records as this one does, and write nothing (`test_distributed`).
    assert {*flags, "-q", "-v"} - words == {"--non-private", "--distributed"}
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

        patch.setattr(curator, "draw_noise", drawn)
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
    "ridge": FACTS,
    "sampling_rate": STATED,
    "steps": STATED,
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
    "accounting": STATED,
    "adjacency": STATED,
    "unit": "a word",
    "facts.n": "the number of records is public",
    "facts.m": "the number of classes is asserted",
    "facts.d": "the backbone's",
    "facts.k": "the most labels of a record are asserted",
    "facts.origin": "who asserts them",
    "facts.records": "the number of records is public",
    **{f"plan[].{name}": why for name, why in PLANNED.items()},
    "classes": "their names are asserted",
    "features.name": "the name of a folder",
    "features.split": "a word",
    "features.fingerprint": "a digest of backbone, preparation, precision and classes, and of no record",
    "features.backbone.name": "the backbone's",
    "features.backbone.from": "the name of the file that was imported",
    "features.preparation": STATED,
    "features.dtype": STATED,
    "features.hold_out": STATED,
    "ledger.training": "the number of the row",
    **{f"ledger.{name}": "how often dpfc was run" for name in ("trainings", "private", "unprotected", "other_splits")},
    "ledger.epsilon": "of the plans in the set's own ledger",
    "ledger.exact": "of the plans in the set's own ledger",
    "ledger.unit": "of the plans in the set's own ledger",
    "versions.dpfc": "the program's",
    "public_features.name": "the name of a folder",
    "public_features.rows": "of public records",
    "public_features.fingerprint": "as that of the features",
    "public_features.backbone.name": "the backbone's",
    "public_features.backbone.from": "the name of the file that was imported",
    "public_head.name": "the name of a file",
    "public_head.sha256": "of public class vectors, or of the private head that was continued",
    "public_head.classes": "of public class vectors",
    "public_head.without": "of public class vectors, and names of classes, which are asserted",
    "public_head.made.source": "of public class vectors: a word",
    "public_head.made.model": "of public class vectors: the name of a backbone",
    "public_head.made.count": "of public class vectors: how many prompts or rows",
    "public_head.trusted": "a function of the gradients that are released",
    "public_head.doubted": "a function of the gradients that are released",
    "public_head.releases": "how many kinds of releases the private head that was continued had",
    "public_head.asserted": "the names of folders and files that this head and those before it took for public",
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
ROW = {
    "id": "the number of the row",
    "at": "when the training was charged, before a record was summed",
    "records": "the listing: it depends on the records. The ledger stays with whoever holds them",
    "split": "a word",
    "method": STATED,
    "claim": STATED,
    "epsilon": FACTS,
    "delta": FACTS,
    "mu": FACTS,
    "eta": FACTS,
    "adjacency": STATED,
    "unit": "a word",
    "n": "the number of records is public",
    "releases": "the plan, with the names of `PLANNED`",
    "head": "the name of a file",
    "state": "whether the training ended",
    "sha256": "of the head, which is a function of what was released",
    "who": "the name of an account, or what the user typed. It is in the ledger alone",
    "purpose": "what the user typed. It is in the ledger alone",
    "persons": "a digest of which records belong to which person. It is in the ledger alone",
    "caps": "how many caps were set before",
    "overlaps": "how often it was said before that a set shares records",
}
CAP = {
    "id": "the number of the row",
    "at": "when the cap was set",
    "records": ROW["records"],
    **dict.fromkeys(("epsilon", "delta"), STATED),
    "mu": "a function of epsilon and delta",
    "eta": "a constant",
    "who": ROW["who"],
    "note": ROW["purpose"],
    "trainings": "how many trainings were before",
    "unit": ROW["unit"],
    "persons": ROW["persons"],
}
OVERLAP = {
    "id": "the number of the row",
    "at": "when it was said",
    **dict.fromkeys(("records", "other"), ROW["records"]),
    "name": "what the other set was called",
    "who": ROW["who"],
    "trainings": CAP["trainings"],
}
HEAD = {
    "format": "a constant",
    "card": "see `CARD`",
    "chain": "steps with norms; a function of options and releases",
    "weight": "a function of releases",
    "bias": "a function of releases",
    "chain.0": "a function of releases",
}
LEAVES = ("tuning.tried[].factors", "tuning.finalists[].factors", "tuning.chosen")
"""They have the names of options."""


def names_in(value: Any, place: str = "") -> Iterator[str]:
    """The names in a JSON value, with those that they lie in."""
    if place in LEAVES:
        assert set(value) <= set(OPTIONS)
    if isinstance(value, Mapping) and place not in LEAVES:
        for name, inner in value.items():
            yield from names_in(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from names_in(inner, f"{place}[]")
    else:
        yield place


def test_card_row_and_head_have_the_names_of_the_closed_lists_and_no_other(
    seen_of: Callable[[str], list[Seen]], tmp_path: Path
) -> None:
    of_cards, of_heads, of_rows, of_caps, of_overlaps, of_plans = (set[str]() for _ in range(6))
    for scenario in SCENARIOS:
        seen = seen_of(scenario)[0]
        for name, data in seen.items():
            if name.startswith("heads/"):
                size = int.from_bytes(data[:8], "little")
                tensors = json.loads(data[8 : 8 + size])
                told = tensors.pop("__metadata__")
                assert len(data) == 8 + size + max(tensor["data_offsets"][1] for tensor in tensors.values())
                of_heads |= {*told, *tensors}
                of_cards |= set(names_in(json.loads(told["card"])))
            elif name.endswith(".ledger.sqlite"):
                (tmp_path / "ledger.sqlite").write_bytes(data)
                with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
                    connection.row_factory = sqlite3.Row
                    for row in connection.execute("SELECT * FROM trainings"):
                        of_rows |= set(row.keys())
                        of_plans |= set(names_in(json.loads(row["releases"])))
                    for row in connection.execute("SELECT * FROM caps"):
                        of_caps |= set(row.keys())
                    for row in connection.execute("SELECT * FROM overlaps"):
                        of_overlaps |= set(row.keys())
    assert of_cards == set(CARD)
    assert of_heads == set(HEAD)
    assert of_rows == set(ROW)
    assert of_caps == set(CAP)
    assert of_overlaps == set(OVERLAP)
    assert of_plans == {f"[].{name}" for name in PLANNED}
