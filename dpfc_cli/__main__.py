"""`dpfc`, and `python -m dpfc_cli`: Ctrl-C ends it in one line, even while its modules are imported."""

from dpfc_cli.cli import stop


def main() -> None:
    """The console script."""
    stop.end_at_once()
    from dpfc_cli.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
