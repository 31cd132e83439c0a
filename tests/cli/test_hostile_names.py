"""Whatever a name is, it reaches the terminal as text: no command, no direction, nothing hidden, nothing drawn over.

Names of classes, files, folders, sets, heads, columns and splits, and every text of a manifest, a card and a ledger are
the worst ones. Every command is run on them, on a terminal and into a pipe.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

from dpfc_cli import progress
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.cli import app as application
from dpfc_cli.cli import display
from dpfc_cli.errors import MOST_MARKS, Note, UserError, printable
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.facts import Charge, Set
from dpfc_cli.ledger.file import append, read
from dpfc_cli.training.observer import Observer, TrainingWarning
from tests import instead
from tests.backbones.tiny import kept
from tests.cli import conftest
from tests.support import blobs, feature_set, replace

COMMANDING = (
    "[/b]]\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x1b\\y\x1b]52;c;eA==\x07\x9b31m\x90\r\b\x7f\x0b\x0c\n\x85Error: none"
)
UNSEEN = "[x\u202eb\u2066c\u2069\u200b\u200e\u200f\u2060\ufeff\u00ad\u061c\u2028\u2029\U000e0041\U000e007f\u3164]"
FLOOD = "z" + "\u0301" * 8 + "\udcff\udc80\ud800"
WORST = (COMMANDING, UNSEEN, FLOOD)
NAME = "[/b]]\x1b[2J\x1b]8;;http://x\x1b\\y\x9b31m\r\b\x85\nError: none\u202e\u200b\u2028\U000e0041\u3164" + FLOOD
"""Something of each, in a name that files may have."""
FILE = NAME.replace("/", "").replace("\ud800", "")
"""The same as the name of a file."""
OWN = re.compile("\r?\x1b\\[(2K|1A)|\x1b\\[\\?25[lh]")
"""What draws a progress bar. All other commands would be a name's."""


def bad(text: str) -> set[str]:
    """What of a text a terminal would not show as a character of its own."""
    seen = OWN.sub("", text)
    found = {c for c in seen if not (c in "\n " or c.isprintable() or unicodedata.category(c) == "Zs")} | (
        set("\u3164\u115f\u1160\uffa0") & set(seen)
    )
    marks = longest = 0
    for character in seen:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        longest = max(longest, marks)
    return found | ({"flood"} if longest > MOST_MARKS else set())


def worst(value: Any, text: str, closed: bool = False) -> Any:
    """A JSON value with that text in place of every text in it that no rule of its format decides, and as a new key.

    closed: no key may be new.
    """
    if isinstance(value, dict):
        return {name: worst(item, text, closed) for name, item in value.items()} | ({} if closed else {text: text})
    if isinstance(value, list):
        return [worst(item, text, closed) for item in value]
    return text if isinstance(value, str) else value


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working folder in which everything has the worst name."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
            patch.delenv(variable, raising=False)
        patch.setenv("DPFC_CACHE", "cache")
        patch.setitem(MODELS, "vit-ti16", replace(MODELS["vit-ti16"], width=8))
        _made(NAME, FILE)
        yield


