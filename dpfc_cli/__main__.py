"""`python -m dpfc_cli`: the same as `dpfc`."""

from dpfc_cli.cli.app import main

main()
