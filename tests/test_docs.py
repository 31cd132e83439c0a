"""The documents say what the project computes."""

import io
import math
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from dpfc_cli.privacy import accounting

DOCS = Path(__file__).parents[1] / "docs"


def code_of(page: str) -> str:
    """The page's Python, all blocks together."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))


def printed_tables(code: str) -> list[str]:
    """The Markdown tables that the code prints, which empty lines separate."""
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(code, "page", "exec"), {})
    return said.getvalue().strip().split("\n\n")


def figures(table: str) -> list[str]:
    return [line for line in table.splitlines() if re.match(r"\| [0-9]", line)]


def test_every_table_of_choosing_is_what_its_code_computes() -> None:
    page = (DOCS / "choosing.md").read_text("utf-8")
    tables = printed_tables(code_of(page))
    # Not one table may be missing, and the page has no figures of ε beside them.
    assert all(f"\n\n{table}\n\n" in page for table in tables)
    assert [len(figures(table)) for table in tables] == [6] * 5
    assert sorted(figures(page)) == sorted(line for table in tables for line in figures(table))


def up(value: float, digits: int) -> str:
    """Rounded up to so many decimals."""
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_the_tables_of_choosing_agree_with_the_accounting(epsilon: float) -> None:
    rows = figures((DOCS / "choosing.md").read_text("utf-8"))
    mu = accounting.mu_for(epsilon, 1e-5)
    best = accounting.gaussian_attack(mu, 0.05)
    guesses = f"| {epsilon:g} | {up(100 * best.accuracy, 1)} % | {up(100 * best.power, 1)} % |"
    two_records = f"| {epsilon:g} | {up(accounting.epsilon_for(2 * mu, 1e-5), 2)} |"
    two_trainings = f"| {epsilon:g} | {up(accounting.epsilon_for(math.sqrt(2) * mu, 1e-5), 2)} |"
    for start in (guesses, two_records, two_trainings):
        assert sum(row.startswith(start) for row in rows) == 1


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_between_pages_and_headings_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        name, _, heading = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), target
        if heading:
            assert heading in headings(other.read_text("utf-8")), target


def headings(text: str) -> set[str]:
    """The names that links use for a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_tests_that_the_audit_names_exist() -> None:
    page = (DOCS / "audit.md").read_text("utf-8")
    tests = DOCS.parent / "tests"
    defined = {
        name
        for path in tests.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert set(re.findall(r"`(test_\w+)", page)) <= defined
    assert all((tests.parent / path).exists() for path in re.findall(r"`((?:tests|dpfc_cli)/[\w/]+\.py)`", page))