def _made(text: str, file: str) -> None:
    x, y = blobs(60, 8, 3, seed=1, apart=8.0)
    np.savez("good.npz", train_x=x, train_y=y, test_x=x[:30], test_y=y[:30])
    feature_set("good.npz", "good", classes=3)
    manifest = Path("features/good/manifest.json")
    stored = json.loads(manifest.read_text())
    stored["classes"] = [text + str(i) for i in range(3)]
    for part in ("backbone", "versions"):
        stored[part] = worst(stored[part], text)
    stored["source"]["dataset"] = text
    manifest.write_text(json.dumps(stored))
    Path("features/good").rename(Path("features", file))
    named = text.replace("\ud800", "").replace("\udcff\udc80", "")
    signed = ("--by", named, "--purpose", named)
    assert ran("train", "--epsilon", "1", "--method", "dp-ls", "--features", file, *signed).exit_code == 0
    assert ran("cap", "100", "--features", file, "--by", named, "--note", named).exit_code == 0
    [head] = Path("heads").iterdir()
    head.rename(Path("heads", f"{file}.safetensors"))
    head = Path("heads", f"{file}.safetensors")
    data = head.read_bytes()
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    card = json.loads(metadata["card"])
    stays = ("claim", "adjacency", "unit", "plan", "facts", "method", "options", "ledger", "date")
    hostile = {name: card[name] if name in stays else worst(card[name], text, closed=True) for name in card}
    hostile["features"]["backbone"] = worst(card["features"]["backbone"], text)
    hostile["classes"] = stored["classes"]
    # The ledger here would contradict it.
    hostile["ledger"]["charge"] = "0" * 32
    save_file(load_file(head), Path("heads", f"card{file}.safetensors"), metadata | {"card": json.dumps(hostile)})
    ledger, own = Path("features", LEDGER), file.encode("utf-8", "ignore").decode()
    facts = [
        replace(each, name=own, population=named[:100])
        if isinstance(each, Set)
        else replace(each, head=own)
        if isinstance(each, Charge)
        else each
        for each in read(ledger).facts
    ]
    ledger.unlink()
    append(ledger, lambda _: facts, "The ledger")
    # What is no head, no set, no picture and no features, under the worst names.
    Path("heads", f"no{file}.safetensors").write_bytes(b"none")
    Path("features", f"no{file}").mkdir()
    Path("features", f"no{file}", "manifest.json").write_text(json.dumps({"version": text}))
    # A class is not named by half characters.
    named = file.encode("utf-8", "ignore").decode()
    for i in range(6):
        path = Path(f"pictures{file}", "train", f"{named}{i % 2}", f"{file}{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (40 * i, 0, 0)).save(path)
    Path(f"pictures{file}", "train", f"{named}1", f"{file}x.png").write_bytes(b"none")
    Path(f"{file}.npy").write_bytes(b"none")
    kept(MODELS["vit-ti16"], Path("cache"), {"head.weight": np.random.default_rng(0).normal(size=(3, 8))})
    Path(f"{file}rows.json").write_text(json.dumps({name: [i] for i, name in enumerate(stored["classes"][1:])}))
    np.savez(f"{file}.npz", train_x=x, train_y=y, **{named: x})  # type: ignore[arg-type]


def ran(*words: str) -> Result:
    return CliRunner().invoke(application.app, list(words))


def lines(text: str, file: str) -> list[list[str]]:
    """Command lines that say the worst name in every place where there is one."""
    head, card, broken = f"heads/{file}.safetensors", f"heads/card{file}.safetensors", f"heads/no{file}.safetensors"
    argument = text.replace("\ud800", "")
    words = argument.replace("\udcff\udc80", "")
    train = ["train", "--epsilon", "1", "--features", file]
    extract = ["extract", "--image-size", "8", "--classes", "a,b", f"imagefolder:pictures{file}"]
    zero_shot = ["zero-shot", "--from", "classifier", "--features", file, "--model", "vit-ti16"]
    zero_shot += ["--rows", f"{file}rows.json"]
    digits, weights = ["extract", "digits"], ["extract", "digits", "--model", "vit-b16", "--weights"]
    return [
        *(["list"], ["budget"], ["evaluate"], ["evaluate", head], ["evaluate", card], ["statement", head]),
        *(["statement", card], ["statement", broken], ["statement", argument]),
        *(["verify", card], ["verify", head], ["verify", head, "--ledger", argument], ["verify", head, "--json"]),
        *(["report", card, "--out", "card.md"], ["report", head, "--out", f"{argument}.md"], ["report", broken]),
        *(
            ["report", head, "--out", "head.html", "--kind", "internal", *more]
            for more in ([], ["--features", argument])
        ),
        ["report", head, "--out", "more.md", "--evaluation", argument],
        *(["budget", "--features", file], ["budget", "--features", argument]),
        *(["cap", each, "--features", file] for each in (argument, "1e-3")),
        *(["cap", each, "--features", file, "--by", words, "--note", words] for each in ("90", "none")),
        *(["merge", "features", option, argument] for option in ("--apart", "--same")),
        *(["merge", argument], ["population", argument, "--features", file]),
        *([*train, option, words] for option in ("--by", "--purpose")),
        *(["evaluate", head, "--split", argument], ["evaluate", head, "--features", f"no{file}"]),
        *([*train, "--method", method, "--dry-run"] for method in ("dp-ls", argument)),
        *([*train, "--method", "dp-ls"], [*train, "--public-features", file], [*train, "--out", f"heads/{argument}"]),
        *([*train, "--out", head], [*train, "--memory", argument], [*train, "--loss", argument]),
        *([*train, "--budget-split", argument], [*train, "--steps", argument]),
        *(["audit", "--method", argument], ["audit", "--epsilon", argument]),
        *(["predict", each, source] for each in (head, card, broken) for source in (file, f"pictures{file}")),
        *(["predict", head, f"{file}.npz"], ["predict", head, argument], ["predict", argument, file]),
        *(["predict", head, file, option, argument] for option in ("--out", "--format", "--weights", "--calibrate-on")),
        *(["predict", head, file, "--format", "jsonl"], ["predict", head, file, "--calibrate-on", file]),
        ["predict", head, file, "--out", f"{file}.csv"],
        *(extract, [*extract, "--classes", argument], [*extract, "--out", file, "--on-error", "null"]),
        *([*extract, "--out", "p", "--on-error", "null"], ["extract", argument]),
        *([*digits, "--pool", argument], [*digits, "--model", argument]),
        [*weights, argument],
        *(["import", name, "--classes", "3"] for name in (f"{file}.npz", f"{file}.npy", file, "good.npz", argument)),
        *(["import", "good.npz", option, argument] for option in ("--column", "--classes", "--out")),
        *(
            [*zero_shot, *more]
            for more in ([], ["--on", file], ["--on", file, "--split", argument], ["--out", argument])
        ),
        *([*zero_shot, option, f"{file}.npy"] for option in ("--classes", "--rows", "--on", "--prompts")),
        *([*zero_shot[:-2], option, argument] for option in ("--labels", "--wordnet", "--model", "--from")),
        *(
            [argument],
            [f"--{argument}"],
            ["list", argument],
            ["list", f"--{argument}"],
            ["budget", "--steps", argument],
        ),
    ]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("terminal", [True, False], ids=("terminal", "pipe"))
def test_no_name_commands_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    if terminal:
        # No command but those of `OWN` is ours.
        instead.terminal(monkeypatch)
    faults = {}
    for words in lines(NAME, FILE):
        ended = ran(*words)
        found = bad(ended.stdout) | bad(ended.stderr)
        lied = re.search("^Error: none", ended.stdout + ended.stderr, re.M)
        if ended.exit_code in (1, 130) or found or lied:
            faults[tuple(words)] = (ended.exit_code, found, ended.output[-600:])
    assert not faults, "\n".join(f"{words!r} {fault!r}" for words, fault in faults.items())


@pytest.mark.usefixtures("world")
def test_json_is_visible_ascii_and_gives_the_names_as_they_are() -> None:
    head, card = f"heads/{FILE}.safetensors", f"heads/card{FILE}.safetensors"
    for words in (["list"], ["budget"], ["statement", card], ["evaluate", head, "--features", FILE]):
        ended = ran(*words, "--json")
        said = ended.stdout.removesuffix("\n")
        assert re.fullmatch("[ -~]*", said)
        assert said, ended.stderr
        found = json.loads(said)
        if words[0] == "statement":
            assert found["card"]["classes"] == [NAME + str(i) for i in range(3)]
            assert found["card"]["features"]["name"] == NAME


@pytest.mark.parametrize("terminal", [True, False], ids=("terminal", "pipe"))
@pytest.mark.parametrize("text", WORST, ids=("commanding", "unseen", "flood"))
def test_no_defect_warning_or_stage_commands_a_terminal(
    monkeypatch: pytest.MonkeyPatch, text: str, terminal: bool
) -> None:
    """What only a fault shows: the traceback of a defect, warnings of libraries, names of stages, notes, questions."""
    if terminal:
        # No command but those of `OWN` is ours.
        instead.terminal(monkeypatch)

    def broken(*_: object) -> None:
        application._show_warning(UserWarning(text), UserWarning)
        for stage in (text, "another", text):
            progress.show(stage, 1, 2)
        raise error

    instead.converted(monkeypatch, broken)
    monkeypatch.setattr(progress, "DELAY", 0)
    for error in (RuntimeError(text), UserError(text, text), KeyboardInterrupt()):
        error.add_note(Note(text))
        ended = ran("-v", "budget", "--sigma", "1")
        assert not bad(ended.stdout) | bad(ended.stderr)
        assert not re.search("^Error: none", ended.stderr, re.M)
        assert len(ended.stderr.splitlines()) >= 2


def test_a_question_commands_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for text in WORST:
        instead.stdin(monkeypatch, "n\n")
        assert not display.confirmed(text)
        written = capsys.readouterr()
        assert printable(text) in written.err
        assert not bad(written.err) | bad(written.out)


def test_what_python_itself_prints_of_us_commands_no_terminal() -> None:
    """An error that a program does not catch, and a warning."""
    for text in WORST:
        assert not bad(str(UserError(text, text)))
        assert len(str(UserError(text, text)).split("\n")) == 2
        with pytest.warns(TrainingWarning) as found:
            Observer().warn(text)
        assert not bad(str(found[0].message))


def test_names_of_every_script_are_shown_as_they_are_and_what_is_escaped_is_escaped_once() -> None:
    for name in ("כלב", "כֶּלֶב", "قطة", "قِطَّة", "猫　犬", "Katze", "naïve", "हाथी", "แมว", "🐈", "plain", "a\\x1b"):
        assert printable(name) == name
        assert not bad(name)
    for text in WORST:
        assert not bad(printable(text))
        assert printable(printable(text)) == printable(text)


@pytest.mark.usefixtures("world")
def test_no_set_and_no_head_is_given_a_name_that_cannot_be_seen() -> None:
    train = ["train", "--epsilon", "1", "--features", FILE, "--dry-run"]
    for words in (["extract", "digits", "--out", FILE], [*train, "--out", f"heads/new{FILE}.safetensors"]):
        assert conftest.refusal(ran(*words, "--json")).startswith("bad-value out")
    assert Path(json.loads(ran(*train, "--json").stdout)["head"]).name.startswith(printable(FILE))
