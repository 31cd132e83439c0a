"""`examples/pipeline.mk`: what is there is never made again, and what was killed leaves no half file.

The steps are those of make. In the place of `dpfc` a script writes down each call, makes its file, and dies where it is
told to, with all other processes of the run. That `dpfc` takes these lines is checked with its own parser.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import parsed

MAKEFILE = Path(__file__).parents[1] / "examples" / "pipeline.mk"
RUNS = [f"{method}-eps{epsilon}" for method in ("dp-whitened", "dp-ls") for epsilon in ("0.5", "1")]
SCRIPT = """#!{python} -IS
import json, os, pathlib, signal, sys
words = sys.argv[1:]
with open("calls", "a") as file:
    file.write(json.dumps(words) + "\\n")
path = lambda name: words[words.index(name) + 1]
if "train" in words and os.environ.get("DIES") == path("--epsilon"):
    os.kill(0, signal.SIGKILL)
if "extract" in words:
    folder = pathlib.Path(os.environ["DPFC_FEATURES"], path("--out"))
    folder.mkdir(parents=True)
    folder.joinpath("manifest.json").write_text("made")
for name in ("--plot", "--out"):
    if name in words and "extract" not in words:
        pathlib.Path(path(name)).write_text("made")
if "evaluate" in words and "--csv" in words:
    print("head,top1", flush=True)
    if os.environ.get("DIES") == "evaluate":
        os.kill(0, signal.SIGKILL)
    print(words[2] + ",0.9")
"""
Make = Callable[..., list[list[str]]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Runs the pipeline, and gives the calls of dpfc that it made."""
    monkeypatch.chdir(tmp_path)
    Path("dpfc").write_text(SCRIPT.format(python=sys.executable))
    Path("dpfc").chmod(0o755)

    def run(*words: str, dies: str = "", code: int = 0) -> list[list[str]]:
        Path("calls").write_text("")
        line = ["make", "-f", str(MAKEFILE), "-j2", "DPFC=./dpfc", "EPSILONS=0.5 1", *words]
        ended = subprocess.run(line, env={**os.environ, "DIES": dies}, start_new_session=True, capture_output=True)
        assert ended.returncode == code, ended.stderr
        return [json.loads(each) for each in Path("calls").read_text().splitlines()]

    return run


def of(kind: str, calls: list[list[str]]) -> list[str]:
    """What the calls of one command made or read."""
    return sorted(Path(word).stem for each in calls if kind in each for word in each if word.endswith(".safetensors"))


def test_from_nothing_to_the_plot_and_then_only_what_is_new_runs(make: Make) -> None:
    given = ("CAP=3", "EXTRACT=--pool mean")
    calls = make(*given)
    assert all(parsed(call) for call in calls)
    assert calls[0][1:3] == ["extract", "digits"]
    assert of("train", calls) == sorted(RUNS)
    # The cap is set once, before the first training.
    caps = [i for i, each in enumerate(calls) if "cap" in each]
    assert len(caps) == 1
    assert caps[0] < min(i for i, each in enumerate(calls) if "train" in each)
    lines = Path("pipeline/accuracy.csv").read_text().splitlines()
    assert lines == ["head,top1", *(f"pipeline/heads/{run}.safetensors,0.9" for run in RUNS)]
    assert Path("pipeline/accuracy.svg").exists()
    assert make(*given) == []
    # A head is not trained again because its features are newer.
    os.utime("pipeline/features/digits-scattering/manifest.json")
    assert of("train", make(*given, "EPSILONS=0.5 1 2")) == ["dp-ls-eps2", "dp-whitened-eps2"]


@pytest.mark.parametrize("dies", ["evaluate", "1"])
def test_a_run_that_is_killed_leaves_no_half_file_and_only_the_rest_runs_afterwards(make: Make, dies: str) -> None:
    # One after another, so that it is known what was there.
    make("-j1", dies=dies, code=-9)
    assert [path.name for path in Path("pipeline/heads").iterdir()] == ["dp-whitened-eps0.5.safetensors"]
    assert all(path.read_text().endswith(",0.9\n") for path in Path("pipeline").rglob("*.csv"))
    there = {path.stem for path in Path("pipeline/heads").iterdir()}
    calls = make()
    assert of("train", calls) == sorted(set(RUNS) - there)
    assert not of("extract", calls)
    assert len(Path("pipeline/accuracy.csv").read_text().splitlines()) == 1 + len(RUNS)
    assert make() == []
