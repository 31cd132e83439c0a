"""dpfc beside other tools: the same work, in turns, measured once and shown as it was stored."""

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import benchmarks, cells, kernels, peers, throughput


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


def test_a_bench_that_was_stopped_measures_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measure(kernel: str, *_: Any) -> dict[str, Any]:
        asked.append(kernel)
        return {"seconds": {"dpfc": 2.0, "numpy": 1.0}, "error": {}, "product": {"float32": 9.0, "float64": 5.0}}

    def compare(model: str, size: int, batch: int, precision: str, *_: Any) -> dict[str, float]:
        asked.append(precision)
        return {"dpfc": 3.0}

    def contend(name: str, *_: Any) -> dict[str, float]:
        asked.append(name)
        return {"seconds": 1.0, "busy": 1.0, "peak": 1.0, "accuracy": 50.0}

    monkeypatch.setattr(kernels, "measure", measure)
    monkeypatch.setattr(throughput, "compare", compare)
    monkeypatch.setattr(peers, "contend", contend)
    monkeypatch.setattr(benchmarks, "WORK", tmp_path / "work")
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    given = ["--made-up", "60x4x3", "--results", str(results), "--out", str(page)]
    benchmarks.main([*given, "--seeds", "1"])
    assert asked == [*kernels.KERNELS, *throughput.CONTENDERS, *in_turns()]
    assert all(words in page.read_text("utf-8") for words in (*peers.WORDS.values(), "| Gram matrix | 2 |"))

    asked.clear()
    cut = results.read_text("utf-8")[:-20]
    results.write_text(cut, "utf-8")
    benchmarks.main([*given, "--seeds", "1"])
    assert asked == [in_turns()[-1]]

    asked.clear()
    known = benchmarks.state()
    monkeypatch.setattr(benchmarks, "state", lambda: {**known, "code": "a later one"})
    benchmarks.main([*given, "--parts", "extraction"])
    assert asked == [*throughput.CONTENDERS]
    said = page.read_text("utf-8")
    assert "begins with a later one" in said
    assert "## Extraction" in said
    assert not any(part in said for part in ("## Kernels", "## Methods"))

    asked.clear()
    monkeypatch.setattr(benchmarks, "state", lambda: known)
    benchmarks.main([*given, "--seeds", "1"])
    assert not asked
    assert "\n".join(benchmarks.report(cells.read(results))) + "\n" == page.read_text("utf-8")
    assert "## Methods" in page.read_text("utf-8")


def in_turns() -> list[str]:
    return [name for name in peers.WORDS for _ in peers.RATES.get(name, (1.0,))]


def test_the_page_is_what_the_stored_results_say() -> None:
    root = Path(__file__).parents[2]
    made = "\n".join(benchmarks.report(cells.read(root / benchmarks.RESULTS))) + "\n"
    assert made == (root / benchmarks.PAGE).read_text("utf-8")
