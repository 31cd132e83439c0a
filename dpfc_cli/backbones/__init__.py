"""Pixel batches in, feature batches out."""

from dpfc_cli.errors import unknown

BACKBONES: tuple[str, ...] = ("scattering",)
POOLINGS: tuple[str, ...] = ("none", "mean")


def check(name: str, pool: str) -> None:
    """UserError unless both names are known. Costs nothing: called before any file is read."""
    if name not in BACKBONES:
        raise unknown("model", name, BACKBONES)
    if pool not in POOLINGS:
        raise unknown("pooling", pool, POOLINGS)
