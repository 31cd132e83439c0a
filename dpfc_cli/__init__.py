"""dpfc: image classifiers from features, with a proof of differential privacy.

This module is the public face of the library. The command line uses the same functions.

    import dpfc_cli as dpfc

    features = dpfc.extract("digits", model="scattering").features   # pictures → feature set
    trained = dpfc.train(features, epsilon=1.0)                      # feature set → head, charged to the ledger
    print(dpfc.evaluate(trained.head, features).top1)
    names = dpfc.Head.load(trained.path).predict(x)           # n × d features → n names of classes
    dpfc.predict(trained.path, "photos").save("photos.csv")   # pictures → their classes

Errors that the caller can correct are `UserError`, with a `code` and `fields`. Names are imported when they are first
used: `import dpfc_cli` takes no time, and JAX is loaded only by what computes.
"""

try:
    import fcntl  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "dpfc runs on Linux and macOS. On Windows, install it inside WSL: dpfc needs the file locks of POSIX."
    ) from None

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpfc_cli.version import __version__ as __version__

if TYPE_CHECKING:
    # The public names of the core. The library reads this list, too, when it is first asked for one. Extensions add
    # theirs as `dpfc.names`.
    from dpfc_cli.conversion import epsilon_of as epsilon_of
    from dpfc_cli.conversion import noise_multiplier_of as noise_multiplier_of
    from dpfc_cli.errors import UserError as UserError
    from dpfc_cli.evaluation.evaluate import compare as compare
    from dpfc_cli.evaluation.evaluate import evaluate as evaluate
    from dpfc_cli.evaluation.evaluate import evaluate_privately as evaluate_privately
    from dpfc_cli.evaluation.exact import Comparison as Comparison
    from dpfc_cli.evaluation.exact import Evaluation as Evaluation
    from dpfc_cli.evaluation.private import PrivateEvaluation as PrivateEvaluation
    from dpfc_cli.extraction.extract import extract as extract
    from dpfc_cli.extraction.request import ExtractionWarning as ExtractionWarning
    from dpfc_cli.features.lookup import open_features as open_features
    from dpfc_cli.features.reader import FeatureSet as FeatureSet
    from dpfc_cli.heads.head import Head as Head
    from dpfc_cli.heads.signature import Signed as Signed
    from dpfc_cli.ledger.caps import set_cap as set_cap
    from dpfc_cli.ledger.merge import merge_ledgers as merge_ledgers
    from dpfc_cli.ledger.populations import set_population as set_population
    from dpfc_cli.ledger.totals import Account as Account
    from dpfc_cli.prediction.predict import Predictions as Predictions
    from dpfc_cli.prediction.predict import predict as predict
    from dpfc_cli.report.account import released as released
    from dpfc_cli.report.account import spent as spent
    from dpfc_cli.training.many import TrainedRow as TrainedRow
    from dpfc_cli.training.many import train_many as train_many
    from dpfc_cli.training.observer import Observer as Observer
    from dpfc_cli.training.observer import TrainingWarning as TrainingWarning
    from dpfc_cli.training.run import Trained as Trained
    from dpfc_cli.training.train import train as train
    from dpfc_cli.verification import Verified as Verified
    from dpfc_cli.verification import verify as verify


@cache
def _homes() -> dict[str, str]:
    """Where each public name is defined: the imports above, which run for type checkers alone."""
    import re
    from pathlib import Path

    found = re.findall(r"^    from (\S+) import (\w+) as \2$", Path(__file__).read_text("utf-8"), re.MULTILINE)
    return {name: module for module, name in found}


def __getattr__(name: str) -> Any:
    """A public name, imported from its module."""
    if name == "__all__":
        return __dir__()
    from dpfc_cli.points import added, load

    if name in _homes():
        return getattr(import_module(_homes()[name]), name)
    if name in added("dpfc.names"):
        return load("dpfc.names", name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from dpfc_cli.points import added

    return sorted([*_homes(), *added("dpfc.names"), "__version__"])
