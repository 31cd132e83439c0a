"""The hub, a server on this machine; a folder for heads, and a set of private records."""

from tests.backbones.test_hub import home
from tests.training.conftest import heads, private

__all__ = ["heads", "home", "private"]
