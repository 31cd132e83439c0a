"""A leak past the curator, planted in a report, is seen as those in the core are."""

from pathlib import Path

from dpfc_cli.extensions.publish import contents
from tests.cli.test_planted_leaks import after, nulls
from tests.cli.worlds import LINE, both, differences


def test_a_count_of_private_records_in_a_report_is_seen(worlds: dict[str, Path], here: Path) -> None:
    plant = after(contents, "_public", lambda rows: [*rows, ("null", str(nulls()))])
    reports = [name for name in differences(*both(worlds, here, (LINE,), plant)) if name.endswith(".md")]
    assert reports
