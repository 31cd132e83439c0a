"""The version of dpfc."""

__version__ = "0.1.0"
