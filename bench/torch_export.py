"""Whether PyTorch gives the scores of a head from its export: the tests have no torch.

python bench/torch_export.py make HEAD FOLDER                # with dpfc
python -m venv REF && REF/bin/pip install torch safetensors numpy
REF/bin/python bench/torch_export.py check FOLDER            # without dpfc
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

RECORDS = 1_000


def make(head: str, folder: Path) -> None:
    """The export, feature vectors and the scores that dpfc gives them."""
    import dpfc_cli as dpfc

    found = dpfc.Head.load(head)
    dpfc.export(found, "torch", folder / "head.safetensors")
    x = np.random.default_rng(0).normal(size=(RECORDS, found.dim)).astype(np.float32)
    np.savez(folder / "expected.npz", x=x, scores=found.scores(x))


def check(folder: Path) -> None:
    """The largest difference, to 1 or to the score if that is larger."""
    import torch

    spec = importlib.util.spec_from_file_location("dpfc_head_torch", folder / "dpfc_head_torch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = np.load(folder / "expected.npz")
    scores = module.Head.load(folder / "head.safetensors")(torch.from_numpy(expected["x"])).numpy()
    worst = np.abs(scores - expected["scores"]) / np.maximum(1, np.abs(expected["scores"]))
    print(f"torch {torch.__version__}: {worst.max():.1e} over {len(scores):,} records")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        check(Path(sys.argv[2]))
