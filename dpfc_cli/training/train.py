"""A whole training, step by step: request → calibrated → checked → charged → trained.

The command line, Python callers and experiments all come this way. None of them knows the order of the steps.
"""

from dpfc_cli.errors import UserError, printable
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.options import takes
from dpfc_cli.training import public, public_start, tuning
from dpfc_cli.training.calibrate import calibrate, warnings_of
from dpfc_cli.training.charged import charged_again, charged_before
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.observer import TUNING, Observer
from dpfc_cli.training.request import Request, Training
from dpfc_cli.training.run import Trained, run


def plan(request: Request, observer: Observer) -> Checked:
    """Everything of a training that costs no privacy: calibration, warnings, public records, checks, tuning. UserError:
    whatever can be refused.
    """

    def slow() -> None:
        observer.say("Calibrating the noise for sampled releases. This takes some seconds.")

    calibrated = calibrate(request.chosen, request.facts, request.options, request.privacy, slow)
    informing, tuning_on, private = request.public_features, request.tune_on, request.features
    if informing is not None:
        public.check(calibrated, private, informing)
    if request.public_head is not None:
        book = read(ledger_path(private.folder))
        calibrated = public_start.begin(calibrated, private, request.public_head, book)
    trials = None if tuning_on is None else tuning.prepare(calibrated, private, tuning_on, request.memory)
    known = {each.folder: each for each in (tuning_on, informing) if each is not None}
    said = [*warnings_of(calibrated), *(text for each in known.values() for text in public.warnings_of(each))]
    if request.public_head is not None:
        said += public_start.warnings_of(calibrated)
        observer.say(public_start.REMARK)
    said += [] if trials is None else tuning.warnings_of(trials)
    if informing is not None:
        stage = "Reading the public features"
        calibrated = public.inform(calibrated, informing, lambda *far: observer.progress(stage, *far))
    checked = check(request, calibrated, observer)
    # What is refused needs no warning, and what was charged before had them.
    if request.again or not charged_before(checked.book, checked.charge):
        for text in said:
            observer.warn(text)
    if trials is not None:
        tuning_stage = f"{TUNING}{trials.known.name}"
        chosen = tuning.tune(calibrated, trials, lambda *far: observer.progress(tuning_stage, *far))
        checked = check(request, chosen, observer)
    if checked.unfinished is not None:
        before, releases = checked.unfinished, len(calibrated.plan.releases)
        observer.say(
            f"This training was charged on {before.charge.at} and stopped. It resumes, and nothing more is "
            f"charged: {before.answered} of its {releases} releases have their answers."
        )
        if (before.charge.by, before.charge.purpose) != (request.whose, request.purpose):
            purpose = printable(before.charge.purpose or "none was said")
            observer.say(f"The ledger keeps who charged it, {printable(before.charge.by)}, and its purpose: {purpose}.")
    return checked


def refused_again(checked: Checked) -> UserError | None:
    """Why a training is not charged unless somebody says `again`; None if it is."""
    if checked.unfinished is not None or checked.request.again:
        return None
    return charged_again(checked.book, checked.charge, checked.features.name)


@takes(Training)
def train(wanted: Training) -> Trained:
    """Train a linear classifier on a feature set with differential privacy, and charge it to the set's ledger.

    The privacy is stated once: as `epsilon`, as `noise_multiplier` or as `non_private=True`.

    Returns:
        The head with its file, and what is spent on these records.

    Raises:
        UserError: something must be corrected, or a cap does not allow the training. Nothing was charged, unless a note
            says so.

    Examples:
        trained = dpfc.train(dpfc.open_features("digits-scattering"), epsilon=1.0)
        print(trained.head.statement()["this head"], trained.path)

    """
    observer = wanted.observer or Observer()
    return run(plan(Request(**vars(wanted)), observer), observer)
