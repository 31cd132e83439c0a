"""What a report on a head says, in which order, and to whom."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpfc_cli.errors import conflict, counted, parameter, printable
from dpfc_cli.extensions.publish import evidence, holder
from dpfc_cli.extensions.publish.registry import entry
from dpfc_cli.extensions.publish.request import Kind, Reporting
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.signature import Signed
from dpfc_cli.privacy.chain import Centre, Clip, Step
from dpfc_cli.records import findings as cards
from dpfc_cli.records import statement
from dpfc_cli.records.card import Card, Grouped
from dpfc_cli.records.figures import Figures
from dpfc_cli.records.findings import Finding
from dpfc_cli.report.evaluated import released
from dpfc_cli.show.document import Block, Code, Document, Points, Rows, Section, Table, Words
from dpfc_cli.structs import Json
from dpfc_cli.verification import of_signature
from dpfc_cli.version import __version__

WHOM: dict[Kind, str] = {
    "shared": "for whoever gets the head",
    "auditor": "for auditors",
    "internal": "for the holder of the records only",
}
MOST_NAMED = 200
"""Of more classes than this only the first ones are named."""
STRONG, REASONABLE = 1, 10
"""The largest ε that the guide calls so (docs/choosing.md, "What others use")."""
_FIELDS = (
    *("Purpose, and legal basis", "How the records were collected", "Who has access to records, features, ledger"),
    *("Until when they are kept", "Who may use the head or withdraw it", "For whom it is worse, and how known"),
)
_ROLES = ("Controller", "Trained by", "Checked by", "Independent review", "Approved by")
_PLACES = (
    Table(("To be filled in", ""), [(field, "") for field in _FIELDS], left=2),
    Table(("", "Name", "Date", "Signature"), [(role, "", "", "") for role in _ROLES], left=4),
)
_ALONE = Finding(what="ledger", result="unknown", why="no ledger is asked for this report")
_COMPARED = Finding(what="figures", result="ok", why="the ledger has these figures")
_NOT_COMPARED = Finding(what="figures", result="unknown", why="not compared with a ledger")


def document(
    head: Head, wanted: Reporting, signed: Signed | None = None, name: str = "", license: str | None = None
) -> Document:
    """A report on a head that was read from a file. There are places to sign, unless it is a model card.

    signed: its signature, checked. name: what `Head.load` takes on the hub; empty: the name of the file. license: the
    identifier of a licence, as the hub lists them; None: nothing is said of it.

    UserError: the head and its ledger contradict each other; a file cannot be read; there is no ledger for an internal
    report.
    """
    shared, given = wanted.kind == "shared", ("features", "ledger", "not_before")
    named = next((name for name in given if getattr(wanted, name) is not None), None)
    if named and shared:
        raise conflict(
            f"{parameter(named)} has no meaning for {parameter('kind')} shared: what a feature set and its ledger say "
            "is not for whoever gets the head.",
            f"Give {parameter('kind')} auditor or internal, or leave it out.",
        )
    model_card = bool(name) or str(wanted.out).lower().endswith(".md")
    card, digest, name = head.card, sha256_of(head.file), name or head.file.name
    figures = None if wanted.evaluation is None else holder.released_in(Path(wanted.evaluation), digest)
    said = statement.document(card, digest)
    own = None if shared else holder.of(head, wanted, figures)
    findings = [of_signature(signed), *([*cards.findings(card, head.chain), _ALONE] if own is None else own.findings)]
    unproved = cards.unproved(card) if own is None else own.unproved
    evaluated = (own and own.evaluated) or Section("How good it is", [Words(_NOT_EVALUATED)])
    if figures is not None:
        findings.append(_COMPARED if own is not None else _NOT_COMPARED)
        evaluated = Section("How good it is", _evaluated(figures, card.features.split, own is not None))
    elif own is None and (known := holder.kept(card, digest)):
        figures = known[-1]
        findings.append(_COMPARED)
        blocks = [block for each in reversed(known) for block in _evaluated(each, card.features.split, True)]
        evaluated = Section("How good it is", blocks)
    claim, *more, limits = said.sections
    asked = [Words("What to ask for:"), Points(_to_ask(card, own, signed, wanted))]
    sections = [
        Section("Verdict", [*claim.blocks, Rows(_short(head, own, signed)), *asked], internal=not shared),
        replace(limits, full=False),
        Section("Public facts, which no noise protects", [Rows(_public(head))]),
        *more,
        *(() if own is None else own.ledger),
        evaluated,
        *([Section("Trust and evidence", [Rows(evidence.rows(card, wanted.audit))])] if card.private else []),
        Section("How to use it", _used(head, name)),
        Section("What was checked", _checked(findings, unproved), internal=not shared),
        Section("Appendix: backbone and digests", [Rows(_digests(card, own))], internal=not shared),
        *([] if model_card else [Section("To be filled in and signed", _PLACES)]),
    ]
    facts = Document(title="", sections=sections).facts
    return Document(
        title=f"Report on the head {name}",
        values={"registry": entry(card, name, facts)} if card.private else {},
        kind=WHOM[wanted.kind],
        notice=_notice(card, wanted.kind),
        header={} if own is not None else _header(card, name, license, figures),
        sections=sections,
    )


_NOT_EVALUATED = (
    "No figures are given here. Exact ones say something about the test records. 'dpfc evaluate --epsilon' releases "
    "figures that protect these records, and 'dpfc report --evaluation' puts them here."
)


def _notice(card: Card, kind: Kind) -> str:
    if kind != "shared":
        more = ", and exact figures on test records" if kind == "internal" else ""
        return (
            f"{WHOM[kind].capitalize()}. The parts that are marked say more than the head: who trained on the records "
            f"and why, and what was spent{more}. Do not publish this report. Another kind is for whoever gets the head."
        )
    said = (
        "For whoever gets the head. This report was made from the head's file. It says nothing about the training "
        "records that the head itself does not say."
    )
    if card.private:
        return said
    return f"{said} But this head has no guarantee: keep it as you keep the records that it was trained on."


def _short(head: Head, own: "holder.Holder | None", signed: Signed | None) -> list[tuple[str, str]]:
    card = head.card
    unit = "persons" if card.unit == "person" else "records"
    made_of = f"a linear classifier of {counted(len(head.classes), 'class')} on features of {_backbone(card)}"
    verdict = "nothing but itself: it was not compared with a ledger ('dpfc verify' does)"
    return [
        *_strength(card),
        ("confirmed by", verdict if own is None else own.verdict.removeprefix("confirmed by ")),
        ("signed by", signed.by if signed else "not checked"),
        *(_total(card) if own is None else own.short),
        ("trained on", f"{card.facts.n:,} {unit} of '{card.features.name}'"),
        ("what it is", made_of),
    ]


def _total(card: Card) -> list[tuple[str, str]]:
    """What the card says of all trainings of its ledger."""
    if (known := card.ledger) is None or not card.private:
        return []
    spent = f"{'at least ' * known.adopted}epsilon = {statement.figure(known.epsilon)} for one {known.unit}"
    return [
        ("spent in total", f"{spent}, by {counted(known.count, 'charge')} up to {card.date[:10]}, as the head says")
    ]


def _to_ask(card: Card, own: "holder.Holder | None", signed: Signed | None, wanted: Reporting) -> list[str]:
    """What whoever approves still has to ask for."""
    if not card.private:
        return ["why it has no guarantee, and who may have it"]
    asked = {
        "the newest ledger of the training, or a signature ('dpfc verify')": own is None and signed is None,
        "whether the ledger is the newest: what was charged later is in no total": own is not None,
        "whether several records are of one person: this guarantee is for one record": card.unit == "record",
        "the total of the trainings among which this one was chosen": own is None and card.ledger is not None,
        "on which pictures the backbone was trained": True,
        "why the public start is public": card.public_head is not None,
        "figures that were released with noise, and for which groups it is worse": wanted.evaluation is None,
        "an audit of this method ('dpfc audit --json')": wanted.audit is None,
    }
    return [each for each, holds in asked.items() if holds]


def _strength(card: Card) -> list[tuple[str, str]]:
    """What published practice says of ε; nothing where there is no guarantee."""
    if not card.private:
        return []
    epsilon = card.guarantee.epsilon
    called = "strong" if epsilon <= STRONG else "reasonable" if epsilon <= REASONABLE else "weak"
    return [
        (
            "beside others",
            f"'How to DP-fy ML' (Ponomareva et al. 2023) calls an epsilon up to {STRONG} strong, up to {REASONABLE} "
            f"reasonable, above weak: this is {called}. The U.S. Census of 2020 was published at 19.61 (Abowd et al. "
            "2022). Units and deltas differ",
        )
    ]


def _public(head: Head) -> list[tuple[str, str]]:
    card, facts = head.card, head.card.facts
    features = card.features
    named = ", ".join(f"'{name}'" for name in head.classes[:MOST_NAMED])
    more = len(head.classes) - MOST_NAMED
    rows = [
        ("feature set", f"'{features.name}', its {features.split} split; dimensions: {head.dim:,}"),
        (f"number of {card.unit}s", f"{facts.n:,}" + (f", with {facts.records:,} records" if facts.records else "")),
        ("labels per record", f"{facts.k}, of {counted(facts.m, 'class')}"),
    ]
    if features.hold_out:
        held = "persons" if card.unit == "person" else "training pictures"
        rows.append(("test split", f"{features.hold_out:g} of the {held} were held out"))
    if features.grouped_by is not None:
        rows.append(("persons", f"the person of each record was found by {_found_by(features.grouped_by)}"))
    return [
        *rows,
        ("what is done to a feature vector first", ", then ".join(map(_step, head.chain)) or "nothing"),
        ("classes", named + (f", and {more:,} more, which the head's file names" if more > 0 else "")),
        ("who says so", facts.origin),
    ]


def _found_by(rule: Grouped) -> str:
    """How persons were found, as the manifest of a set says it."""
    if rule.by == "folder":
        return f"{'the folder' if rule.level == 1 else f'the first {rule.level or 0} folders'} in that of its class"
    if rule.by == "name":
        return "a part of its name"
    return ("a column" if rule.column is None else f"the column '{rule.column}'") + " of a table" * (rule.by == "table")


def _step(step: Step) -> str:
    if isinstance(step, Clip):
        return f"it is divided by its length, or by {step.norm:.4g} if that is larger (clip)"
    return "a mean is subtracted (centre)" if isinstance(step, Centre) else "it is multiplied by a matrix (linear)"


def _backbone(card: Card) -> str:
    name = card.features.backbone.get("name")
    return f"'{name}'" if isinstance(name, str) else "an unknown backbone"


def _flat(value: Json, name: str = "") -> list[str]:
    """What a JSON value says, as 'name: value'. A card may have any here. Its name comes first."""
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda item: item[0] != "name")
        return [said for key, inner in ordered for said in _flat(inner, f"{name} {key}".strip())]
    if isinstance(value, list):
        value = " × ".join(str(each) for each in value)
    return [] if value is None else [f"{name.replace('_', ' ')}: {value}"]


def _evaluated(figures: Figures, trained_on: str, compared: bool) -> list[Block]:
    """What is said of released figures. trained_on: the split of the training. compared: with the ledger."""
    words = "These figures were released with noise, as the ledger has them."
    if not compared:
        words = "The file of these figures says that they were released with noise. Not compared with a ledger."
    words += " The intervals are for the choice of the records and the noise."
    on = f"the {figures.split} split of '{figures.features}'"
    found: list[Block] = [Words(words), *released(figures, [("scored on", on)])]
    if figures.split == trained_on:
        said = "The head was trained on a split of this name. These figures say how well it fits."
        found.insert(1, Words(said, strong=True))
    return found


def _used(head: Head, name: str) -> list[Block]:
    literal = repr(name) if printable(name) == name else ascii(name)
    return [
        Words(
            f"It takes n × {head.dim} feature vectors of the backbone that it was trained on, and names their classes."
        ),
        # The name as a program has it.
        Code(f"from dpfc_cli import Head\n\nhead = Head.load({literal})\nnames = head.predict(features)"),
    ]


def _checked(findings: Sequence[Finding], unproved: Sequence[str]) -> list[Block]:
    rows = [(each.what, each.shown, each.why) for each in findings]
    table = Table(("check", "result", "why"), rows, left=3)
    return [table, Words(f"Nothing contradicts. {cards.UNPROVED}"), Points(unproved)]


def _digests(card: Card, own: "holder.Holder | None") -> list[tuple[str, str]]:
    features = card.features
    rows = [("backbone", "; ".join(_flat(features.backbone)) or "unknown")]
    rows += [("recipe of the features", features.fingerprint), ("report written by", f"dpfc {__version__}")]
    weights = features.backbone.get("weights")
    if isinstance(weights, dict) and isinstance(weights.get("sha256"), str):
        rows.append(("SHA-256 of the backbone's weights", weights["sha256"]))
    if card.public_head is not None:
        rows.append(("SHA-256 of the public start", card.public_head.sha256))
    return rows if own is None else [*rows, *own.digests]


def _header(card: Card, name: str, license: str | None, figures: Figures | None) -> dict[str, Json]:
    weights = card.features.backbone.get("weights")
    tags = ["dpfc", "differential-privacy" if card.private else "no-privacy-guarantee"]
    found: dict[str, Json] = {"library_name": "dpfc", "tags": tags} | ({} if license is None else {"license": license})
    if _backbone(card) != "'imported'":
        # Imported features may be of texts.
        found["pipeline_tag"] = "image-classification"
    if isinstance(weights, dict) and (base := _repository(weights.get("id"))):
        found["base_model"] = base
    if figures is not None and figures.top1 is not None:
        task = {"type": "image-classification"}
        metric = {"type": "accuracy", "value": figures.top1, "name": "top-1 accuracy, released with noise"}
        data = {"type": figures.features, "name": figures.features, "split": figures.split}
        found["model-index"] = [{"name": name, "results": [{"task": task, "dataset": data, "metrics": [metric]}]}]
    return found


def _repository(id: Json) -> str | None:
    parts = id.removeprefix("hf:").split("/") if isinstance(id, str) and id.startswith("hf:") else []
    return "/".join(parts[:2]) if len(parts) >= 2 and all(parts[:2]) else None
