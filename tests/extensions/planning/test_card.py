"""What a statement says of a training whose options were chosen on public records."""

from pathlib import Path

from dpfc_cli.records import statement
from tests.support import trained
from tests.training.test_tuning import calibrated, made, tune


def test_a_statement_says_on_what_the_options_were_chosen(tmp_path: Path) -> None:
    private, known = made(tmp_path, "private", 400, 3, seed=0), made(tmp_path, "known", 500, 5, seed=1)
    chosen = tune(calibrated(private, "dp-whitened"), private, known)
    said = statement.document(trained(private, chosen, tmp_path).head.card, "").facts["tuned on"]
    assert said.startswith("known: 12 settings on 300 of its records of 3 classes")
