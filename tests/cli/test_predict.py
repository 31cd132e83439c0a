"""`dpfc predict`: what a user types, what is printed, and how it ends."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli import Head
from dpfc_cli.images.catalogue import open_images
from tests.cli.conftest import Dpfc, refusal

"""Pictures of a run that is killed: a few batches."""
UNCALIBRATED = "The probabilities are not calibrated"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a head of the digits, their features, and 30 of their test pictures in a flat folder."""
    from typer.testing import CliRunner

    from dpfc_cli.cli.app import app

    top = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(top)
        for line in (
            "extract digits --pool mean --out digits --limit 300",
            "train --features digits --epsilon 8 --method dp-ls --out heads/digits.safetensors",
        ):
            ended = CliRunner().invoke(app, line.split())
            assert ended.exit_code == 0, ended.output
    (top / "photos").mkdir()
    for i, picture in enumerate(open_images("digits").splits["test"].spread(300).pixels(0, 30)):
        Image.fromarray(picture[:, :, 0]).save(top / "photos" / f"{i:02d}.png")
    return top


@pytest.fixture
def place(dpfc: Dpfc, trained: Path, tmp_path: Path) -> Path:
    """The same in the working folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_folder_becomes_csv_on_standard_output_that_says_what_the_head_says(dpfc: Dpfc, place: Path) -> None:
    ended = dpfc("predict", "digits", "photos", ends=0)
    # As extract names a folder, and the only head.
    assert dpfc("predict", "imagefolder:photos").stdout == ended.stdout
    rows = rows_of(ended.stdout)
    assert [row["name"] for row in rows] == [f"{i:02d}.png" for i in range(30)]
    pixels = open_images("digits").splits["test"].spread(300).pixels(0, 30)
    from dpfc_cli import backbones

    x = backbones.load(backbones.Wanted(name="scattering", image_shape=(8, 8, 1), pool="mean"))(pixels).astype(
        np.float16
    )
    assert [row["class"] for row in rows] == Head.load("digits").predict(x)
    assert ended.stderr.count(UNCALIBRATED) == 1
    assert UNCALIBRATED not in dpfc("-q", "predict", "digits", "photos").stderr


def test_the_file_says_the_format_and_top_the_number_of_classes(dpfc: Dpfc, place: Path) -> None:
    assert dpfc("predict", "digits", "photos", "--out", "found/rows.jsonl").exit_code == 2
    Path("found").mkdir()
    ended = dpfc("predict", "digits", "photos", "--top", "3", "--out", "found/rows.jsonl")
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert "found/rows.jsonl" in ended.stderr
    rows = [json.loads(text) for text in Path("found/rows.jsonl").read_text().splitlines()]
    told = json.loads(dpfc("predict", "digits", "photos", "--out", "found/rows.csv", "--json").stdout)
    assert (told["path"], told["rows"], told["errors"]) == ("found/rows.csv", 30, 0)
    assert list(rows[0]) == [
        *("name", "class", "probability", "class_2", "probability_2", "class_3", "probability_3", "error")
    ]
    printed = dpfc("predict", "digits", "photos", "--top", "3", "--format", "jsonl").stdout
    assert printed == Path("found/rows.jsonl").read_text()


def test_unreadable_pictures_have_rows_and_the_command_ends_well(dpfc: Dpfc, place: Path) -> None:
    Path("photos/05.png").write_bytes(b"none")
    ended = dpfc("predict", "digits", "photos", ends=0)
    rows = rows_of(ended.stdout)
    assert [row["name"] for row in rows if row["error"]] == ["05.png"]
    assert rows[5]["class"] == ""
    assert "'error'" in ended.stderr


def test_if_nothing_could_be_read_the_rows_are_there_and_the_command_ends_with_2(dpfc: Dpfc, place: Path) -> None:
    Path("broken.png").write_text("none")
    Path("list.txt").write_text("broken.png\nneither.png\n")
    assert refusal(dpfc("predict", "digits", "list.txt", "--out", "rows.csv", "--json", ends=2)) == "bad-record source"
    assert len(rows_of(Path("rows.csv").read_text())) == 2


def test_mistakes_are_named_and_nothing_is_predicted(dpfc: Dpfc, place: Path) -> None:
    whole = Path("heads/digits.safetensors").read_bytes()
    Path("heads/damaged.safetensors").write_bytes(whole[:-8])
    Path("heads/false.safetensors").write_bytes(whole.replace(b'\\"sigma\\": ', b'\\"sigma\\":9', 1))
    before = sorted(Path().rglob("*"))
    for arguments, says in (
        ("nowhere photos --out a.csv", "missing nowhere"),
        ("digits nowhere --out a.csv", "missing source nowhere"),
        ("digits photos --out a --format xlsx", "unknown-name xlsx"),
        ("digits photos --out rows.txt", "bad-value out rows.txt"),
        ("digits photos", "conflict as_json"),
        ("digits photos --out heads/digits.safetensors --format csv", "exists out heads/digits.safetensors"),
        ("digits digits --out a.csv --weights model.safetensors", "conflict weights"),
        ("digits photos --out a.csv --calibrate-on digits", "private-records calibrate_on features/digits"),
        ("damaged photos --out a.csv", "damaged heads/damaged.safetensors"),
        ("false photos --out a.csv", "damaged heads/false.safetensors"),
    ):
        ended = dpfc("predict", *arguments.split(), "--json")
        assert (refusal(ended), ended.stdout) == (says, ""), arguments
        assert sorted(Path().rglob("*")) == before
    # It is no text.
    assert dpfc("predict", "digits", "photos", "--format", "parquet", ends=2).stdout == ""


def started(*words: str, place: Path, **streams: Any) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    line = [sys.executable, "-m", "dpfc_cli", "predict", *words]
    process: subprocess.Popen[bytes] = subprocess.Popen(line, cwd=place, env=environment, **streams)
    return process


def test_a_pipe_takes_names_and_gives_rows_and_stops_when_its_reader_has_ended(place: Path) -> None:
    """There are many batches after the first. The last picture is missing: whoever reaches it warns of it."""
    names = [*(f"photos/{i % 30:02d}.png" for i in range(20_000)), "missing.png"]
    Path("names.txt").write_text("\n".join(names))
    with Path("names.txt").open("rb") as given:
        pipe = subprocess.PIPE
        with started("digits", "-", place=place, stdin=given.fileno(), stdout=pipe, stderr=pipe) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"name,class,probability,error\n"
            assert process.stdout.readline().startswith(b"photos/00.png,")
            process.stdout.close()
            said = process.stderr.read()
            assert process.wait() == 0
    assert b"could not be read" not in said
    assert b"Error" not in said
