"""A head at work: pictures or features in, names of classes with probabilities out.

`predict` is what `dpfc predict` calls. `sources` finds what is to be predicted, `calibration` fits a temperature on
public records, and `output` writes rows. Nothing here costs privacy: a private head is public to whoever has it. What
is predicted depends on the pictures that it is predicted for.
"""
