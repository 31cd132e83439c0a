"""A small training, asked for and checked, and the rows of its ledger."""

from dataclasses import replace
from typing import Any

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.training import ledger
from dpfc_cli.training.check import Checked
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request
from dpfc_cli.training.train import plan


def request(features: FeatureSet, **changed: Any) -> Request:
    wanted = Request(
        features=features,
        folder=features.folder.parent / "heads",
        privacy=Privacy(epsilon=2.0),
        method="dp-fc",
        options={"steps": 3},
    )
    return replace(wanted, **changed)


def checked(features: FeatureSet, **changed: Any) -> Checked:
    return plan(request(features, **changed), Observer())


def entries(features: FeatureSet) -> list[ledger.Entry]:
    return ledger.read(ledger.ledger_path(features.folder))
