"""Exports: a head in the formats of other programs, with its card.

`export` writes the files, and has the formats of arrays; `onnx` has that of graphs. `beside` holds modules that are
copied beside an export. They run where dpfc is not installed.
"""
