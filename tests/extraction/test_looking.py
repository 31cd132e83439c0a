"""Looking through pictures before an extraction: all that is wrong is said at once, and nothing is made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

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
    return look_through(Extraction("imagefolder:scans", classes=("a", "b"), out="set", warn=lambda said: None, **more))


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_made(scans: Path) -> None:
    cut, wide = scans / "a/p0/0.png", scans / "b/p1/3.png"
    cut.write_bytes(cut.read_bytes()[:60])
    Image.new("RGB", (17, 16)).save(wide)
    with refuses("conflict") as refused:
        looked()
    found = refused.value.fields["problems"]
    assert isinstance(found, list)
    assert [each["fields"].get("parameter") for each in found] == ["each_record_is_a_person", "image_size", "on_error"]
    (listed,) = Path("features").iterdir()
    assert all(name in listed.read_text() for name in (str(cut), str(wide)))
    assert listed.name == "set.refused.txt"


def test_what_is_right_is_counted(scans: Path) -> None:
    found = looked(group_by="folder:1", hold_out=0.3)
    assert found.records is not None
    assert found.persons is not None
    assert sum(found.records.values()) == 2 * sum(found.persons.values()) == 20
    assert set(found.records) == {"train", "test"}
    assert not Path("features").exists()
