"""dpfc beside other tools: the same work, in turns, measured once and shown as it was stored."""

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import benchmarks, cells, kernels, peers


@pytest.mark.parametrize("kernel", kernels.KERNELS)
def test_a_kernel_is_the_same_work_in_numpy(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "DRAWS", 10_000)
    ours, theirs = (kernels.sketch(make) for make in works(kernel, (96, 8, 5)))
    # The means and the deviations of 10,000 draws differ by so much, ten standard errors, once in 10²² times.
    allowed = 0.1 if kernel == "noise" else kernels.TOLERANCE
    assert kernels.distance(theirs, ours) < allowed


def works(kernel: str, shape: kernels.Shape) -> tuple[Any, Any]:
    return kernels.ours(kernel, shape)(), kernels.theirs(kernel, shape, "numpy")()


def test_a_process_is_measured_alone(tmp_path: Path) -> None:
    """The memory of the one that asks is not counted, and nothing is compiled before."""
    found = peers.measured([sys.executable, "-c", "0"], 60.0)
    assert found is not None
    assert 1 < found["peak"] < 60
    # What was compiled for one contender is not there for another one.
    used = tmp_path / "used"
    line = "import os, pathlib; file = pathlib.Path(os.environ['JAX_COMPILATION_CACHE_DIR'], 'program')"
    line += f"; assert not file.exists(); file.write_text(''); open({str(used)!r}, 'a').write(str(file.parent))"
    for _ in range(2):
        assert peers.measured([sys.executable, "-c", line], 60.0) is not None
    assert not Path(used.read_text()).exists()


def test_the_page_is_what_the_stored_results_say() -> None:
    root = Path(__file__).parents[2]
    made = "\n".join(benchmarks.report(cells.read(root / benchmarks.RESULTS))) + "\n"
    assert made == (root / benchmarks.PAGE).read_text("utf-8")
