"""What is said of records beside their pictures or features: labels, persons, splits. Sources of both share it.

`split_files` finds the files of a source and their splits. `classes` says which classes there are, who stated them,
and what labels mean. `groups` says which records are of one person, and `person_hints` which seem to be. `subgroups` are
those of public columns. `metadata` and `csv_files` read tables, `columns` parquet. `broken` names the records that
cannot be used.
"""
