"""Feature sets for experiments: arrays in a folder, a feature set of dpfc, or made up."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.lookup import open_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.facts import Facts


@dataclass(frozen=True, eq=False)
class Data:
    """A set for training and test. x: n × d features; y: n labels; m: number of classes. persons: of each training
    record; None if each record is a unit.
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    m: int
    persons: np.ndarray | None = None

    @property
    def facts(self) -> Facts:
        """Of the training records."""
        n, d = self.x.shape
        if self.persons is None:
            return Facts(n=n, m=self.m, d=d)
        return Facts(n=int(self.persons[-1]) + 1, rows=n, unit="person", m=self.m, d=d)

    @property
    def digest(self) -> str:
        """SHA-256 of all that a result depends on; the same for arrays and for the feature set that is made of them."""
        made = hashlib.sha256(f"{self.x.shape} {self.m}".encode())
        for part in (self.x, self.y, self.test_x, self.test_y, self.persons):
            made.update(b"" if part is None else np.ascontiguousarray(part, np.float32).tobytes())
        return made.hexdigest()


@cache
def load(path: str) -> Data:
    """Load a folder with `{train,test}_{x,y}.npy` (and `train_groups.npy` for persons), or a feature set that
    `dpfc extract` or `dpfc import` made. SystemExit with what is wrong if it is neither.
    """
    folder = Path(path)
    if (folder / "train_x.npy").exists():
        x, y, test_x, test_y = (np.load(folder / f"{name}.npy") for name in ("train_x", "train_y", "test_x", "test_y"))
        groups = folder / "train_groups.npy"
        persons = np.load(groups) if groups.exists() else None
        return Data(x, y.astype(np.int32), test_x, test_y.astype(np.int32), int(y.max()) + 1, persons)
    try:
        features = open_features(folder)
        train, test = (_whole(features, split) for split in ("train", "test"))
    except UserError as error:
        raise SystemExit(str(error)) from None
    persons = train[2] if len(train) > 2 else None
    return Data(train[0], train[1][:, 0], test[0], test[1][:, 0], len(features.manifest.classes), persons)


def _whole(features: FeatureSet, split: str) -> list[np.ndarray]:
    blocks = features.stream(split, groups=features.manifest.grouped)(8192)
    return [np.concatenate(parts) for parts in list(zip(*blocks, strict=True))[1:]]
