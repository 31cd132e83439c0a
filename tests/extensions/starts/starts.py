"""Public starts for tests: files of class vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from dpfc_cli.extensions.starts.vectors import vectors_for
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.training.calibrate import Calibrated, calibrate

VECTORS = np.arange(1, 19, dtype=np.float32).reshape(3, 6) ** 1.5
NAMES = ("otter", "RED_FOX", "badger")


def read(private: FeatureSet, path: Path) -> PublicHead:
    return vectors_for(private.classes, private.dim, path, private)


def saved(path: Path, vectors: np.ndarray = VECTORS, classes: tuple[str, ...] = NAMES, **more: str) -> Path:
    save_file({"vectors": vectors}, path, {"classes": json.dumps(classes), **more})
    return path


def calibrated(private: FeatureSet, method: str = "dp-whitened", **privacy: Any) -> Calibrated:
    return calibrate(METHODS[method], facts_of(private), {}, Privacy(**privacy))
