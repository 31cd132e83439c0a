"""Rules that sources of pictures and sources of features share.

`split_files` finds the files of a source and their splits, `columns` reads parquet and finds the label in a table, and
`classes` says which classes there are and who stated them.
"""
