"""Feature sets on disk: a folder of HDF5 shards and a manifest that says what they are.

`manifest` is the description, `writer` makes a set shard by shard and goes on after a kill, `reader` checks and streams
it, `importing` takes features that something else computed. This room knows nothing of privacy.
"""
