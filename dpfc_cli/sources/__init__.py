"""What sources of pictures and of features have in common: which file belongs to which split, and which column of a
table is the label.
"""
