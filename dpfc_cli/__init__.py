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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpfc_cli.version import __version__

_HOMES = {
    "Account": "ledger.totals",
    "Comparison": "evaluation.exact",
    "Evaluation": "evaluation.exact",
    "Exported": "exports.export",
    "ExtractionWarning": "extraction",
    "FeatureSet": "features.reader",
    "Forecast": "planning.forecast",
    "Head": "heads.head",
    "Observer": "training.observer",
    "Predictions": "prediction.predict",
    "PrivateClassifier": "estimator",
    "PrivateEvaluation": "evaluation.private",
    "Pushed": "report.push",
    "Signed": "heads.signature",
    "Trained": "training.run",
    "TrainingWarning": "training.observer",
    "UserError": "errors",
    "Verified": "verification",
    "ZeroShot": "public_starts.zero_shot",
    "compare": "evaluation.evaluate",
    "epsilon_of": "planning.conversion",
    "evaluate": "evaluation.evaluate",
    "export": "exports.export",
    "extract": "extraction",
    "forecast": "planning.forecast",
    "import_features": "extraction.importing",
    "merge_ledgers": "ledger.merge",
    "noise_multiplier_of": "planning.conversion",
    "open_features": "features.lookup",
    "predict": "prediction.predict",
    "push": "report.push",
    "set_cap": "ledger.caps",
    "set_population": "ledger.populations",
    "to_sklearn": "exports.arrays",
    "train": "training.train",
    "verify": "verification",
    "write_report": "report.write",
    "zero_shot": "public_starts.zero_shot",
}
"""Where each public name is defined."""

__all__ = [
    "Account",
    "Comparison",
    "Evaluation",
    "Exported",
    "ExtractionWarning",
    "FeatureSet",
    "Forecast",
    "Head",
    "Observer",
    "Predictions",
    "PrivateClassifier",
    "PrivateEvaluation",
    "Pushed",
    "Signed",
    "Trained",
    "TrainingWarning",
    "UserError",
    "Verified",
    "ZeroShot",
    "__version__",
    "compare",
    "epsilon_of",
    "evaluate",
    "export",
    "extract",
    "forecast",
    "import_features",
    "merge_ledgers",
    "noise_multiplier_of",
    "open_features",
    "predict",
    "push",
    "set_cap",
    "set_population",
    "to_sklearn",
    "train",
    "verify",
    "write_report",
    "zero_shot",
]

if TYPE_CHECKING:
    from dpfc_cli.errors import UserError
    from dpfc_cli.estimator import PrivateClassifier
    from dpfc_cli.evaluation.evaluate import compare, evaluate
    from dpfc_cli.evaluation.exact import Comparison, Evaluation
    from dpfc_cli.evaluation.private import PrivateEvaluation
    from dpfc_cli.exports.arrays import to_sklearn
    from dpfc_cli.exports.export import Exported, export
    from dpfc_cli.extraction import ExtractionWarning, extract
    from dpfc_cli.extraction.importing import import_features
    from dpfc_cli.features.lookup import open_features
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.heads.head import Head
    from dpfc_cli.heads.signature import Signed
    from dpfc_cli.ledger.caps import set_cap
    from dpfc_cli.ledger.merge import merge_ledgers
    from dpfc_cli.ledger.populations import set_population
    from dpfc_cli.ledger.totals import Account
    from dpfc_cli.planning.conversion import epsilon_of, noise_multiplier_of
    from dpfc_cli.planning.forecast import Forecast, forecast
    from dpfc_cli.prediction.predict import Predictions, predict
    from dpfc_cli.public_starts.zero_shot import ZeroShot, zero_shot
    from dpfc_cli.report.push import Pushed, push
    from dpfc_cli.report.write import write_report
    from dpfc_cli.training.observer import Observer, TrainingWarning
    from dpfc_cli.training.run import Trained
    from dpfc_cli.training.train import train
    from dpfc_cli.verification import Verified, verify


def __getattr__(name: str) -> Any:
    """A public name, imported from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
