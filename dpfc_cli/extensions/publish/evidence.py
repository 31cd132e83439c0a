"""Why a report may be believed: whom one must trust, what is not hidden, and what was tested."""

from pathlib import Path

from dpfc_cli.errors import conflict, damaged, parameter, quoted
from dpfc_cli.files import json_in
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.reading import readable
from dpfc_cli.records.card import Card, Said
from dpfc_cli.rounding import at_least, cost
from dpfc_cli.structs import Count, Fault, Number, Open, Whole, decoded
from dpfc_cli.version import __version__

_TRUST = (
    "Central model: whoever trained is trusted with the records and adds the noise (each site, if there are several)"
)
_CHANNELS = (
    "Time, memory, disk and network use of a training are not covered. There is nothing to ask a head that could be "
    "timed. Sums and noise are integers, so no rounding tells anything"
)
_TESTED = "Each promise has a test, and known faults are planted that tests must find (docs/security.md)"


class _Bound(Open):
    epsilon: Number
    delta: Number = 0.0
    runs: Whole = 0


class _Attacked(Open):
    method: str
    claim: _Bound
    release_level: _Bound
    whole_training: _Bound


class _Audit(Open):
    dpfc: str
    adjacency: Adjacency
    sampling_rate: Number
    labels_per_record: Count
    records_per_person: Count | None
    violated: tuple[str, ...]
    audits: tuple[_Attacked, ...]


def rows(card: Card, audit: Path | str | None) -> Said:
    """What is said of trust and of tests. audit: of 'dpfc audit --json'. UserError: it is not of such a head."""
    return [
        ("trust", _TRUST),
        ("release", "One, of static data. It answers no questions (non-interactive)"),
        ("side channels", _CHANNELS),
        ("program", f"Trained by dpfc {card.versions.dpfc}; this report is by dpfc {__version__}. {_TESTED}"),
        ("audit", "None was given (report --audit)" if audit is None else _attacked(card, Path(audit))),
    ]


def _attacked(card: Card, path: Path) -> str:
    with readable(path, f"the output of 'dpfc audit --json' ({parameter('audit')})", "Write it again.", plain=False):
        found = json_in(path)
    try:
        audit = decoded(found, _Audit)
    except Fault as fault:
        what = f"{quoted(path)} is not what 'dpfc audit --json' printed: '{fault.place[:80]}' is wrong or missing."
        raise damaged(what, "Give what the command printed.", parameter="audit") from None
    shape = {
        "version": (audit.dpfc, card.versions.dpfc),
        "adjacency": (audit.adjacency, card.adjacency),
        "labels per record": (audit.labels_per_record, card.facts.k),
        "unit": ("record" if audit.records_per_person is None else "person", card.unit),
        "sampling": (audit.sampling_rate < 1, card.sampled),
        "method": (card.method in [each.method for each in audit.audits], True),
    }
    differ = [name for name, (its, ours) in shape.items() if its != ours]
    if differ or audit.violated:
        why = f"refutes {', '.join(audit.violated)}: more is released than is claimed"
        why = f"is of other trainings than that of this head: {', '.join(differ)}" if differ else why
        remedy = "Run 'dpfc audit --json' for such trainings, with that dpfc. Trust no claim that is refuted."
        raise conflict(f"The audit in {quoted(path)} {why}.", remedy, parameter="audit")
    each = next(each for each in audit.audits if each.method == card.method)
    seen, hidden = (
        f"{at_least(of.epsilon, 2)} ({of.runs:,} pairs)" for of in (each.release_level, each.whole_training)
    )
    return (
        f"Attacks on {card.method} of this version, for such a unit, refuted nothing: where the claim is "
        f"{cost(each.claim.epsilon, each.claim.delta)}, all releases lose at least {seen}, and the head alone {hidden}"
    )
