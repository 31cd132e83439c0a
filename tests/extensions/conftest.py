"""What the tests of commands share, for those of extensions."""

from tests.cli.conftest import arrays, dpfc, features, here, made_once, pictures, worlds

__all__ = ["arrays", "dpfc", "features", "here", "made_once", "pictures", "worlds"]
