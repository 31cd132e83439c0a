"""A training is one value that grows, and each step is one function that returns the next value or refuses:

    Request ──calibrate──▶ Calibrated ──check──▶ Checked ──charge──▶ Charged ──run──▶ Trained

`request`: what is wanted. `calibrate`: options, plan and guarantee, from public facts alone. `check`: everything that
can be refused. `charge`: the ledger's row; only a `Charged` value gives a curator private records. `run`: the records
are summed and the head is written. `train` goes the whole way.

`card` says what is written down of a training, `ledger` and `account` keep what was spent (`other_ledgers` finds those
of the same records), `warn` says what will go badly, `public` and `tuning` use public records, `observer` is told how
it goes.
"""
