"""What programs read of `dpfc statement`, `dpfc verify` and `dpfc train` is what the published schemas say."""

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
    schema = json.loads((SCHEMAS / f"{told['schema'].split('/')[1]}.json").read_text())
    assert told["schema"] == schema["$id"] == schema["properties"]["schema"]["const"]
    check = fastjsonschema.compile(schema)
    check(told)
    for changed in (
        {**told, "more": 1},
        {**told, "schema": "dpfc/other/1"},
        {k: v for k, v in told.items() if k != schema["required"][1]},
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
        line = ("train", *privacy, "--method", "dp-ls", "--again")
        trained, many = valid(dpfc, *line, "--out", out), valid(dpfc, *line, "--method", "dp-fc", "--score")
        assert {*many["trainings"][0]} == {*trained} & {*many["trainings"][0]}
        assert (trained["accuracy"], 0.5 < many["trainings"][0]["accuracy"] <= 1) == (None, True)
        assert (valid(dpfc, "statement", out)["means"] is None) == (not out.startswith("a"))
        assert valid(dpfc, "verify", out)["state"] == "confirmed"
    shutil.copy("a.safetensors", "c.safetensors")
    Path("a.safetensors").write_bytes(Path("b.nonprivate.safetensors").read_bytes())
    shutil.rmtree("features")
    assert valid(dpfc, "verify", "c.safetensors")["state"] == "not confirmed"
