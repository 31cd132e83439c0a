"""Feature sets of features that another program computed: of pictures, of slides, of texts, of anything.

`import_features` is what `dpfc import` calls. `tables` and `columns` read files, `slides` folders of slides: each gives
a `table.Table` for each split. `dpfc_cli.extraction.arrays` makes the set of them.
"""
