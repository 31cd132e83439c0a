"""`dpfc forecast`: which ε is needed? From public facts and public records, before anything is charged."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli import outputs, rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import feature_set, with_sets
from dpfc_cli.errors import conflict, counted, parameter
from dpfc_cli.extensions.planning.request import Forecasting
from dpfc_cli.folders import features_folder
from dpfc_cli.options import Option
from dpfc_cli.show.document import Rows, Table, page

if TYPE_CHECKING:
    from dpfc_cli.extensions.planning.forecast import Forecast, Outlook
    from dpfc_cli.report.picture import Picture


@command(
    "forecast",
    Forecasting,
    panel="Before a training",
    when_stopped="Nothing was charged. Trainings that ended on the public set are kept.",
    computes=True,
)
def forecast(
    plot: Annotated[
        Path | None, Option("Draw accuracy against ε: .svg, .png or .pdf. It needs ‹on›.", metavar="FILE")
    ] = None,
    **asked: Any,
) -> None:
    """Say which accuracy to expect at which ε, and what each ε means. Nothing is charged.

    No private record is read: facts are stated, or stand in the manifest of --features. With --on, whole private
    trainings run on public records with the noise that the private training will have. They are kept beside that set,
    so the same command resumes where it was stopped.
    """
    from dpfc_cli.extensions.planning import forecast as forecasts
    from dpfc_cli.features.lookup import finished

    asked = with_sets(asked, Forecasting)
    stated = ("features", "records", "persons", "classes", "model", "dimensions")
    if all(asked[name] is None for name in stated) and finished(features_folder()):
        asked["features"] = feature_set(None)
    if plot is not None and asked["on"] is None:
        raise conflict(
            f"{parameter('plot')} needs {parameter('on')}: without public records no accuracy is expected.",
            "Name a public feature set of the same backbone.",
        )
    draw = None if plot is None else outputs.writer("picture", plot, "plot")
    found = forecasts.forecast(**asked)
    for text in found.warnings:
        display.warn(text)
    _show(found)
    if plot is not None and draw is not None:
        # Last: the figures took long, and a place for the plot can fail.
        outputs.replace(plot, draw(_picture(found)), named="plot")
        display.say(f"Figure: {plot}")


def _show(found: "Forecast") -> None:
    facts, stand_in = found.facts, found.stand_in
    columns = ["epsilon"]
    if stand_in is not None:
        columns += ["accuracy" if facts.k == 1 else "mAP", "95 %", "guessed"]
    else:
        columns += ["kept", "guessed"]
    columns += [] if found.cap is None else [f"fit under {found.cap:g}"]
    columns += [] if found.records_per_person is None else [f"of {counted(found.records_per_person, 'record')}"]
    table = Table(columns, [_row(found, each) for each in found.outlooks], left=0)
    display.show(page(found.about, table, Rows(_said(found), title="What the figures say"), values=found.to_json()))


def _row(found: "Forecast", each: "Outlook") -> list[str]:
    row = [f"{each.epsilon:g}"]
    if found.stand_in is not None:
        row += rounding.accuracy(each.accuracy, each.interval, found.stand_in.tested)
    else:
        row.append("–" if each.kept is None else f"{100 * each.kept:.0f} %")
    row.append(rounding.at_most(each.guess))
    row += [] if found.cap is None else [f"{each.fitting:,}"]
    if found.records_per_person is not None:
        row.append("–" if each.for_person is None else rounding.epsilon(each.for_person))
    return row


def _said(found: "Forecast") -> list[tuple[str, str]]:
    """What the columns are, and how far they may be off."""
    from dpfc_cli.extensions.planning.forecast import MEASURED
    from dpfc_cli.training.calibrate import FITTED

    stand_in, unit, rows = found.stand_in, found.facts.unit, []
    if stand_in is None:
        rows.append(("accuracy", "it depends on the records: name public ones with --on to see what to expect"))
        said = "about this part of what can be learned without noise: of the accuracy beyond guessing"
        if found.outlooks[0].kept is None:
            said = f"not known of {found.method}: the rule was fitted to {' and '.join(FITTED)}. Others keep less"
        rows.append(("kept", said))
    else:
        noiseless = ""
        if stand_in.noiseless is not None:
            noiseless = f"; {_noiseless(found)} {rounding.percentage(stand_in.noiseless, stand_in.tested)}"
        trained = f"the mean of {len(found.outlooks[0].scores)} private trainings on {stand_in.name}{noiseless}"
        rows += [
            ("accuracy", trained),
            ("95 %", "for one more such training: chance alone, and not that your records are others"),
            ("as it will be", "; ".join(stand_in.matched)),
            ("not as it will be", "; ".join(stand_in.unmatched)),
            ("how far off", MEASURED),
        ]
    if found.sites > 1:
        rows.append(("sites", "each adds the whole noise of its epsilon, and trusts nobody ('dpfc site-invite')"))
    among = "in the study" if unit == "person" else "used"
    guessed = f"how often an attacker guesses right whether a {unit} was {among}, at most (50 % is chance)"
    rows.append(("guessed", guessed))
    if found.cap is not None:
        fit = f"such trainings under a cap of epsilon = {found.cap:g}, beside what its ledger has"
        rows.append((f"fit under {found.cap:g}", fit))
    if found.records_per_person is not None:
        together = "epsilon for all these records of one person together; –: above 100, or not known"
        rows.append((f"of {counted(found.records_per_person, 'record')}", together))
    return rows


def _noiseless(found: "Forecast") -> str:
    """What a training without noise is called. It may be worse than private ones."""
    stand_in, best = found.stand_in, max((each.accuracy or 0.0 for each in found.outlooks), default=0.0)
    assert stand_in is not None
    assert stand_in.noiseless is not None
    return "without noise" if stand_in.noiseless >= best else "without noise (it fits so few records too closely)"


def _picture(found: "Forecast") -> "Picture":
    from dpfc_cli.report.picture import Curves, Level, Picture, Series

    stand_in = found.stand_in
    assert stand_in is not None
    points: Any = [each for each in found.outlooks if each.interval is not None]
    series = Series(
        f"expected, by trainings on {stand_in.name}",
        [each.epsilon for each in points],
        [each.accuracy for each in points],
        [each.interval[0] for each in points],
        [each.interval[1] for each in points],
        band=True,
        dashed=True,
    )
    noiseless = stand_in.noiseless
    levels = [] if noiseless is None else [Level(f"{_noiseless(found)}, on {stand_in.name}", noiseless)]
    facts = found.facts
    title = f"Forecast for {counted(facts.n, facts.unit)} of {counted(facts.m, 'class')}, {found.method}"
    measure = "top-1 accuracy" if facts.k == 1 else "mean average precision"
    return Picture(title, Curves([series], levels, measure))
