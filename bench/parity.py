"""Compares dpfc's features of a real checkpoint, ViT-Ti/16 (AugReg), with features that PyTorch computed.

    PYTHONPATH=. python bench/parity.py FOLDER

FOLDER holds vit_ti16_augreg.safetensors (timm's names) and vit_ti16_reference.npz: `pixels` (8 × 32 × 32 × 3), Pillow's
`resized_224` and `paper_crop_256` of them, and `features_224`, the class tokens after the final normalisation.
"""

import sys
from pathlib import Path

import numpy as np

from dpfc_cli import backbones
from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.backbones.preprocess import resized


def main() -> None:
    folder = Path(sys.argv[1])
    weights = str(folder / "vit_ti16_augreg.safetensors")
    stored = np.load(folder / "vit_ti16_reference.npz")
    expected = stored["features_224"]
    norms = np.linalg.norm(expected, axis=1)

    for name, geometry in (
        ("resized_224", Geometry(resize=(224, 224), crop=224)),
        ("paper_crop_256", Geometry(resize=(384, 384), crop=256)),
    ):
        planes = np.asarray(resized(stored["pixels"], geometry)).transpose(0, 2, 3, 1)
        print(f"{name}: {int((planes != stored[name]).sum())} of {planes.size} bytes differ from Pillow's")

    for precision in ("float32", "bfloat16"):
        prepared = backbones.load(
            "vit-ti16", (224, 224, 3), preprocess="native", weights=weights, precision=precision, batch=8, prepared=True
        )
        features = prepared(stored["resized_224"])
        cosine = (features * expected).sum(1) / np.linalg.norm(features, axis=1) / norms
        print(f"{precision}: max |Δ| / norm {(np.abs(features - expected).max(1) / norms).max():.1e}, ", end="")
        print(f"cosine at least {cosine.min():.7f}")

    raw = backbones.load("vit-ti16", (32, 32, 3), weights=weights, batch=8)
    prepared = backbones.load("vit-ti16", (256, 256, 3), weights=weights, batch=8, prepared=True)
    same = np.array_equal(raw(stored["pixels"]), prepared(stored["paper_crop_256"]))
    print(f"the paper's preprocessing here or by Pillow: {'the same bits' if same else 'features differ'}")


if __name__ == "__main__":
    main()
