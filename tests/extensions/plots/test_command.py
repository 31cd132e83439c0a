"""`--plot` of commands: what is drawn of heads."""

from pathlib import Path

import pytest

from tests.cli.conftest import Dpfc


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_what_a_head_confuses_and_how_heads_compare_is_drawn(dpfc: Dpfc, features: Path, ending: str) -> None:
    for more in (("--epsilon", "8"), ("--non-private", "--out", "heads/plain.nonprivate.safetensors")):
        dpfc("train", "--method", "dp-ls", *more, ends=0)
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[ending]
    one, two = f"one.{ending}", f"two.{ending}"
    dpfc("evaluate", "--plot", one, ends=0)
    dpfc("evaluate", "blobs-dp-ls-eps8", "plain.nonprivate", "--plot", two, ends=0)
    drawn = [Path(each).read_bytes() for each in (one, two)]
    assert all(each.startswith(begins) for each in drawn)
    if ending == "svg":
        assert all(said in drawn[0] for said in (b"Reliability", b"best class"))
        assert all(said in drawn[1] for said in (b"top-1 accuracy, %", b"plain.nonprivate: no guarantee"))
