"""What a report on a head says, in which order, and to whom."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfc_cli import rounding
from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.evaluation.exact import Progress
from dpfc_cli.figures import tradeoff as figure
from dpfc_cli.figures.canvas import Panel
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.chain import to_json
from dpfc_cli.report import holder, released
from dpfc_cli.report.document import Block, Code, Document, Facts, Figure, Grid, Points, Section, SignOff, Words
from dpfc_cli.trust import card as cards
from dpfc_cli.trust import statement, tradeoff
from dpfc_cli.trust.card import BELONGS, CHARGED, NOISE, SIGNER, TEXT, Finding
from dpfc_cli.version import __version__

SHARED, INTERNAL = "for whoever gets the head", "internal"
MOST_NAMED = 200
"""Of more classes than this only the first ones are named."""
_SHOWN = {"ok": "ok", "contradicts": "contradicts", "unknown": "cannot be known"}


def document(
    head: Head,
    *,
    internal: bool = False,
    features: str | Path | None = None,
    evaluation: Path | None = None,
    name: str | None = None,
    license: str | None = None,
    progress: Progress | None = None,
) -> Document:
    """A report on a head that was read from a file.

    Args:
        head: the head.
        internal: whether to add the ledger and the evaluation, which only the holder of the records may read.
        features: of an internal report: the feature set whose ledger and test split are taken, by path or name. None:
            the one that the head was trained on, by its name.
        evaluation: the output of `dpfc evaluate --epsilon E --json`. Its figures may be in either kind of report. In an
            internal one they stand in the place of exact ones.
        name: what `Head.load` takes, such as `hf:OWNER/NAME`. None: the name of the file.
        license: the identifier of a licence, as the hub lists them. None: nothing is said of it.
        progress: told the stage, the records scored so far, and how many there are.

    Raises:
        UserError: the head, or the head and its ledger, contradict themselves; a file cannot be read; there is no
            ledger for an internal report.

    """
    if head.path is None:
        raise UserError("This head was not read from a file.", "Read it with Head.load.", code="missing")
    if features is not None and not internal:
        raise UserError(
            f"{parameter('features')} has no meaning without {parameter('internal')}: what a feature set and its "
            "ledger say is for the holder of the records.",
            f"Give {parameter('internal')}, or leave it out.",
            code="conflict",
            parameter="features",
        )
    card, digest, name = head.card, sha256_of(head.path), name or head.path.name
    findings = [*cards.of_card(card), cards.of_chain(card, head.chain)]
    if wrong := cards.contradictions(findings):
        raise cards.refused(head.path, wrong)
    figures = None if evaluation is None else released.load(evaluation, digest)
    said = dict(statement.rows(card, digest))
    own = None if not internal else holder.of(head, features, figures, progress)
    unproved: tuple[str, ...] = (NOISE, BELONGS, CHARGED, SIGNER, TEXT)
    if own is not None:
        findings, unproved = list(own.findings), own.unproved
    evaluated = (
        Section(title="How good it is", blocks=released.blocks(figures, card["features"]["split"]))
        if figures is not None
        else own.evaluated
        if own is not None
        else Section(title="How good it is", blocks=(Words(_NOT_EVALUATED),))
    )
    sections = (
        Section(title="In short", blocks=(Facts(tuple(_short(head, said, digest, own))),), internal=own is not None),
        Section(title="What was trained, and on what", blocks=_trained(head, said)),
        Section(title="What is promised", blocks=tuple(_promised(card, said))),
        Section(title="What was released", blocks=tuple(_released(card))),
        Section(title="Other trainings, as the head says", blocks=(Words(said["other heads"]),)),
        *(() if own is None else own.ledger),
        evaluated,
        Section(title="What is not covered", blocks=(Points(tuple(statement.not_covered(card))),)),
        Section(title="How to use it", blocks=_used(head, name)),
        Section(title="What was checked", blocks=_checked(findings, unproved), internal=own is not None),
        Section(title="Digests", blocks=(Facts(tuple(_digests(card, digest, own))),), internal=own is not None),
        Section(title="Sign-off", blocks=(SignOff(("Trained by", "Checked by", "Approved by")),)),
    )
    return Document(
        title=f"Report on the head {name}",
        kind=SHARED if own is None else INTERNAL,
        notice=holder.NOTICE if own is not None else _notice(card, figures is not None),
        header={} if own is not None else _header(card, name, license, figures),
        sections=sections,
    )


_NOT_EVALUATED = (
    "No figures are given here. Exact ones say something about the test records. 'dpfc evaluate --epsilon' releases "
    "figures that protect these records, and 'dpfc report --evaluation' puts them here."
)


def _notice(card: Mapping[str, Any], evaluated: bool) -> str:
    figures = " The figures on test records were released with noise, at a cost that it states." if evaluated else ""
    said = (
        "For whoever gets the head. This report was made from the head's file. It says nothing about the training "
        f"records that the head itself does not say.{figures}"
    )
    if card["claim"] == "private":
        return said
    return f"{said} But this head has no guarantee: keep it as you keep the records that it was trained on."


def _short(head: Head, said: Mapping[str, str], digest: str, own: "holder.Holder | None") -> list[tuple[str, str]]:
    card = head.card
    unit = "persons" if card["unit"] == "person" else "records"
    rows = [
        ("guarantee", said["this head"]),
        ("trained on", f"{card['facts']['n']:,} {unit} of '{card['features']['name']}'"),
        (
            "what it is",
            f"a linear classifier of {counted(len(head.classes), 'class')} on features of {_backbone(card)}",
        ),
        ("made", said["made"]),
        ("SHA-256 of the file", digest),
    ]
    return rows if own is None else [*rows[:1], *own.short, *rows[1:]]


def _trained(head: Head, said: Mapping[str, str]) -> tuple[Block, ...]:
    card = head.card
    features = card["features"]
    named = ", ".join(f"'{name}'" for name in head.classes[:MOST_NAMED])
    more = len(head.classes) - MOST_NAMED
    rows = [
        ("method", said["method"]),
        ("options", said["options"]),
        ("feature set", f"'{features['name']}', its {features['split']} split; dimensions: {head.dim:,}"),
    ]
    if features.get("hold_out"):
        held = "persons" if card["unit"] == "person" else "training pictures"
        rows.append(("test split", f"{features['hold_out']:g} of the {held} were held out"))
    steps = [_step(step) for step in to_json(head.chain)]
    rows += [
        ("backbone", "; ".join(_flat(features.get("backbone"))) or "unknown"),
        ("what is done to a feature vector first", ", then ".join(steps) or "nothing"),
        ("classes", named + (f", and {more:,} more, which the head's file names" if more > 0 else "")),
        *((name, said[name]) for name in _PUBLIC if name in said),
        ("versions", f"trained with dpfc {card['versions']['dpfc']}; this report was written by dpfc {__version__}"),
    ]
    return (Facts(tuple(rows)),)


_PUBLIC = ("public facts", "public features", "public start", "started from", "tuned on")


def _step(step: Mapping[str, Any]) -> str:
    return f"{step['step']} (norm {step['norm']:.4g})" if "norm" in step else str(step["step"])


def _backbone(card: Mapping[str, Any]) -> str:
    found = card["features"].get("backbone")
    name = found.get("name") if isinstance(found, dict) else None
    return f"'{name}'" if isinstance(name, str) else "an unknown backbone"


def _flat(value: Any, name: str = "") -> list[str]:
    """What a JSON value says, as 'name: value'. A card may have any here. Its name comes first."""
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda item: item[0] != "name")
        return [said for key, inner in ordered for said in _flat(inner, f"{name} {key}".strip())]
    if isinstance(value, list):
        value = " × ".join(str(each) for each in value)
    return [] if value is None else [f"{name.replace('_', ' ')}: {value}"]


def _promised(card: Mapping[str, Any], said: Mapping[str, str]) -> list[Block]:
    named = (*(name for name, _ in statement.brief(card)), "this means", "several of one person", "several persons")
    rows = [(name, said[name]) for name in (*named, "accounting", "for comparison", "sampler") if name in said]
    if card["claim"] != "private":
        return [Facts(tuple(rows))]
    title, at = "False alarms against power", statement.FALSE_ALARMS
    unit = card["unit"]
    words = (
        f"Who looks at the head and says of one {unit} that it was used is wrong now and then: a false alarm. The more "
        "false alarms someone accepts, the more of those that were used are found, but never more than this curve "
        "says, whatever else that someone knows. The diagonal is chance."
    )
    rates = tuple(
        (f"{100 * rate:g} %", rounding.at_most(tradeoff.power(card, rate), 2), f"{100 * rate:g} %")
        for rate in tradeoff.RATES
    )
    return [
        Facts(tuple(rows)),
        Words(words),
        Figure(_curve(card, at), title, "The curve goes through the points of this table."),
        Grid(("false alarms", "found, at most", "by chance"), rates, left=0),
    ]


def _curve(card: Mapping[str, Any], at: float) -> Panel:
    power = tradeoff.power(card, at)
    marked = f"{100 * at:g} % false alarms: at most {rounding.at_most(power)}"
    return figure.panel(tradeoff.curve(card), (at, power, marked))


def _released(card: Mapping[str, Any]) -> list[Block]:
    if card["claim"] == "non-private":
        return [Words("The head was computed from the records, without noise.", strong=True)]
    rows = []
    for alike in statement.by_kind(card["plan"]):
        sigmas = " to ".join(dict.fromkeys(rounding.sigma(pick(r["sigma"] for r in alike)) for pick in (min, max)))
        times, share = sum(r["times"] for r in alike), sum(r["times"] * r["share"] for r in alike)
        shapes = " or ".join(dict.fromkeys(" × ".join(map(str, r["shape"])) for r in alike))
        first = alike[0]
        rows.append((first["kind"], shapes, f"{times:,}", f"{share:.1%}", sigmas, f"{first['rate']:g}"))
    columns = ("release", "numbers", "times", "of the budget", "sigma", "sampling rate")
    words = tuple(statement.terms(card["plan"], card["unit"]))
    return [Grid(columns, tuple(rows), left=2), Points(words)]


def _used(head: Head, name: str) -> tuple[Block, ...]:
    return (
        Words(
            f"It takes n × {head.dim} feature vectors of the backbone that it was trained on, and names their classes."
        ),
        # The name as a program has it, in visible ASCII.
        Code(f"from dpfc_cli import Head\n\nhead = Head.load({name!a})\nnames = head.predict(features)"),
    )


def _checked(findings: list[Finding], unproved: tuple[str, ...]) -> tuple[Block, ...]:
    rows = tuple((each.what, _SHOWN[each.result], each.why) for each in findings)
    return (
        Grid(("check", "result", "why"), rows, left=3),
        Words("Nothing contradicts. What the files cannot prove:"),
        Points(unproved),
    )


def _digests(card: Mapping[str, Any], digest: str, own: "holder.Holder | None") -> list[tuple[str, str]]:
    features = card["features"]
    rows = [("this head", digest), ("recipe of the features", features["fingerprint"])]
    backbone = features.get("backbone")
    weights = backbone.get("weights") if isinstance(backbone, dict) else None
    if isinstance(weights, dict) and isinstance(weights.get("sha256"), str):
        rows.append(("weights of the backbone", weights["sha256"]))
    if "public_head" in card:
        rows.append(("start", card["public_head"]["sha256"]))
    return rows if own is None else [*rows, *own.digests]


def _header(
    card: Mapping[str, Any], name: str, license: str | None, figures: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The header of a model card, as the Hugging Face hub reads it."""
    backbone = card["features"].get("backbone")
    weights = backbone.get("weights") if isinstance(backbone, dict) else None
    tags = ["dpfc", "differential-privacy" if card["claim"] == "private" else "no-privacy-guarantee"]
    found: dict[str, Any] = {"library_name": "dpfc", "tags": tags} | ({} if license is None else {"license": license})
    if _backbone(card) != "'imported'":
        # Imported features may be of texts.
        found["pipeline_tag"] = "image-classification"
    if isinstance(weights, dict) and (base := _repository(weights.get("id"))):
        found["base_model"] = base
    if figures is not None and figures["top1"] is not None:
        task = {"type": "image-classification"}
        metric = {"type": "accuracy", "value": figures["top1"], "name": "top-1 accuracy, released with noise"}
        data = {"type": figures["features"], "name": figures["features"], "split": figures["split"]}
        found["model-index"] = [{"name": name, "results": [{"task": task, "dataset": data, "metrics": [metric]}]}]
    return found


def _repository(id: Any) -> str | None:
    """OWNER/NAME of weights that came from the hub."""
    parts = id.removeprefix("hf:").split("/") if isinstance(id, str) and id.startswith("hf:") else []
    return "/".join(parts[:2]) if len(parts) >= 2 and all(parts[:2]) else None
