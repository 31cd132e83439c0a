"""The documents say what the project computes."""

import io
import math
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import tomllib
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from dpfc_cli import points
from dpfc_cli.cli.app import COMMANDS
from dpfc_cli.errors import ENDINGS, Code, UserError
from dpfc_cli.privacy import accounting
from dpfc_cli.version import __version__
from tests.images.pictures import drawn
from tests.support import commands, parsed, typed

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "sample_data/README.md")
PAGES = [*(DOCS.parent / name for name in BESIDE), *sorted(DOCS.rglob("*.md"))]


FENCED = re.compile(r"^ *```(?P<kind>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)


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
    assert [len(figures(table)) for table in tables] == [6] * 4
    assert sorted(figures(page)) == sorted(line for table in tables for line in figures(table))


def up(value: float, digits: int) -> str:
    """Rounded up to so many decimals."""
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"


def test_the_tables_of_choosing_agree_with_the_accounting() -> None:
    rows = figures((DOCS / "choosing.md").read_text("utf-8"))
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        mu = accounting.mu_for(epsilon, 1e-5)
        best = accounting.gaussian_attack(mu, 0.05)
        guesses = f"| {epsilon:g} | {up(100 * best.accuracy, 1)} % | {up(100 * best.power, 1)} % |"
        two_records = f"| {epsilon:g} | {up(accounting.epsilon_for(2 * mu, 1e-5), 2)} |"
        two_trainings = f"| {epsilon:g} | {up(accounting.epsilon_for(math.sqrt(2) * mu, 1e-5), 2)} |"
        for start in (guesses, two_records, two_trainings):
            assert sum(row.startswith(start) for row in rows) == 1


def test_links_between_pages_and_headings_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))]
    for page, target in links:
        if target.startswith(("http:", "https:")):
            continue
        name, _, heading = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), (page, target)
        if heading:
            assert heading in headings(other.read_text("utf-8")), (page, target)


def headings(text: str) -> set[str]:
    """The names that links use for a page's headings, as GitHub makes them, and the site too."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([^)#\s]+)", README.read_text("utf-8")))
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} <= linked


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    entries = re.findall(r": (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert len(entries) == len(set(entries))
    # These are made for the site, of what lies outside docs/ and of docstrings.
    made = {"index.md", "changelog.md", "contributing.md", "core.md", "reference.md", "sample_data.md"}
    assert set(entries) == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | made


def test_the_readme_names_every_command() -> None:
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", README.read_text("utf-8"), re.MULTILINE)
    assert sorted(re.findall("`([a-z-]+)`", " ".join(rows))) == sorted((*COMMANDS, *points.added("dpfc.commands")))


def lines_of(text: str) -> list[list[str]]:
    """The commands in blocks of `sh`, as lists of words: one for each part of a pipe or a list."""
    found = []
    for block in FENCED.finditer(text):
        for line in block["body"].splitlines() if block["kind"] == "sh" else ():
            words: list[str] = []
            split = shlex.shlex(line, posix=True, punctuation_chars=True)
            split.whitespace_split = True
            for word in [*split, ";"]:
                if set(word) <= set(";&|<>()"):
                    found += [words] if words else []
                    words = []
                else:
                    words.append(word)
    return found


def test_dpfc_and_make_take_every_line_that_a_page_shows() -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    assert all(block["kind"] for block in FENCED.finditer(text)), "a block without a kind"
    targets = re.findall(r"^([a-z-]+):", (DOCS.parent / "Makefile").read_text("utf-8"), re.MULTILINE)
    for words in lines_of(text):
        if words[0] == "make" and "-f" not in words:
            assert words[1] in targets
        elif "dpfc" in words and (line := words[words.index("dpfc") + 1 :]) != ["--version"]:
            assert parsed(line)


def test_commands_and_flags_within_sentences_exist() -> None:
    every = {name: flags_of(command) for name, command in commands().commands.items()}
    # The changelog names flags that there were.
    text = "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "CHANGELOG.md")
    for code in re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        words = code.removeprefix("dpfc ").split()
        flags = {word for word in words if re.fullmatch(r"--[a-z-]+", word)}
        if words[:1] and words[0] in every and (code.startswith("dpfc ") or flags):
            assert flags <= every[words[0]], code
        elif code.startswith("dpfc "):
            # `dpfc -v`, or a word that stands for any command.
            assert flags <= flags_of(commands()), code
            assert words[0].isupper() or words[0].startswith("-"), code
        elif words[:1] and words[0] in flags:
            assert flags <= set().union(*every.values()), code


def flags_of(command: Any) -> set[str]:
    return {"--help", *(flag for each in command.params for flag in each.opts)}


def test_a_line_that_dpfc_does_not_take_is_caught() -> None:
    shown = lines_of("```sh\nX=1 srun dpfc train --epsilon 1 | cat > 'a b'  # a head\n```\n")
    assert shown == [["X=1", "srun", "dpfc", "train", "--epsilon", "1"], ["cat"], ["a b"]]
    assert parsed(["train", "--epsilon", "1"])["epsilon"] == [1]
    for wrong in (["train", "--epsilom", "1"], ["train", "--epsilon", "one"], ["verify", "a", "b"], ["trian"]):
        with pytest.raises((typer.BadParameter.__mro__[1], AssertionError)):
            parsed(wrong)


def test_the_lines_of_the_paper_are_in_the_readme_and_are_taken_as_they_are() -> None:
    for line, values in (
        ("dpfc extract --model vit-b16 --dataset cifar10", {"model": "vit-b16", "dataset": "cifar10"}),
        ("dpfc train --method dp-ls --epsilon 0.1", {"method": ["dp-ls"], "epsilon": [0.1]}),
        ("dpfc budget --sigma 10 --steps 10", {"sigma": 10.0, "steps": 10}),
    ):
        assert line in README.read_text("utf-8")
        assert parsed(line.split()[1:]).items() >= values.items()


def test_the_citation_names_this_version() -> None:
    cited = dict(re.findall(r"^([a-z-]+): (.+)$", (DOCS.parent / "CITATION.cff").read_text("utf-8"), re.MULTILINE))
    assert (cited["version"], cited["license"]) == (__version__, "Apache-2.0")


def test_the_page_on_installation_names_every_extra() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    rows = re.findall(r"^\| `([a-z]+)` \|", (DOCS / "installation.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(project["optional-dependencies"])


# Pages that are followed word for word. A block of `sh` is run, one of `python` is run or, if its first line names a
# file, saved there, and one of `text` is what the commands before it print: `…` stands for anything, and spaces and
# line ends do not count. A comment before a block says how the block ends, unless with exit code 0.

BLOCK = re.compile(r"^(?:<!-- test: (?P<ends>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
BLOCK_ENDINGS = {None: 0, "exit code 2": 2, "Ctrl-C, then exit code 130": 130}
PRESSED = """\
import os, signal
from dpfc_cli.cli.app import main
from dpfc_cli.privacy import curator
signal.signal(signal.SIGINT, signal.default_int_handler)
real, drawn = curator.draw_noise, []
def draw(*given):
    drawn.append(1)
    if len(drawn) == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return real(*given)
