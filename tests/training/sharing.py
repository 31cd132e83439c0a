"""Sets that share some records, as the tests make them."""

import hashlib
import math
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.account import Account, account_of
from dpfc_cli.training.ledger import ledger_path
from PIL import Image

from dpfc_cli import backbones
from dpfc_cli.extraction import extract
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.sources.digests import digest_of
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.charge import pay
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request, facts_of
from tests.test_extraction import Means

DELTA = 1e-3


def alone_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test run in a folder of its own, with a backbone that takes no time."""
    monkeypatch.chdir(folder)
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.delenv(variable, raising=False)
    # What a backbone makes of a picture does not matter here.
    monkeypatch.setattr(backbones, "load", lambda *given, **named: Means())


def draw(path: Path, number: int) -> bytes:
    """A picture that follows from a number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return path.read_bytes()


def features_of(source: str, name: str, **options: Any) -> FeatureSet:
    classes = options.pop("classes", ("a", "b"))
    made = extract(source, out=name, classes=classes, image_size=8, pool="mean", **options)
    assert made.features is not None
    return made.features


def of(
    name: str,
    numbers: Iterable[int],
    *,
    test: Iterable[int] = (),
    kind: Any = "file",
    persons: bool = False,
    part: bool = False,
) -> FeatureSet:
    """A set of these records, as an extraction makes it. A record is a number, and is made of its decimal digits.

    test: those of its test split. kind: of its digests; None: as earlier versions made it. part: the source has more
    records than these.
    """
    known = {"train": list(numbers), "test": list(test)}
    known = {split: some for split, some in known.items() if some}
    listing = {
        split: hashlib.sha256(f"whole {split}".encode() if part else repr(some).encode()).hexdigest()
        for split, some in known.items()
    }
    groups = {split: np.arange(len(some)) // 2 for split, some in known.items()} if persons else None
    identity: dict[str, Any] = {"listing": listing}
    identity |= {"groups": {split: digit * 64 for split, digit in zip(known, "01", strict=False)}} if persons else {}
    manifest = Manifest(
        classes=("a", "b"),
        dim=2,
        dtype="float32",
        labels_per_record=1,
        origin="asserted",
        splits={},
        backbone={"name": "imported"},
        source={"dataset": "numbers", "identity": identity},
        grouped_by={"by": "folder", "level": 1} if persons else None,
    )
    shape: dict[str, Any] = {"dim": 2, "dtype": "float32", "labels_per_record": 1}
    rows = {split: len(some) for split, some in known.items()}
    made = FeatureWriter(
        Path("features", name), rows=rows, identity=identity, shards=2, groups=groups, kind=kind, **shape
    )
    with closing(made):
        for planned in made.missing:
            some = known[planned.split][planned.start : planned.stop]
            found = np.array([0 if i < 0 else digest_of(str(i).encode()) for i in some], np.uint64)
            with made.shard(planned) as sink:
                x = np.array([(i % 7, i % 5) for i in some], float)
                sink.append(x, np.array(some) % 2, digests=None if kind is None else found)
        made.finish(manifest)
    return FeatureSet(Path("features", name))


def ready(features: FeatureSet, epsilon: float = 1.0, **changed: Any) -> Checked:
    """A training that is checked and not charged yet."""
    privacy = changed.pop("privacy", Privacy(epsilon=epsilon, delta=DELTA))
    request = Request(features=features, folder=Path("heads"), privacy=privacy, **changed)
    given = {} if privacy.claim == "non-private" else {"steps": 2}
    return check(request, calibrate(request.chosen, request.facts, given, request.privacy), Observer())


def account(features: FeatureSet, **more: Any) -> Account:
    return account_of(ledger_path(features.folder), features.folder, **more)


def spent(*epsilons: float) -> Any:
    """What trainings of these ε cost together at δ."""
    return pytest.approx(epsilon_for(math.hypot(*(mu_for(each, DELTA) for each in epsilons)), DELTA), rel=1e-6)


def evaluated(features: FeatureSet, epsilon: float, split: str = "test") -> None:
    """A private evaluation of some head on records of a split, charged and not made."""
    request = Request(features=features, folder=Path("heads"), privacy=Privacy(epsilon=epsilon, delta=DELTA))
    planned = calibrate(request.chosen, facts_of(features, split=split), {"steps": 2}, request.privacy)
    pay(planned, features, split, "some.safetensors", "me")


def over(features: FeatureSet) -> bool:
    """Whether more is spent on some of the records than a cap allows."""
    known = account(features)
    return any(known.room(cap) < 0 for _, cap in known.in_force)


def total(features: FeatureSet) -> float:
    return account(features).epsilon(DELTA)
