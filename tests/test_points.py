"""What a package of somebody else adds is there as our own things are: one module and a line for each."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import package

OTHER = '''
import numpy as np
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.images.pictures import Held
from dpfc_cli.images.sets import DataSet, Listed, entry_of, image_set
from dpfc_cli.annotations.classes import coded

CLASSES = ("dark", "grey", "light")


@command("greet", panel="Of others")
def greet() -> None:
    """Greet somebody."""
    display.facts("Hello", [("who", "world")])


def opened(request):
    labels = np.arange(60) % 3
    pixels = np.broadcast_to(80 * labels[:, None, None, None], (60, 8, 8, 1)).astype(np.uint8)
    entries = [entry_of("made", pixels.tobytes())]
    found = {"train": Listed(labels=coded(labels), pictures=Held(pixels), entries=entries, classes=CLASSES)}
    return image_set("shades", found, request, classes=CLASSES)


SHADES = DataSet(name="shades", open=opened, location="included", pixels=True)
'''
ENTRIES = "[dpfc.commands]\ngreet = others:greet\n\n[dpfc.sources]\nshades = others:SHADES\n"


def test_another_package_adds_a_command_and_a_data_set(tmp_path: Path) -> None:
    def ran(*words: str) -> str:
        line = [sys.executable, "-m", "dpfc_cli", *words]
        paths = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[1])))
        environment = os.environ | {"PYTHONPATH": paths}
        return subprocess.run(line, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    with package(tmp_path, "others", OTHER, ENTRIES):
        assert "world" in ran("greet")
        assert "Greet somebody." in ran("--help")
        made = ran("extract", "shades", "--pool", "mean", "--hold-out", "0.2")
    assert "3 (the data set's own)" in made
    assert len(list(tmp_path.glob("features/shades-*/manifest.json"))) == 1
