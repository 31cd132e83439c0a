"""Exports: a head in the formats of other programs, with its card.

`export` writes the files, `target` says what a format provides, and there is one module for each format. `beside` holds
modules that are copied beside an export. They run where dpfc is not installed.
"""
