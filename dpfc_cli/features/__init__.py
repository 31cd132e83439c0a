"""Feature sets on disk. A feature set is a folder of HDF5 shards and a manifest that describes them.

`manifest` is the description. `writer` makes a set shard by shard and can continue after an interruption; `shards` is
the file of one shard. `reader` checks a set and streams it. `lookup` finds a set by path, by name or by age. `tables`
and `columns` read features that another program computed. This package knows nothing about privacy.
"""
