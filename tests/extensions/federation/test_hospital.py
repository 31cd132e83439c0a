"""A folder as a hospital has it, from `extract` to `statement`: what is printed tells a newcomer what to do next."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.errors import GUARDED
from dpfc_cli.rounding import cost
from tests.cli.conftest import Dpfc, each_is_refused, heads, labels_of, one_line

SIDE, PATIENTS = 24, 40
CLASSES = ("flu", "cold", "rare")
BROKEN = {
    "flu/p 0/empty.jpg": b"",
    "cold/Müller, Ana 1/cut off.png": b"\x89PNG\r\n\x1a\n1",
    "rare/患者2/letter.jpg": b"Dear",
}
CLUTTER = ("flu/Thumbs.db", ".DS_Store", "cold/._x.png", "__MACOSX/flu/._a.png", "rare/notes.txt", "flu/p 0/a.pdf")


def scan(kind: int, rng: np.random.Generator) -> np.ndarray:
    """12 bits of a scanner. The classes differ by what lies in the middle."""
    across, down = np.mgrid[:SIDE, :SIDE] // 4 % 2
    pattern = (np.zeros((SIDE, SIDE)), across, down)[kind]
    noise: np.ndarray = rng.normal(1000, 150, (SIDE, SIDE)) + 1500 * pattern
    return noise.clip(0, 4095).astype(np.uint16)


def save(folder: Path, number: int, values: np.ndarray) -> None:
    """One picture, in one of the ways in which pictures come."""
    eight = (values >> 4).astype(np.uint8)
    inks = np.stack([255 - eight] * 3 + [np.zeros_like(eight)], axis=2)
    turned = Image.Exif()
    turned[0x0112] = 6
    match number % 7:
        case 0:
            Image.fromarray(values).save(folder / f"scan {number} (copy).PNG")
        case 1:
            Image.fromarray(values).save(folder / f"{number}.TIF")
        case 2:
            Image.fromarray(eight).save(folder / f"IMG_{number}.JPG", quality=95, exif=turned)
        case 3:
            Image.fromarray(inks, "CMYK").save(folder / f"{number}.jpeg", quality=95)
        case 4:
            Image.fromarray(eight).save(folder / f"{number}.gif")
        case 5:
            Image.fromarray(values).save(folder / f"{number}.pgm")
        case _:
            Image.fromarray(eight).convert("RGB").save(folder / f"ünï #{number}.webp", lossless=True)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Three pictures of each patient, in class/patient/picture; three files that are broken, and clutter."""
    rng, top = np.random.default_rng(0), tmp_path / "hospital"
    for i in range(PATIENTS):
        who = (f"p {i}", f"Müller, Ana {i}", f"患者{i}", f"o'brien #{i}")[i % 4]
        folder = top / CLASSES[i % 3] / who
        folder.mkdir(parents=True)
        for j in range(3):
            save(folder, 3 * i + j, scan(i % 3, rng))
    for name, data in (*BROKEN.items(), *dict.fromkeys(CLUTTER, b"x").items()):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    return Path("hospital")


def test_a_hospitals_folder_from_extract_to_statement(dpfc: Dpfc, hospital: Path) -> None:
    line = ["extract", f"imagefolder:{hospital}", "--pool", "mean"]
    lines = {
        "": "conflict classes",
        "--classes flu,cold": "conflict classes",
        "--classes flu,cold,rare,never --on-error null": "conflict image_size",
        "--classes flu,cold,rare,never --image-size 24": "conflict each_record_is_a_person",
    }
    each_is_refused(dpfc, lines, *line)
    line += ["--image-size", "24", "--classes", "flu,cold,rare,never", "--hold-out", "0.25"]
    line += ["--each-record-is-a-person"]

    refused = dpfc(*line)
    said = one_line(refused.stderr)
    assert refused.exit_code == 2
    assert all(words in said for words in (".pdf", ".txt", GUARDED, "--on-error"))
    (named,) = Path("features").glob("*-holdout0.25.refused.txt")
    assert all(f"hospital/{name}:" in named.read_text() for name in BROKEN)

    line += ["--on-error", "null"]
    dark = dpfc(*line, "--out", "dark")
    said = one_line(dark.stderr)
    assert dark.exit_code == 0, dark.output
    assert said.count("--window") == 1

    made = dpfc(*line, "--window", "0,4095", "--out", "hospital")
    said = one_line(made.stderr)
    assert made.exit_code == 0, made.output
    assert "--window" not in said
    nulls = labels_of("hospital").count(-1)
    assert 1 <= nulls <= 3
    assert f"{nulls} of" in said
    assert "Müller" not in said
    assert "publish" in said
    assert "asserted" in made.stdout
    assert not any(name in made.stdout for name in ("Müller", "p 0", "null"))

    trained = dpfc("train", "--epsilon", "8", "--features", "hospital", ends=0)
    scored = dpfc("evaluate", "--json", ends=0)
    (head,) = heads()
    stated = dpfc("statement", f"heads/{head}", ends=0)
    assert cost(8, 1e-5) in stated.stdout
    for word in ("Müller", "o'brien", "患者", "null record", "broken"):
        assert word not in stated.stdout + trained.output + scored.output

    # The head knows how its pictures were read: those of another window are no pictures for it.
    other = dpfc("evaluate", f"heads/{head}", "--features", "dark")
    assert "'dark'" in other.stderr
