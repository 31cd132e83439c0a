"""Before a training: which ε does one need? No private record is read here, and nothing is charged.

`forecast` says what is to be expected, `stand_in` tries trainings on public records for it, and `conversion` computes ε
from noise and noise from ε.
"""
