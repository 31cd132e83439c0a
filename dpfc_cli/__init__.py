"""dpfc: image classifiers from features, with a proof of differential privacy."""

__version__ = "0.1.0"
