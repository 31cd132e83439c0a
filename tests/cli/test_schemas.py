"""What programs read of `dpfc statement` and `dpfc verify` is what the published schemas say."""

import json
import shutil
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

from tests.cli.conftest import Dpfc

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def valid(dpfc: Dpfc, *line: str) -> dict[str, Any]:
    """What a command tells programs, which its schema allows."""
    told: dict[str, Any] = json.loads(dpfc(*line, "--json").stdout)
    schema = json.loads((SCHEMAS / f"{line[0]}.json").read_text())
    assert told["schema"] == schema["$id"] == schema["properties"]["schema"]["const"]
    check = fastjsonschema.compile(schema)
    check(told)
    for changed in (
        {**told, "more": 1},
        {**told, "schema": "dpfc/other/1"},
        {k: v for k, v in told.items() if k != "sha256"},
    ):
        with pytest.raises(fastjsonschema.JsonSchemaException):
            check(changed)
    return told


def test_statements_and_checks_have_the_form_that_is_published(dpfc: Dpfc, features: Path) -> None:
    for out, *privacy in (
        ("a.safetensors", "--epsilon", "2"),
        ("b.nonprivate.safetensors", "--non-private"),
        ("c.research.safetensors", "--epsilon", "2", "--seed", "1"),
    ):
        dpfc("train", *privacy, "--method", "dp-ls", "--out", out, "--again", ends=0)
        assert (valid(dpfc, "statement", out)["means"] is None) == (not out.startswith("a"))
        assert valid(dpfc, "verify", out)["state"] == "confirmed"
    shutil.copy("a.safetensors", "c.safetensors")
    Path("a.safetensors").write_bytes(Path("b.nonprivate.safetensors").read_bytes())
    shutil.rmtree("features")
    assert valid(dpfc, "verify", "c.safetensors")["state"] == "not confirmed"
