"""Experiments that measure accuracy, time and memory. Nothing in the product imports this package.

These make documents or parts of them: `reproduction` (docs/reproduction.md), `accuracy` (docs/accuracy.md), `public`,
`starts` and `persons` (tables for docs/whitening.md), `costs` (a table of docs/design.md), `forecast` (a table
of docs/choosing.md), `benchmarks` (docs/benchmarks.md, of `kernels`, `peers` and `throughput`). `references` and
`text_references` make data for the tests, with PyTorch. The others are parts: `cells` runs trainings once and keeps the
results, `sets` and `synthetic` are the data, `simulation` is a fast stand-in for the default method, and `paper` has
the paper's tables.
"""
