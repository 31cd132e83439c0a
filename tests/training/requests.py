"""A small training, asked for and checked, and the charges of its ledger."""

from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.options import MethodName, with_hooks
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request, added_hooks
from dpfc_cli.training.run import Trained
from dpfc_cli.training.train import plan, train
from tests.support import CHAIN, blobs, feature_set, plan_of
from tests.training.stopped import Listener

FACTS = Facts(n=100, m=2, d=2)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0)
PLAN = plan_of(FACTS, (Gram(CHAIN, 0.2), 0.2), (GRADIENT, 0.4), (GRADIENT, 0.4))


def small(name: str, n: int, test: int = 0, *, first: int = 0, persons: bool = False) -> FeatureSet:
    """A set of n records of two classes. first: the number of the first one: other numbers are other records. persons:
    each has two records.
    """
    x = np.arange(2 * first, 2 * (first + n + test), dtype=np.float32).reshape(-1, 2) + 1
    y = np.arange(n + test) % 2
    arrays = {"train_x": x[:n], "train_y": y[:n], **({"test_x": x[n:], "test_y": y[n:]} if test else {})}
    arrays |= {"train_groups": np.arange(n) // 2} if persons else {}
    np.savez(f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return feature_set(f"{name}.npz", Path("features", name), classes=("a", "b"))


def request(features: FeatureSet, **changed: Any) -> Request:
    """As the options say it, those of packages included."""
    wanted = {"folder": features.folder.parent / "heads", "epsilon": 2.0, "method": "dp-fc", "steps": 3, **changed}
    return Request(features, **with_hooks(wanted, added_hooks()))


def checked(features: FeatureSet, observer: Observer | None = None, **changed: Any) -> Checked:
    return plan(request(features, **changed), observer or Observer())


CLASSES = ("red fox", "Wolf", "otter")


def three(folder: Path, name: str, seed: int, classes: tuple[str, ...] = CLASSES) -> FeatureSet:
    """A set of 120 records of three classes."""
    x, y = blobs(120, 6, 3, seed=seed)
    np.savez(folder / f"{name}.npz", train_x=x, train_y=y)
    return feature_set(folder / f"{name}.npz", folder / "features" / name, classes=classes)


def head_of(features: FeatureSet, method: MethodName = "dp-whitened", **others: Any) -> Trained:
    return train(features, **{"method": method, "steps": 2, "observer": Listener(), "again": True, **others})


def ready(features: FeatureSet, epsilon: float = 2.5, **changed: Any) -> Checked:
    """A training that is checked and not charged yet."""
    given = {} if changed.get("non_private") else {"epsilon": epsilon}
    wanted = Request(features=features, folder=Path("heads"), **(given | changed))
    given = {} if wanted.non_private else {"steps": 2}
    made = calibrate(wanted.chosen, wanted.facts, given, wanted.privacy)
    return check(wanted, made, Observer())


def ledger(features: FeatureSet) -> Ledger:
    return read(ledger_path(features.folder))


def charges(features: FeatureSet) -> tuple[Charge, ...]:
    return ledger(features).charges


def account(features: FeatureSet) -> Account:
    return ledger(features).account_of(features.manifest.id)


def states(features: FeatureSet) -> list[str]:
    """What became of each charge."""
    known = ledger(features)
    ends = [known.outcome(each.id) for each in known.charges]
    return ["charged" if last is None else last.state for last in ends]
