"""What is said of a ledger (`account`) and of evaluations (`evaluated`), as documents (`dpfc_cli.show`)."""
