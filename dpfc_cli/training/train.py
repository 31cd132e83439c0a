"""A whole training, step by step: request → calibrated → checked → charged → trained.

The command line, Python callers and experiments all come this way. None of them knows the order of the steps.
"""

from dataclasses import fields

from dpfc_cli.errors import UserError, printable
from dpfc_cli.options import takes
from dpfc_cli.rounding import rounded_up
from dpfc_cli.training.calibrate import Calibrated, Planned, calibrate, warnings_of
from dpfc_cli.training.charged import charged_again, charged_before
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request, Training, added_hooks
from dpfc_cli.training.run import Trained, run
from dpfc_cli.training.summing import summing_on


def plan(request: Request, observer: Observer) -> Checked:
    """Everything of a training that costs no privacy: calibration, what packages add, checks, warnings.
    UserError: whatever can be refused. ValueError: a hook changes what is released.
    """
    checked = ready(request, calibrated_for(request, observer), observer)
    if checked.unfinished is not None:
        before, releases = checked.unfinished, len(checked.calibrated.plan.releases)
        observer.say(
            f"This training was charged on {before.charge.at} and stopped. It resumes, and nothing more is "
            f"charged: {before.answered} of its {releases} releases have their answers."
        )
        if (before.charge.by, before.charge.purpose) != (request.whose, request.purpose):
            purpose = printable(before.charge.purpose or "none was said")
            observer.say(f"The ledger keeps who charged it, {printable(before.charge.by)}, and its purpose: {purpose}.")
    return checked


def calibrated_for(request: Request, observer: Observer) -> Calibrated:
    """Calibration, and what packages add. UserError, ValueError: see `plan`."""

    def slow() -> None:
        observer.say("Calibrating the noise for sampled releases. This takes some seconds.")

    calibrated = first = calibrate(request.chosen, request.facts, request.options, request.privacy, slow)
    if request.privacy.accounting == "zcdp" and calibrated.guarantee is not None:
        exact = rounded_up(calibrated.guarantee.epsilon, 4)
        observer.say(f"ε = {request.epsilon:g} by the conversion of zCDP is noise that is worth exactly ε = {exact}.")
    for hook in request.hooks:
        calibrated = hook.choose(request, calibrated, observer)
        if any(getattr(calibrated, each.name) != getattr(first, each.name) for each in fields(Planned)):
            raise ValueError(f"{type(hook).__name__} changes what is released")
    return calibrated


def ready(request: Request, calibrated: Calibrated, observer: Observer) -> Checked:
    """Checks and warnings. UserError: see `plan`."""
    checked = check(request, calibrated, observer)
    # What is refused needs no warning, and what was charged before had them.
    if request.again or not charged_before(checked.book, checked.charge):
        for text in warnings_of(calibrated):
            observer.warn(text)
    return checked


def refused_again(checked: Checked) -> UserError | None:
    """Why a training is not charged unless somebody says `again`; None if it is."""
    if checked.unfinished is not None or checked.request.again:
        return None
    return charged_again(checked.book, checked.charge, checked.features.name)


@takes(Training, *added_hooks())
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
    with summing_on(wanted.on, observer.say) as summing:
        return run(plan(Request(**vars(wanted), summing=summing), observer), observer)
