"""A training is one value that grows, and each step is one function that returns the next value or refuses:

    Request ──calibrate──▶ Calibrated ──check──▶ Checked ──charged──▶ Charged ──run──▶ Trained

`request`: what is wanted. `calibrate`: options, plan and guarantee, from public facts alone. `check`: everything that
can be refused. `charged`: the life of a charge; only a `Charged` value gives a curator private records. `run`: the
records are summed and the head is written. `train` goes the whole way, and `many` goes it for
several trainings that are charged together.

`card` says what is written down of a training. `public` says which records may be taken for public. `machine` says
what a training needs of memory, disk and devices. `summing` says who sums. `observer` is told how it goes.
"""
