"""Modules that are written beside an export. They import nothing of dpfc, so they run without it."""

from importlib.resources import files


def source(module: str) -> bytes:
    """The source text of a module here."""
    return files(__name__).joinpath(f"{module}.py").read_bytes()
