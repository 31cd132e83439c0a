"""How good heads are on a split: exact figures (`exact`), which protect nothing, and released ones (`private`).

`evaluate` is the way in: it refuses heads and features that do not fit together. `statistics` says how sure figures
are.
"""
