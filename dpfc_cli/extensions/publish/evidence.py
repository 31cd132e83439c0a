"""Why a report may be believed: whom one must trust, what is not hidden, and what was tested."""

from pathlib import Path

from dpfc_cli.errors import conflict, damaged, parameter, quoted
from dpfc_cli.files import json_in
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.reading import readable
from dpfc_cli.records.card import Card, Said
from dpfc_cli.rounding import at_least, cost
from dpfc_cli.structs import Count, Fault, Number, Open, decoded
from dpfc_cli.version import __version__

SIDE_CHANNELS = (
    "Time, memory, disk and network use of a training are not covered. There is nothing to ask a head that could be "
    "timed. Noise is drawn as integers and sums are of integers, so no rounding tells anything"
)
TESTED = "Each promise has a test, and known faults are planted that tests must find (docs/security.md)"


class _Claim(Open):
    epsilon: Number
    delta: Number


class _Bound(Open):
    epsilon: Number
    runs: Count


class _Attacked(Open):
    method: str
    claim: _Claim
    release_level: _Bound
    whole_training: _Bound
    attainable: Number


class _Audit(Open):
    """What 'dpfc audit --json' printed."""

    dpfc: str
    adjacency: Adjacency
    sampling_rate: Number
    labels_per_record: Count
    records_per_person: Count | None
    confidence: Number
    violated: tuple[str, ...]
    audits: tuple[_Attacked, ...]


def rows(card: Card, audit: Path | None) -> Said:
    """What is said of trust and of tests. audit: see `_Audit`. UserError: it is none, or not of such a training."""
    attacked = "None was given (report --audit)" if audit is None else _attacked(card, audit)
    return [
        (
            "trust",
            "Central model: whoever trained is trusted with the records and adds the noise; of several sites "
            "each with its own",
        ),
        ("release", "One, of static data. It answers no questions (non-interactive)"),
        ("side channels", SIDE_CHANNELS),
        ("program", f"Trained by dpfc {card.versions.dpfc}; this report is by dpfc {__version__}. {TESTED}"),
        ("audit", attacked),
    ]


def _attacked(card: Card, path: Path) -> str:
    with readable(path, f"the output of 'dpfc audit --json' ({parameter('audit')})", "Write it again.", plain=False):
        found = json_in(path)
    try:
        audit = decoded(found, _Audit)
    except Fault as fault:
        what = (
            f"{quoted(path)} is not what 'dpfc audit --json' printed: '{fault.place[:80]}' makes no sense or is missing"
        )
        raise damaged(f"{what}.", "Give what the command printed.", parameter="audit") from None
    rate = min(release.rate for release in card.plan)
    shape = {
        "version": (audit.dpfc, card.versions.dpfc),
        "adjacency": (audit.adjacency, card.adjacency),
        "labels per record": (audit.labels_per_record, card.facts.k),
        "unit": ("record" if audit.records_per_person is None else "person", card.unit),
        "sampling": (audit.sampling_rate < 1, rate < 1),
        "method": (card.method in [each.method for each in audit.audits], True),
    }
    differ = [name for name, (its, ours) in shape.items() if its != ours]
    if differ:
        raise conflict(
            f"The audit in {quoted(path)} is of other trainings than that of this head: {', '.join(differ)}.",
            "Run 'dpfc audit --json' for its method, adjacency and unit, with the dpfc that trained it.",
            parameter="audit",
        )
    if audit.violated:
        raise conflict(
            f"The audit in {quoted(path)} refutes {', '.join(audit.violated)}: more is released than is claimed.",
            "Trust no claim of this version, and report it.",
            parameter="audit",
        )
    each = next(each for each in audit.audits if each.method == card.method)
    reached = [
        f"{at_least(of.epsilon, 2)} of {what} ({of.runs:,} pairs)"
        for of, what in ((each.release_level, "all releases"), (each.whole_training, "the head alone"))
    ]
    return (
        f"Attacks on {card.method} of this version, for such a unit, found no more than is claimed: of "
        f"{cost(each.claim.epsilon, each.claim.delta)} at least {' and '.join(reached)}, with {audit.confidence:.0%} "
        "confidence"
    )
