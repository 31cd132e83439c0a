"""What is said of models of timm where timm is not needed."""

import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones import Wanted
from tests.support import refuses


@pytest.mark.parametrize(
    ("name", "weights", "code", "about"),
    [
        ("timm:resnet18", "own.bin", "unsupported", "weights"),
        ("timm:resnet18", "none.safetensors", "missing", "weights"),
        ("timm:hf-hub:resnet", None, "bad-value", "model"),
        ("timm:hf-hub:../own", None, "bad-value", "model"),
    ],
)
def test_pickles_and_names_that_are_none_are_refused_before_anything_is_fetched(
    name: str, weights: str | None, code: str, about: str
) -> None:
    with refuses(code, parameter=about):
        backbones.check(Wanted(name=name, weights=weights))


def test_of_a_repository_the_configuration_is_fetched_too() -> None:
    found = backbones.files(Wanted(name="timm:hf-hub:some/own@main"), text=False)
    assert [(each.id, each.commit) for each in found] == [
        ("hf:some/own/config.json", "main"),
        ("hf:some/own/model.safetensors", "main"),
    ]
