"""What stands on the trusted core and is not it: the ledger of what was spent, and the statement of what is claimed."""
