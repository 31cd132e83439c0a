"""Experiments: how good, how fast and how large. Nothing in the product imports this package."""
