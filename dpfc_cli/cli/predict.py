"""`dpfc predict`: a head at work on pictures or features."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import NEWEST, head_or_newest, with_sets
from dpfc_cli.errors import bad_record, conflict, counted, missing, parameter
from dpfc_cli.options import Option, Value, listed
from dpfc_cli.prediction.output import FORMATS, LINES, check_place, format_of, header, line
from dpfc_cli.prediction.request import SOURCE, Predicting, added_hooks

if TYPE_CHECKING:
    from dpfc_cli.prediction.output import Saved
    from dpfc_cli.prediction.predict import Predictions


@command(
    "predict",
    Predicting,
    *added_hooks(),
    panel="Pictures and heads",
    when_stopped="What was printed is all that was made.",
    computes=True,
)
def predict(
    head: Annotated[str | None, NEWEST] = None,
    source: Annotated[str | None, Option(SOURCE, argument=True, metavar="SOURCE")] = None,
    out: Annotated[
        Path | None,
        Option(
            "The file to be made: .csv, .jsonl or .parquet. It gets its name when it is whole. "
            "Default: CSV to standard output.",
            metavar="FILE",
        ),
    ] = None,
    form: Annotated[
        str | None,
        Option(f"{listed(FORMATS)}. Default: as FILE is called.", metavar="NAME", flags=("--format",), choices=FORMATS),
    ] = None,
    as_json: Annotated[
        bool,
        Option("Print one JSON object on what was written. It needs --out.", flags=("--json",)),
    ] = False,
    **asked: Value,
) -> None:
    """Name the classes of new pictures, with probabilities.

    The backbone is made again from what the head says. A picture that cannot be read has a row with its error, and does
    not stop the others.
    """
    if source is None:
        # One word alone names the source.
        head, source = None, head
    if source is None:
        remedy = "Write dpfc predict SOURCE, such as a folder, or dpfc predict HEAD SOURCE."
        raise missing("No pictures are named.", remedy, parameter="source")
    # What can be refused is refused before anything is loaded.
    kind = format_of(out, form) if out is None else check_place(out, form)
    if out is None and kind not in LINES:
        raise conflict(f"{parameter('form')} {kind} is no text.", f"Name a file: {parameter('out')} FILE.{kind}.")
    if as_json and out is None:
        raise conflict(
            f"{parameter('as_json')} says what was written, and standard output has the rows.",
            f"Name a file with {parameter('out')}. For rows in JSON leave {parameter('as_json')} out: "
            f"{parameter('form')} jsonl.",
        )
    from dpfc_cli.features.lookup import set_at
    from dpfc_cli.prediction import predict as prediction

    named = head_or_newest(head, set_at(source) if head is None else None)
    asked = with_sets(asked, Predicting)
    found = prediction.predict(named, source, **asked)
    _remark(found)
    saved = _print(found, kind) if out is None else found.save(out, form)
    if as_json:
        display.as_json(_json(found, saved))
    _told(found, saved)


def _json(found: "Predictions", saved: "Saved") -> dict[str, object]:
    fitted = found.calibration
    return {
        "path": str(saved.path),
        "rows": saved.rows,
        "errors": saved.errors,
        "temperature": None if fitted is None else fitted.temperature,
    }


def _print(found: "Predictions", kind: str) -> "Saved":
    """The rows to standard output, until its reader has ended."""
    from dpfc_cli.prediction.output import Saved

    saved = Saved()
    sys.stdout.write(header(kind, found.top))
    with closing(found.blocks()) as blocks:
        for rows in blocks:
            sys.stdout.write("".join(line(row, kind, found.top) for row in rows))
            sys.stdout.flush()
            saved.count(rows)
            raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
            if getattr(raw, "ended", False) or getattr(raw, "failed", None):
                break
    return saved


def _remark(found: "Predictions") -> None:
    for remark in found.remarks:
        display.say(remark)
    for warning in found.warnings:
        display.warn(warning)
    fitted = found.calibration
    if fitted is None:
        display.say(
            "The probabilities are not calibrated: noise and clipping change how sure they look. Their order is right. "
            "Fit a temperature on public records: --calibrate-on PUBLIC_SET."
        )
    else:
        display.say(
            f"Calibrated on {counted(fitted.n, 'record')} of '{fitted.name}' ({fitted.split}): temperature "
            f"{fitted.temperature:.3g}. That these records are public is your assertion."
        )


def _told(found: "Predictions", saved: "Saved") -> None:
    """What was written, and what could not be read. UserError if nothing could."""
    if saved.path is not None:
        display.say(f"{counted(saved.rows, 'row')}: {saved.path}")
    why = "The column 'error' says why."
    if saved.errors and saved.errors == saved.rows:
        what = f"Not one of {counted(saved.rows, found.noun)} could be read."
        raise bad_record(what, f"{why} Check the source.", parameter="source")
    if saved.errors:
        display.warn(f"{saved.errors:,} of {counted(saved.rows, found.noun)} could not be read. {why}")
