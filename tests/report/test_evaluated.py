"""How figures of evaluations are put into words: what is missing, names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dpfc_cli.evaluation.exact import ClassFigures, Evaluation
from dpfc_cli.heads.metrics import wilson
from dpfc_cli.report.evaluated import heads_named, one, subgroups
from tests.hostile import a_card


def facts_of(n: int, grouped: bool) -> dict[str, str]:
    """What is said of an evaluation of 90 records of a split of n."""
    features: Any = SimpleNamespace(
        folder="set",
        name="set",
        split=lambda name: SimpleNamespace(n=n),
        manifest=SimpleNamespace(grouped_by={"by": "column"} if grouped else None),
    )
    figures = ClassFigures(name="a", n=90, top1=0.5, interval=wilson(45, 90), average_precision=None)
    found = Evaluation(
        split="test",
        n=90,
        top1=0.5,
        interval=wilson(45, 90),
        top5=None,
        top5_interval=None,
        mean_average_precision=None,
        per_class=(figures,),
        private_split=False,
        warnings=(),
    )
    return one(Path("h"), a_card(), features, found).facts


def test_records_without_a_label_and_persons_are_said_beside_the_number_of_records() -> None:
    assert facts_of(90, grouped=False)["records"] == "90"
    assert facts_of(96, grouped=False)["records"].startswith("90 of 96;")
    assert ["intervals" in facts_of(90, grouped=grouped) for grouped in (True, False)] == [True, False]


def test_heads_have_short_names_unless_these_are_the_same() -> None:
    assert heads_named([Path("a/x.safetensors"), Path("b/y.nonprivate.safetensors")]) == ["x", "y.nonprivate"]
    assert heads_named([Path("a/x.safetensors"), Path("b/x.safetensors")]) == ["a/x.safetensors", "b/x.safetensors"]


def test_records_of_no_subgroup_are_counted() -> None:
    part: Any = SimpleNamespace(n=60, top1=None, auroc=None)
    assert [row[:2] for row in subgroups({"f": part}, "records", 30).rows] == [("f", "60"), ("none of these", "30")]
    assert len(subgroups({"f": part}, "records").rows) == 1
