"""Heads: what a training leaves behind, and what it is good for.

`head` is the file (weights, preprocessing chain, card), `metrics` scores it on a split. `hub` fetches heads from the
Hugging Face hub, and `signature` checks who vouches for them.
"""
