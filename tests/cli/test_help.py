"""What `--help` shows, what a message calls a parameter, and what a shell completes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from dpfc_cli import points
from dpfc_cli.cli import app as application
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.images.catalogue import usages
from dpfc_cli.options import HEAD, Option
from tests.cli.conftest import Dpfc, heads, there
from tests.support import commands

COMMANDS = sorted((*application.COMMANDS, *points.added("dpfc.commands")))
LARGE = {"jax", "numpy", "scipy", "matplotlib", "urllib.request", "http.client", "pyarrow", "PIL", "h5py", "onnx"}
MAIN = "from dpfc_cli.cli.app import main; main()"


Help = Callable[..., str]


@pytest.fixture
def help_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Help:
    """The help of a command, or of dpfc itself, on a terminal of so many columns."""

    def shown(name: str = "", width: int = 80) -> str:
        words = [*filter(None, [name]), "--help"]
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["dpfc", *words])
        assert application._run(words) == 0
        return capsys.readouterr().out

    return shown


def words(shown: str) -> list[str]:
    """The words of a help, without its frames."""
    return re.sub("[─│╭╮╰╯]", " ", shown).split()


def test_no_word_of_a_help_is_cut_or_is_markup_and_no_line_is_too_wide(help_of: Help) -> None:
    for name in ("", *COMMANDS):
        wide, shown = help_of(name, 500), help_of(name, 80)
        assert sorted(words(shown)) == sorted(words(wide)), name
        assert all(len(line) <= 80 for line in shown.splitlines())
        assert "\\[" not in wide


def test_the_same_thing_has_the_same_words_in_every_help() -> None:
    every = {name: {each.name: each for each in commands().commands[name].params} for name in COMMANDS}
    assert all("JSON" in known["as_json"].help for known in every.values())
    heads = {every[name]["head"].help for name in there(("predict", "statement", "report", "verify", "export"), str)}
    assert heads == {f"{HEAD} Default: the newest private."}
    assert {known["weights"].metavar for known in every.values() if "weights" in known} == {"CHECKPOINT"}


def test_the_help_of_extract_names_all_data_sets(help_of: Help) -> None:
    assert all(usage in " ".join(words(help_of("extract", 500))) for usage in usages())


def test_the_four_commands_of_the_job_are_listed_first(help_of: Help) -> None:
    listed = re.findall(r"^│ ([a-z-]+)  ", help_of().split("─ Train a classifier ─")[1], re.M)
    assert listed[:4] == ["extract", "train", "evaluate", "budget"]
    assert sorted(listed) == COMMANDS


def test_a_message_calls_a_parameter_what_the_help_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "app", typer.Typer())

    @application.command("example", panel="Examples")
    def example(
        head: Annotated[str, Option("A head.", argument=True)],
        learning_rate: Annotated[float | None, Option("η.")] = None,
        noise_multiplier: Annotated[float | None, Option("σ.", flags=("--noise-multiplier", "--sigma"))] = None,
        quick: Annotated[bool, Option("Be quick.", flags=("-q", "--quick"))] = False,
    ) -> None:
        others = f"{parameter('noise_multiplier')}, {parameter('quick')}, {parameter('not_of_this_command')}"
        raise UserError(f"{parameter('head')}, {parameter('learning_rate')}", others)

    ended = CliRunner().invoke(application.app, ["a"])
    assert ended.exit_code == 2
    assert ended.stderr.splitlines() == [
        "Error: HEAD, --learning-rate",
        "--noise-multiplier, --quick, --not-of-this-command",
    ]


def test_quiet_shows_results_and_warnings_only(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    line = ["extract", "digits", "--pool", "mean", "--limit", "30", "--hold-out", "0.1"]
    for flag in ("--quiet", "-q"):
        refused = CliRunner().invoke(application.app, [flag, *line])
        assert refused.stderr.startswith("Error: ")
    for words in (["-q", *line[:-2]], [*line[:-2], "-q"]):
        made = CliRunner().invoke(application.app, words)
        assert (made.exit_code, made.stderr) == (0, "")
        assert made.stdout.startswith("# Feature set features/digits-scattering")
    assert "Next: " in CliRunner().invoke(application.app, line[:-2]).stderr


def test_json_may_stand_before_the_command(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    before, after = (CliRunner().invoke(application.app, words) for words in (["--json", "list"], ["list", "--json"]))
    assert before.stdout == after.stdout
    assert json.loads(before.stdout)["heads"] == []


def test_a_shell_completes_commands_options_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (
        "features/mine/manifest.json",
        "features/other/manifest.json",
        "features/a set/manifest.json",
        "heads/mine-eps1.safetensors",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for typed, completions in (
        ("dpfc bu", ["budget"]),
        ("dpfc extract --hold", ["--hold-out"]),
        ("dpfc train --method dp-n", ["dp-newton"]),
        ("dpfc train --adjacency=", ["replace-one", "zero-out"]),
        ("dpfc extract --model vit-b3", ["vit-b32"]),
        ("dpfc extract dig", ["digits"]),
        ("dpfc train --features m", ["mine"]),
        ("dpfc train --features a", [r"a\ set"]),
        ("dpfc evaluate m", ["mine-eps1"]),
        ("dpfc train --steps 2 --steps 3 --nega", ["--negative-weight"]),
        # The shell completes files then.
        ("dpfc extract imagefolder:fea", []),
        ("dpfc extract digits --classes c", []),
        ("dpfc train --out h", []),
    ):
        # bash takes words apart.
        words = [part for word in typed.split(" ") for part in re.split("([=:])", word) if part or not word]
        env = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_DPFC_COMPLETE": "complete_bash"}
        ended = CliRunner().invoke(application.app, [], env=env, prog_name="dpfc")
        shown = list(filter(None, ended.stdout.splitlines()))
        assert (ended.exit_code, shown, ended.stderr) == (0, completions, ""), typed
    env = {"_DPFC_COMPLETE": "complete_zsh"}
    env["_TYPER_COMPLETE_ARGS"] = "dpfc extract imagefolder:features/m"
    ended = CliRunner().invoke(application.app, [], env=env, prog_name="dpfc")
    assert "imagefolder:features/mine/" in ended.stdout.replace("\\", "")


def test_what_is_typed_by_guess_is_told_how_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, said in (
        ("help", "dpfc --help"),
        ("train --epsilon 1,5", "such as 0.5"),
        ("train --epsilon -1", "between 0.0001 and 100"),
    ):
        ended = CliRunner().invoke(application.app, words.split())
        assert (ended.exit_code, said in ended.stderr) == (2, True), ended.stderr


def test_no_help_loads_what_computes_or_is_large() -> None:
    program = f"""
