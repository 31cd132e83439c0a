"""The notebooks of the examples run from top to bottom, in an empty folder."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("examples/notebooks/*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.stem))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_notebook_runs_and_says_as_many_lines_as_it_shows(path: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    exec("".join(cell["source"]), names)
                shown = "".join(line for each in cell["outputs"] for line in each["text"])
                assert len(said.getvalue().splitlines()) == len(shown.splitlines())
