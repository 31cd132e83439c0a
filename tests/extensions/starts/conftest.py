"""The hub, a server on this machine."""

from tests.backbones.test_hub import home

__all__ = ["home"]
