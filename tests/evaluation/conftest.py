"""What the tests of evaluations share with those of trainings."""

from tests.training.conftest import features, heads, made, private, seen, sets

__all__ = ["features", "heads", "made", "private", "seen", "sets"]
