"""The trusted core: everything that could leak is in this room.

Read it in this order: `oracle` (what a solver may ask), `chain` and `queries` (what one record adds, with the proof
that it is bounded), `lattice` (why the bound holds in the integers that are really summed), `noise` (why the noise is
exactly a rounded Gaussian), `accounting` (what that is worth as ε and δ), `curator` (the only place where records and
noise meet).

It trusts NumPy, BLAS, XLA, Python's `decimal`, the operating system's random bits, and whoever hands it the records (in
this project `features`, and through it h5py) to hand it each record once.
"""
