"""A training is one value that grows, and each step is one function that returns the next value or refuses:

    Request ──calibrate──▶ Calibrated ──check──▶ Checked ──charge──▶ Charged ──run──▶ Trained

`request`: what is wanted. `calibrate`: options, plan and guarantee, from public facts alone. `check`: everything that
can be refused. `charge`: the charge in the ledger; only a `Charged` value gives a curator private records. `run`: the
records are summed and the head is written. `train` goes the whole way. `private_evaluation` goes the same one.

`answers` keeps what was released, so that a training that was stopped goes on. `card` says what is written down of a
training. `warn` says what will go badly. `public`, `start` and `tuning` use public records, and `asserted` says which
sets may be taken for public. `observer` is told how it goes.
"""
