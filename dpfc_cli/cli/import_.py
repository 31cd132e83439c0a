"""`dpfc import`: features that something else computed, into a feature set."""

from pathlib import Path
from typing import Annotated

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.cli.extract import DTYPES, report


@command("import", when_stopped="Finished shards are kept: run the same command to go on.")
def import_(
    path: Annotated[Path, typer.Argument(help="A folder with {train,test}_{x,y}.npy, or an .npz with those names.")],
    out: Annotated[str | None, typer.Option(help="Name (or path) of the feature set. Default: PATH's name.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="The classes, a public fact: their number, or names (comma-separated, or a file with one a line)."
        ),
    ] = None,
    labels_per_record: Annotated[
        int | None, typer.Option(min=1, help="The most labels a record can have, a public fact.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"Stored precision: {', '.join(DTYPES)}. Default: the source's.")
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, max=99_999, help="Shards per split. Default: by size.")] = None,
) -> None:
    """Take features that something else computed into a feature set."""
    from dpfc_cli.errors import UserError, unknown
    from dpfc_cli.features.importing import import_features

    if dtype is not None and dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    if not path.exists():
        raise UserError(
            f"There is no '{path}'.", "Name a folder with {train,test}_{x,y}.npy, or an .npz with those names."
        )
    name = path.resolve().stem if path.is_file() else path.resolve().name
    folder = places.named(name if out is None else out)
    with display.meter("Importing", "records") as advance:
        manifest, made = import_features(
            path,
            folder,
            _class_names(classes),
            labels_per_record,
            dtype,
            shards,
            lambda _split, done, total: advance(done, total),
        )
    if not made:
        display.say(f"'{folder}' is complete already; delete it to make it anew.")
    report(folder, manifest)


def _class_names(given: str | None) -> tuple[str, ...] | None:
    from dpfc_cli.errors import UserError

    if given is None:
        return None
    if given.isdigit():
        names = tuple(str(j) for j in range(int(given)))
    elif Path(given).is_file():
        try:
            lines = Path(given).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"'{given}' cannot be read as a list of names.", "Give UTF-8 text, a name a line."
            ) from error
        names = tuple(line.strip() for line in lines if line.strip())
    else:
        names = tuple(name.strip() for name in given.split(","))
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"--classes '{given}' does not give two or more different names.",
            "Give a number, names, or a file of names.",
        )
    return names
