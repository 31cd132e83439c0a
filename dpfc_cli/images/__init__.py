"""Files in, batches of pixels out: the data sets, on disk or on the network, as arrays of bytes.

`catalogue.open_images` gives a `sets.ImageSet`. Its splits decode a range of pictures at a time, and `prefetch` decodes
ahead on all cores. Nothing here knows about privacy or models. Nothing here counts, prints or logs what the pictures
show.

`catalogue` opens data sets by their names. To add one, write a module like `digits`, and an entry point.
"""
