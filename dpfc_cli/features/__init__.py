"""Feature sets on disk. A feature set is a folder of HDF5 shards and a manifest that describes them.

`manifest` is the description. `writer` makes a set shard by shard and can continue after an interruption. `shards` is
the file of one shard, and `unfinished` says what a second run may go on with. `reader` checks a set and streams it.
`lookup` finds a set by path, by name or by age. `importing` makes a set of features that another program computed. This
package knows nothing about privacy.
"""
