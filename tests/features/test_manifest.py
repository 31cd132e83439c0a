"""A manifest says public facts and who asserts them; one from a stranger is used as what it says, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST, Manifest, Shard, SplitFacts, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.inventory import inventory
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.records.findings import check
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import card_of
from tests.hostile import DATE, altered, places, standing
from tests.support import refuses, replace

NULL = "0" * 64
WHOLE = Manifest(
    classes=("x", "y"),
    dim=2,
    dtype="float32",
    labels_per_record=1,
    origin="asserted",
    splits={"train": SplitFacts(n=10, shards=(Shard(file="a.h5", rows=10, sha256=NULL),))},
    backbone={"name": "imported", "weights": {"sha256": NULL, "file": "here"}},
    source={"dataset": "a", "identity": {"imported": "a.npz", "listing": {"train": NULL}, "hold_out": 0.1, "k": 1}},
    versions={"numpy": "2"},
    id="0" * 32,
)
"""Its shard is nowhere, so none is read."""
GROUPED = replace(
    WHOLE,
    splits={"train": replace(WHOLE.splits["train"], groups=3)},
    source={**WHOLE.source, "identity": {**WHOLE.source["identity"], "groups": {"train": NULL}}},
    grouped_by={"by": "column", "column": "person"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sets" / "a").mkdir(parents=True)
    return tmp_path / "sets" / "a"


def test_what_is_written_is_read_and_a_set_without_groups_says_nothing_of_them(folder: Path) -> None:
    for manifest in (WHOLE, GROUPED):
        (folder / MANIFEST).write_bytes(manifest.to_json())
        assert load(folder) == manifest
    assert set(json.loads(WHOLE.to_json())) == set(Manifest.__struct_fields__) - {"grouped_by", "subgroups"}


def test_the_fingerprint_names_the_recipe_and_the_classes_and_nothing_of_the_records() -> None:
    """Heads have it. Sets with one fingerprint may share a head."""
    same = [
        replace(WHOLE, id="1" * 32, versions={"jax": "0"}, splits={}),
        replace(WHOLE, source={"dataset": "b", "identity": {"listing": {"train": "other"}}}),
        replace(WHOLE, backbone={"name": "imported", "weights": {"sha256": NULL, "file": "elsewhere"}}),
        GROUPED,
    ]
    assert {each.fingerprint for each in same} == {WHOLE.fingerprint}
    prepared = {"identity": {**WHOLE.source["identity"], "preparation": {"resize": 8}}}
    others = [{"dim": 3}, {"dtype": "float16"}, {"classes": ("y", "x")}, {"backbone": {"name": "vit"}}]
    found = {replace(WHOLE, **each).fingerprint for each in [*others, {"source": prepared}]}  # type: ignore[arg-type]
    assert len(found | {WHOLE.fingerprint}) == 6


def test_whatever_stands_at_a_place_of_a_manifest_is_used_or_refused(folder: Path) -> None:
    whole = json.loads(WHOLE.to_json())
    for place in places(whole):
        refused = []
        for text in altered(whole, place):
            (folder / MANIFEST).write_text(text)
            refused.append(_refused(folder))
        assert any(refused), place


def _refused(folder: Path) -> bool:
    """Whether the set is refused as damaged. If it is not, all that reads its manifest must work."""
    try:
        found = FeatureSet(folder)
    except UserError as error:
        return error.code == "damaged" or pytest.fail(str(error))
    assert len(found.manifest.fingerprint) == 64
    (folder / MANIFEST).write_bytes(found.manifest.to_json())
    assert load(folder) == found.manifest
    # Such a set can be evaluated on, if it has the other split.
    assert len(inventory(folder.parent, folder / "no-heads").sets) == ("train" in found.splits)
    for split in found.splits:
        with pytest.raises(UserError):
            found.verify(split)
    if "train" in found.splits and len(found.classes) > 1:
        made = calibrate(METHODS["dp-ls"], facts_of(found), {}, Privacy(noise_multiplier=30, delta=1e-30))
        solution = Solution(chain=(), weight=np.zeros((1, 1)), bias=np.zeros(1))
        assert made.guarantee is not None
        said = standing(epsilon=made.guarantee.epsilon)
        check(card_of(made, found, DATE, solution, said))
    return False


Change = Callable[[dict[str, Any]], object]
CONTRADICTIONS: list[Change] = [
    lambda m: m.update(version=99),
    lambda m: m.update(surprise=1),
    lambda m: m.update(splits={}),
    lambda m: m.update(classes=["x", "x"]),
    lambda m: m["splits"]["train"].update(n=9),
    lambda m: m["splits"]["train"].update(n=20, shards=m["splits"]["train"]["shards"] * 2),
    lambda m: m["splits"]["train"]["shards"][0].update(file="../../etc/passwd"),
    lambda m: m["source"]["identity"].update(listing={"test": NULL}),
    lambda m: m["splits"]["train"].pop("groups"),
    lambda m: m.pop("grouped_by"),
    lambda m: m["splits"]["train"].update(groups=11),
    lambda m: m["splits"]["train"].update(groups=0),
    lambda m: m["splits"]["train"].update(groups=True),
    lambda m: m.update(grouped_by=["folder"]),
    lambda m: m["source"]["identity"].pop("groups"),
    lambda m: m["source"]["identity"].update(groups={"other": NULL}),
    lambda m: m["source"]["identity"].update(groups=7),
    lambda m: m["source"]["identity"].update(groups={"train": "Hello"}),
]


def test_a_manifest_that_contradicts_itself_is_refused(folder: Path) -> None:
    for i, change in enumerate(CONTRADICTIONS):
        said = json.loads(GROUPED.to_json())
        change(said)
        (folder / MANIFEST).write_text(json.dumps(said))
        with refuses("damaged"):
            pytest.fail(f"{i}: {FeatureSet(folder)}")
