"""`dpfc export`: a head in the format of another program."""

from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import NEWEST, head_or_newest
from dpfc_cli.extensions.exports.request import Exporting
from dpfc_cli.options import Value


@command("export", Exporting, panel="For others")
def export(head: Annotated[Path | None, NEWEST] = None, **asked: Value) -> None:
    """Write a head in the format of another program.

    onnx is a graph from features to scores and probabilities. torch is a state dict. sklearn is a classifier with
    predict and predict_proba. npz has the arrays. torch and sklearn have a Python module beside the file, which needs
    no dpfc. The card, with what is claimed of the head, is in each file.
    """
    from dpfc_cli.extensions.exports.export import export as write
    from dpfc_cli.heads.head import shown
    from dpfc_cli.verification import vouched

    loaded = vouched(head_or_newest(head))
    made = write(loaded, **asked)
    name = shown(loaded.file)
    values = {"head": name, "format": asked["to"], "files": [str(path) for path in made.files], "notes": made.notes}
    rows = [("head", name), *(("written", f"{path} ({path.stat().st_size:,} bytes)") for path in made.files)]
    rows += [(each, made.notes[each]) for each in ("claim", "input", "outputs", "probabilities") if each in made.notes]
    display.facts(f"Export {made.path}", rows, values)
