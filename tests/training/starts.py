"""Public starts for tests: sets of three classes, and files of class vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.file import read as read_ledger
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.options import MethodName
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.training import public_start as start
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.run import Trained
from dpfc_cli.training.train import train
from tests.support import blobs, feature_set
from tests.training.stopped import Listener

CLASSES = ("red fox", "Wolf", "otter")
VECTORS = np.arange(1, 19, dtype=np.float32).reshape(3, 6) ** 1.5
NAMES = ("otter", "RED_FOX", "badger")


def made(folder: Path, name: str, seed: int, classes: tuple[str, ...] = CLASSES) -> FeatureSet:
    x, y = blobs(120, 6, 3, seed=seed)
    np.savez(folder / f"{name}.npz", train_x=x, train_y=y)
    return feature_set(folder / f"{name}.npz", folder / "features" / name, classes=classes)


def read(private: FeatureSet, path: Path | str) -> Any:
    return start.vectors_for(private.classes, private.dim, path, (private, read_ledger(ledger_path(private.folder))))


def npz(path: Path, vectors: np.ndarray = VECTORS, classes: tuple[str, ...] = NAMES) -> Path:
    np.savez(path, vectors=vectors, classes=np.array(classes))
    return path


def safetensors(path: Path) -> Path:
    save_file({"vectors": VECTORS}, path, {"classes": json.dumps(NAMES)})
    return path


def calibrated(private: FeatureSet, method: str = "dp-whitened", **privacy: Any) -> Calibrated:
    return calibrate(METHODS[method], facts_of(private), {}, Privacy(**privacy))


def head_of(features: FeatureSet, method: MethodName = "dp-whitened", **others: Any) -> Trained:
    return train(features, **{"method": method, "steps": 2, "observer": Listener(), "again": True, **others})
