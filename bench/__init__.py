"""Experiments that measure accuracy, time and memory. Nothing in the product imports this package.

These make pages of bench/tables, with the same names: `reproduction`, `accuracy` (and tables of docs/accuracy.md), and
`benchmarks` (of `kernels`, `peers` and `throughput`). These make tables of pages in docs/: `public` and `persons`
(whitening.md), `starts` (extensions/starts.md), `costs` (scale.md), `forecast` and `kept` (extensions/planning.md), and
`federation` (extensions/federation.md). `references` and `text_references` make data for the tests, with PyTorch. The
others are parts: `cells` runs trainings once and keeps the results, `sets` and `synthetic` are the data, `simulation`
is a fast stand-in for the default method, and `paper` has the paper's tables.
"""
