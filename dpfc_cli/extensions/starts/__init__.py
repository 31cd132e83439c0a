"""Where public starts come from: files of class vectors, made of what is public about the classes.

`zero_shot` makes them, of the names of the classes (`--from text`) or of the backbone's own classifier (`--from
classifier`). No record is read for it. `vectors` reads such
files, and `hooks` adds them, or the mean of public records, to trainings.
"""
