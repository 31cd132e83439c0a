"""Experiments: how good, how fast and how large. Nothing in the product imports this package.

What documents are made of: `reproduction` (docs/reproduction.md), `accuracy` (docs/accuracy.md), `ablation` and
`public` (figures of docs/whitening.md), `costs` (docs/design.md). For people who have PyTorch, too: `throughput`,
`parity`, and `references`, which makes data of the tests. The others are parts: `cells` runs trainings once and keeps
results, `sets` and `synthetic` are the data, `recipe` is a method that the product left behind, `paper` has the paper's
tables.
"""
