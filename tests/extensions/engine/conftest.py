"""The feature set of a training, and that of a command line."""

from tests.cli.conftest import features as typed
from tests.training.conftest import features

__all__ = ["features", "typed"]
