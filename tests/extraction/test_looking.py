"""Looking through pictures before an extraction: all that is wrong is said at once, and nothing is made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.extraction.extract import extract
from dpfc_cli.extraction.looking import Looked, look_through
from dpfc_cli.extraction.request import Extraction
from tests.support import refuses


@pytest.fixture(autouse=True)
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pictures of each of ten persons, in CLASS/PERSON/PICTURE."""
    monkeypatch.chdir(tmp_path)
    for i in range(20):
        place = Path("scans", "ab"[i // 2 % 2], f"p{i // 2}", f"{i}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)).save(place)
    return Path("scans")


def looked(**more: Any) -> Looked:
    wanted = Extraction("imagefolder:scans", classes=("a", "b"), out="set", warn=lambda said: None, **more)
    return look_through(wanted)


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_made(scans: Path) -> None:
    cut, wide = scans / "a/p0/0.png", scans / "b/p1/3.png"
    cut.write_bytes(cut.read_bytes()[:60])
    Image.new("RGB", (17, 16)).save(wide)
    for image_size in (None, 16):
        with refuses("conflict") as refused:
            looked(image_size=image_size)
        found = refused.value.fields["problems"]
        assert isinstance(found, list)
        named = [each["fields"].get("parameter") for each in found]
        assert named == ["each_record_is_a_person", "on_error"]
        (listed,) = Path("features").iterdir()
        # What is brought to a size may have any.
        assert [name in listed.read_text() for name in (str(cut), str(wide))] == [True, image_size is None]
        assert listed.name == "set.refused.txt"


def test_what_is_right_is_counted(scans: Path) -> None:
    found = looked(group_by="folder:1", hold_out=0.3)
    assert found.records is not None
    assert found.persons is not None
    assert sum(found.records.values()) == 2 * sum(found.persons.values()) == 20
    assert set(found.records) == {"train", "test"}
    assert not Path("features").exists()


def table(*lines: str) -> Path:
    """The table of the scans, and of these lines."""
    names = sorted(path.relative_to("scans").as_posix() for path in Path("scans").rglob("*.png"))
    Path("scans/metadata.csv").write_text(
        "\n".join(["file_name,label", *(f"{name},{name[0]}" for name in names), *lines])
    )
    return Path("scans/metadata.csv")


BAD = ("gone.png,a", "gone too.png,b", "a/p0/1.png,b", "none.png,", "../else.png,a", "extra.png,c")
"""Lines of two pictures that are not there, of one that has a line already, of one without a label (and not there), of
one outside of the folder, and of one with another label.
"""


def test_all_that_is_wrong_with_a_table_is_said_at_once(scans: Path) -> None:
    table(*BAD)
    (scans / "extra.png").write_bytes((scans / "a/p0/0.png").read_bytes())
    cut = scans / "b/p1/2.png"
    cut.write_bytes(cut.read_bytes()[:60])
    with refuses("bad-record") as refused:
        looked(each_record_is_a_person=True, label_column="label", image_size=16)
    found = refused.value.fields["problems"]
    assert isinstance(found, list)
    # Lines that can be no records, labels, and pictures. Of one line two things may be wrong.
    assert [each["code"] for each in found] == ["bad-record"] * 3


def test_lines_without_a_picture_or_a_label_become_null_records_where_that_is_wanted(scans: Path) -> None:
    table(*BAD[:2], BAD[3])
    asked: Any = {"classes": ("a", "b"), "label_column": "label", "image_size": 16, "warn": lambda said: None}
    asked |= {"each_record_is_a_person": True, "out": "set"}
    with refuses("bad-record", parameter="on_error"):
        extract("imagefolder:scans", **asked)
    listed = [Path(line.partition(":")[0]).name for line in Path("features/set.refused.txt").read_text().splitlines()]
    assert listed == ["gone too.png", "gone.png", "none.png"]
    assert not Path("features/set.partial").exists()
    made = extract("imagefolder:scans", **asked, on_error="null", most_null=0.2)
    _, y = made.features.arrays("train")
    assert y.ravel().tolist().count(-1) == 3
    assert made.features.split("train").n == 23
