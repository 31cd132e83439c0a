"""The ledger: what was spent on a feature set, kept beside it in an SQLite file.

It has one row for each training, one for each change of the cap (`limit` says what a cap is), and one for each set that
somebody says shares records with this one (`sharing`). A row of a training is committed and synced to disk before the
first noise is drawn, so a training that is killed afterwards stays charged. When the training ends, its row says what
became of it: `written`, with name and SHA-256 of the head, or `stopped`. A row that still says `charged` belongs to a
training that runs, or that was killed.

`rows` says what a row is, `tables` reads the file, `writing` adds to it, and `totals` adds up what was spent.
"""

from dpfc_cli.training.ledger.rows import (
    EVALUATION,
    MOST_NAME,
    MOST_NOTE,
    RECORD,
    Book,
    Cap,
    Entry,
    Overlap,
    State,
    Unit,
    check,
    check_cap,
    is_note,
    persons_of,
    records_of,
)
from dpfc_cli.training.ledger.tables import ledger_path, read, read_all, real
from dpfc_cli.training.ledger.totals import about, composes_exactly, standing, together, unit_of, weight
from dpfc_cli.training.ledger.writing import Allow, Receipt, charge, keep_cap, keep_overlap, receipt_of, settle

__all__ = [
    "EVALUATION",
    "MOST_NAME",
    "MOST_NOTE",
    "RECORD",
    "Allow",
    "Book",
    "Cap",
    "Entry",
    "Overlap",
    "Receipt",
    "State",
    "Unit",
    "about",
    "charge",
    "check",
    "check_cap",
    "composes_exactly",
    "is_note",
    "keep_cap",
    "keep_overlap",
    "ledger_path",
    "persons_of",
    "read",
    "read_all",
    "real",
    "receipt_of",
    "records_of",
    "settle",
    "standing",
    "together",
    "unit_of",
    "weight",
]
