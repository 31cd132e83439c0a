"""What the user types: one module a command. No mathematics here."""