import sys
from dpfc_cli.cli.app import _run
for words in ([], *([name] for name in {COMMANDS!r})):
    sys.argv = ["dpfc", *words, "--help"]
    assert _run(sys.argv[1:]) == 0
    assert words or not {{"pydantic"}} & set(sys.modules)
assert not {LARGE!r} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_what_reads_cards_and_ledgers_loads_nothing_that_computes(features: Path, dpfc: Dpfc) -> None:
    assert dpfc("train", "--epsilon", "1").exit_code == 0
    [head] = heads()
    every = [
        ["budget", "--sigma", "10"],
        ["forecast", "--records", "1000", "--classes", "5", "--dimensions", "64"],
        ["budget"],
        ["list"],
        ["statement", head],
        ["report", head, "--out", "report.html"],
        ["verify", head],
        ["evaluate"],
    ]
    lines = there(every, lambda line: line[0])
    program = f"""
import sys
from dpfc_cli.cli.app import _run
for line in {lines!r}:
    sys.argv = ["dpfc", *line]
    assert _run(line) == 0, line
    allowed = {{"h5py", "numpy"}} if line == ["evaluate"] else {{"numpy"}}
    assert not ({LARGE | {"dp_accounting", "sklearn"}!r} - allowed) & set(sys.modules), line
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
