"""`dpfc.audit_methods`: attacks on methods, as `dpfc audit` makes them."""

from functools import partial

from dpfc_cli.audit.audit import Audit, audit
from dpfc_cli.audit.canary import facts_of
from dpfc_cli.audit.game import least_runs
from dpfc_cli.audit.request import MOST_RUNS, Auditing
from dpfc_cli.audit.signals import Signals
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.methods import METHODS, AnyMethod, method_named
from dpfc_cli.options import takes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SystemBits
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.request import Privacy

STEPS = 3
"""Of methods that iterate: enough to tell steps apart. All steps run the same code."""


@takes(Auditing)
def audit_methods(wanted: Auditing) -> tuple[Audit, ...]:
    """Attack trainings on made-up records, and bound their ε from below: an empirical check of the proofs and of the
    program. No feature set and no ledger is touched.

    Returns:
        What the attacks reach, for each method.

    Raises:
        UserError: a value makes no sense, or there are too few runs to refute the claim.

    Examples:
        assert not any(found.violated for found in dpfc.audit_methods(epsilon=1.0))

    """
    facts = facts_of(wanted.records_per_person, wanted.labels_per_record, wanted.adjacency)
    if wanted.method != "all":
        return (_audited(wanted, facts, method_named(wanted.method, facts)),)
    able = (each for each in METHODS.values() if wanted.sampling_rate is None or "sampling_rate" in each.declared)
    return tuple(_audited(wanted, facts, each) for each in able)


def _audited(wanted: Auditing, facts: Facts, method: AnyMethod) -> Audit:
    given = {"sampling_rate": wanted.sampling_rate} if wanted.sampling_rate is not None else {}
    given |= {"steps": STEPS} if "steps" in method.declared else {}
    privacy = Privacy(epsilon=wanted.epsilon, delta=wanted.delta, allow_large_delta=True)
    c = calibrate(method, facts, given, privacy)
    assert c.guarantee is not None
    assert c.mechanism is not None
    least = least_runs(Signals.of(c.mechanism))
    if wanted.runs < least:
        raise UserError(
            f"{parameter('runs')} {wanted.runs} is too few to show that a claim of epsilon = {wanted.epsilon:g} at "
            f"delta = {wanted.delta:g} is false, even if every guess were right.",
            f"Give {parameter('runs')} {least} or more."
            if least <= MOST_RUNS
            else f"Audit a smaller {parameter('epsilon')}.",
        )
    told = partial(wanted.progress, f"Attacking {method.name}") if wanted.progress else None
    return audit(
        method,
        c.options,
        c.mechanism,
        c.guarantee,
        wanted.runs,
        wanted.trainings,
        wanted.confidence,
        SystemBits(),
        told,
    )