curator.draw_noise = draw
main()
"""
"""Presses Ctrl-C in a training, even if the tests themselves were started in the background."""


@dataclass(frozen=True, kw_only=True)
class Block:
    kind: str
    body: str
    exit_code: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = [Block(kind=m["kind"], body=m["body"], exit_code=BLOCK_ENDINGS[m["ends"]]) for m in BLOCK.finditer(text)]
    assert 2 * len(found) == len(re.findall("^```", text, re.MULTILINE)), "a block without a kind"
    return found


class Reader:
    """Somebody who types what a page says, in one folder. said: what the last commands printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, ""

    def follow(self, block: Block) -> None:
        if block.kind == "text":
            left = " ".join(self.said.split())
            for part in filter(None, (" ".join(part.split()) for part in block.body.split("…"))):
                _, found, left = left.partition(part)
                assert found, f"'{part}' is not where the page has it in:\n{self.said}"
        elif block.kind == "sh":
            self.said = ""
            *lines, last = (shlex.split(line, comments=True) for line in block.body.splitlines())
            for words in lines:
                self._run(words, 0)
            self._run(last, block.exit_code)
        elif name := re.match(r"# (\w+\.py)\n", block.body):
            (self.folder / name[1]).write_text(block.body, "utf-8")
        else:
            self.said = ""
            self._run(["python", "-c", block.body], block.exit_code)

    def _run(self, words: list[str], exit_code: int) -> None:
        """Run a line, and note what it says: in this process, which has imported all that it needs. Ctrl-C needs one of
        its own.
        """
        with tempfile.TemporaryFile() as said, chdir(self.folder):
            if exit_code == 130:
                line = [sys.executable, "-c", PRESSED, *words[1:]]
                code = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT).returncode
            elif words[0] == "dpfc":
                code = typed(words[1:], said, said)
            elif words[0] == "python":
                shown, code = io.TextIOWrapper(said, "utf-8"), 0
                source = words[2] if words[1] == "-c" else Path(words[1]).read_text("utf-8")
                with redirect_stdout(shown):
                    exec(compile(source, "page", "exec"), {"__name__": "__main__"})
                shown.detach()
            else:
                code = subprocess.run(words, stdout=said, stderr=subprocess.STDOUT).returncode
            said.seek(0)
            self.said += said.read().decode()
        assert code == exit_code, self.said


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    for name in [name for name in os.environ if name.startswith("DPFC_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "page"
    folder.mkdir()
    return Reader(folder)


def test_a_page_that_says_something_else_is_caught(reader: Reader) -> None:
    reader.said = "delta    epsilon\n1e-05     1.0000\n"
    reader.follow(Block(kind="text", body="delta …\n1e-05 1.0000\n", exit_code=0))
    for wrong in ("1e-05 2.0000", "1e-05 … delta", "delta … beta"):
        with pytest.raises(AssertionError):
            reader.follow(Block(kind="text", body=wrong, exit_code=0))
    with pytest.raises(AssertionError):
        reader.follow(Block(kind="sh", body="dpfc evaluate\n", exit_code=0))
    with pytest.raises(AssertionError):
        reader.follow(Block(kind="sh", body="dpfc --version\n", exit_code=2))


def test_the_readme_begins_with_what_works(reader: Reader) -> None:
    first = README.read_text("utf-8").partition("## In four lines")[2].partition("## ")[0]
    kinds = [(m["kind"], m["body"]) for m in BLOCK.finditer(first)]
    assert [kind for kind, _ in kinds] == ["sh", "python"]
    for kind, body in kinds:
        reader.follow(Block(kind=kind, body=body, exit_code=0))


def test_the_recipe_for_patients_works_without_a_network(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(reader.folder / "made", 60, 0, ".png")
    photos = reader.folder / "photos"
    photos.mkdir()
    found = sorted((reader.folder / "made").rglob("*.png"))
    lines = ["file,patient,diagnosis"]
    for i, path in enumerate(found):
        path.rename(photos / f"{i}.png")
        lines.append(f"{i}.png,p{i // 2},{('healthy', 'melanoma')[i // 2 % 2]}")
    (reader.folder / "patients.csv").write_text("\n".join(lines))

    def refused(*_: object) -> None:
        raise AssertionError("there is no network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    recipe = README.read_text("utf-8").partition("## A table, patients")[2].partition("\n## ")[0]
    (block,) = BLOCK.finditer(recipe)
    reader.follow(Block(kind="sh", body=block["body"], exit_code=0))
    assert re.search(r"one person of \d\d, with all records of this person", reader.said)
    (report,) = reader.folder.glob("*-internal.html")
    assert "one person of" in report.read_text("utf-8")


def test_the_tutorial_says_what_happens(reader: Reader) -> None:
    for block in blocks_of(DOCS / "tutorial.md"):
        reader.follow(block)
    assert not list(reader.folder.iterdir()), "it cleans up"


@pytest.mark.parametrize("name", ["python.md", "extensions/sklearn.md"])
def test_the_pages_on_python_say_what_happens(reader: Reader, name: str) -> None:
    page = DOCS / name
    reader.follow(Block(kind="python", body=code_of(page.read_text("utf-8")), exit_code=0))
    for block in blocks_of(page):
        if block.kind == "text":
            reader.follow(block)


def test_the_table_of_codes_is_whole() -> None:
    page = (DOCS / "python.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[a-z`, -]+`) \|", page.partition("| code |")[2], re.MULTILINE)
    assert sorted(re.findall("`([a-z-]+)`", " ".join(rows))) == sorted(get_args(Code))


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) ?\|$", (DOCS / "pipelines.md").read_text("utf-8"), re.MULTILINE)
    assert {int(number): said for number, said, _ in rows} == ENDINGS
    said = {code: int(number) for number, _, codes in rows for code in re.findall("`([a-z-]+)`", codes)}
    assert {code: said.get(code, 2) for code in get_args(Code)} == {
        code: UserError("", "", code=code).exit_code for code in get_args(Code)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_tests_that_there_are_and_counts_what_is_planted(page: Path) -> None:
    text, root = page.read_text("utf-8"), DOCS.parent
    assert all((root / path).is_file() for path in re.findall(r"`((?:tests|dpfc_cli)/[\w/]+\.py)", text))
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text):
        assert f"def {name}(" in (root / path).read_text("utf-8"), name
    promises = text.partition("| promise | test |")[2].partition("\n\n")[0].splitlines()[2:]
    # Rows in bold are titles of the rows below them.
    assert [row for row in promises if not row.startswith("| **") and not 1 <= row.count("::test_") <= 2] == []
    for count, lists in re.findall(r"^\|[^|]+\| (\d+) \| (.+::\w+`) \|$", text, re.M):
        named = re.findall(r"`([\w/]+)\.py::(\w+)`", lists)
        planted = (getattr(import_module(path.replace("/", ".")), name) for path, name in named)
        assert int(count) == sum(map(len, planted)), lists
