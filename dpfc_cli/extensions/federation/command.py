"""`dpfc site-…` and `dpfc federation-…`: several sites train one head."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dpfc_cli import outputs, rounding
from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.train import Shown
from dpfc_cli.cli.typed import feature_set
from dpfc_cli.errors import conflict, parameter, quoted
from dpfc_cli.options import MethodOptions, Option, Value
from dpfc_cli.privacy.accounting import DEFAULT_DELTA
from dpfc_cli.show.document import Rows, Table, page

if TYPE_CHECKING:
    from dpfc_cli.extensions.federation.plan import Federation, Recipe
    from dpfc_cli.extensions.federation.site import Site

Plan = Annotated[Path, Option("The plan: a JSON file that all sites have.", argument=True)]
Features = Annotated[str, Option("This site's feature set, by path or name.", metavar="SET")]
Name = Annotated[str, Option("The name of this site in the plan.", metavar="NAME")]
Start = Annotated[
    Path | None,
    Option("Public class vectors, such as 'dpfc zero-shot' makes: the training starts from them.", metavar="FILE"),
]
Policy = Annotated[
    Path | None,
    Option("A JSON file with what this site agrees to at most (docs/extensions/federation.md).", metavar="FILE"),
]
Out = Annotated[Path, Option("The file. It is never overwritten.", metavar="FILE")]


@command("site-invite", panel="Federation")
def invite(
    features: Features,
    name: Annotated[str, Option("What this site is to be called: small letters, digits, dashes.", metavar="NAME")],
    epsilon: Annotated[float, Option("The ε that this site would spend: it holds even if all others collude.")],
    out: Out,
) -> None:
    """Write what this site would bring to a federation, for whoever makes its plan.

    It says how many records (or persons) the set has, its classes, what made the features, ε, and a public key for
    masks. The private key stays beside the ledger.
    """
    from dpfc_cli.extensions.federation import plan as plans

    outputs.check(out, (".json",))
    if out.exists():
        raise outputs.exists(out)
    found = feature_set(features)
    made = plans.invitation(found, name, epsilon)
    outputs.write(out, made.data)
    rows = [
        ("site", name),
        ("records", f"{made.n:,}" if made.records is None else f"{made.records:,} of {made.n:,} persons"),
        ("classes", f"{len(made.classes):,}, with their names"),
        ("would spend", f"epsilon = {epsilon:g}"),
        *_features(made.features),
        ("public key", made.key),
        ("next", "Send it to the coordinator. 'dpfc federation-new' takes it."),
    ]
    display.facts(f"Invitation {out}", rows, {"file": str(out), "invitation": json.loads(made.data)})


@command("federation-new", MethodOptions, panel="Federation")
def new(
    invitations: Annotated[list[Path], Option("What the sites have sent, a file of each.", argument=True)],
    out: Out,
    method: Annotated[
        Literal["auto", "dp-whitened", "dp-fc", "dp-ls"],
        Option("auto is dp-whitened for records with one label, and dp-fc for records with several."),
    ] = "auto",
    delta: Annotated[float | None, Option(f"δ. {DEFAULT_DELTA} n is that of the largest site.")] = None,
    adjacency: Annotated[
        Literal["zero-out", "replace-one"], Option("What the guarantees hide, see 'dpfc train'.")
    ] = "zero-out",
    colluding: Annotated[
        int | None,
        Option(
            "Masks: this many of the other sites may collude, 1 to the number of sites − 2. Default: all, and no "
            "masks.",
            low=1,
        ),
    ] = None,
    public_head: Start = None,
    **asked: Value,
) -> None:
    """Make the plan of a federation of all who are invited.

    All operators then compare its digest, outside the network.
    """
    from dpfc_cli.extensions.federation import plan as plans

    outputs.check(out, (".json",))
    made = plans.agreed(invitations, method, MethodOptions(**asked).options, delta, adjacency, colluding, public_head)
    outputs.write(out, made.data)
    _warn(made, Shown())
    values = {"file": str(out), "digest": made.digest, "plan": json.loads(made.data)}
    display.show(page(f"Plan {out}", Rows(_agreed(made)), _sites(made), values=values))


@command("site-check", panel="Federation")
def check(plan: Plan, features: Features, name: Name, policy: Policy = None) -> None:
    """Say what this site would agree to, and check that nothing stands against it. Nothing is charged."""
    from dpfc_cli.extensions.federation.site import ready
    from dpfc_cli.report import account as shown

    observer = Shown()
    site = _site(plan, features, name, policy, observer)
    checked = ready(site, observer)
    _warn(site.plan, observer)
    claimed, after = checked.calibrated.worth, checked.after
    cost = rounding.cost(claimed.epsilon, claimed.delta)
    rows = [
        ("this site", f"{site.name}: would charge {cost} to {site.features.name}"),
        ("then spent", after.summed(claimed.delta)),
        *((("left", left),) if (left := shown.left(after, claimed.delta, checked.charge)) else ()),
        ("leaves it", "sums with the whole noise of this claim; the head, which is made of them"),
        *_agreed(site.plan),
    ]
    values = {**dict(rows), "digest": site.plan.digest, "site": site.name}
    display.show(page(f"Plan {plan}", Rows(rows), _sites(site.plan), values=values))


@command("site-serve", panel="Federation", when_stopped="This run charged nothing.", computes=True)
def serve(
    plan: Plan,
    features: Features,
    name: Name,
    digest: Annotated[str, Option("The plan's SHA-256 that all operators have agreed on.", metavar="SHA256")],
    socket: Annotated[Path, Option("The Unix socket at which the coordinator asks.", metavar="FILE")],
    policy: Policy = None,
    answer_every: Annotated[
        float,
        Option(
            "Replies leave at multiples of so many seconds since their message came. If that is more than a pass over "
            "the records takes, nobody sees how long it took. 0: at once.",
            metavar="SECONDS",
            low=0.0,
            high=1e6,
        ),
    ] = 0.0,
) -> None:
    """Answer the queries of a plan, until this site has the head. It charges the ledger when all sites are ready."""
    from dpfc_cli.extensions.federation.site import serve as answer
    from dpfc_cli.training.run import Trained

    observer = Shown()
    site = _site(plan, features, name, policy, observer)
    if site.plan.digest != "".join(digest.lower().split()):
        raise conflict(
            f"{quoted(plan)} is not the plan of {parameter('digest')}.",
            "Compare the digest with the other operators again. If they have another one, ask for their plan.",
        )
    stop.stands = "'dpfc budget' says whether the plan is charged. The same command resumes."
    made = answer(site, socket, observer, answer_every)
    # Of one that was written before, the ledger has the name.
    head = str(made.path if isinstance(made, Trained) else made.head)
    values = {"site": name, "head": head, "sha256": made.sha256}
    display.facts(f"Site {name} is done", [("head", head), ("SHA-256 of this head", str(made.sha256))], values)


@command("federation-run", panel="Federation", when_stopped="The sites wait. The same command resumes.")
def run(
    plan: Plan,
    sockets: Annotated[Path, Option("The folder in which site NAME answers at NAME.sock.", metavar="FOLDER")],
    out: Out,
    patience: Annotated[
        float,
        Option("Seconds for which a site may be away. A reply may take as long, and 600 at least.", low=0.0, high=1e7),
    ] = 600.0,
    public_head: Start = None,
) -> None:
    """Train the head of a plan with all its sites, and give it to them."""
    from dpfc_cli.extensions.federation.coordinator import run as train
    from dpfc_cli.extensions.federation.plan import load
    from dpfc_cli.files import sha256_of
    from dpfc_cli.records import statement

    head = train(load(plan), sockets, out, Shown(), patience, public_head)
    digest = sha256_of(head.file)
    values = {"head": str(head.file), "sha256": digest, "card": head.card.values()}
    display.facts(f"Head {head.file}", [*statement.brief(head.card), ("SHA-256 of this head", digest)], values)


def _site(plan: Path, features: str, name: str, policy: Path | None, observer: Shown) -> "Site":
    from dpfc_cli.extensions.federation.plan import check_policy, load
    from dpfc_cli.extensions.federation.site import site_of

    found = load(plan)
    if policy is not None:
        check_policy(found, name, policy)
        observer.say(f"The policy '{policy}' allows this plan.")
    return site_of(found, name, feature_set(features))


def _warn(plan: "Federation", observer: Shown) -> None:
    """What will go badly in the training of a plan."""
    from dpfc_cli.training.calibrate import warnings_of

    options = plan.claim(plan.sites[0].name).options
    for text in warnings_of(replace(plan.solver, options=options)):
        observer.warn(text)


def _agreed(plan: "Federation") -> list[tuple[str, str]]:
    options = ", ".join(f"{name.replace('_', ' ')} = {value}" for name, value in plan.options.items()) or "the defaults"
    facts = plan.solver.facts
    return [
        ("method", f"{plan.method}, options: {options}"),
        ("protects", f"one {facts.unit}, {plan.adjacency} adjacency, delta = {plan.delta:g}"),
        ("classes", f"{len(plan.classes):,}: {', '.join(plan.classes[:5])}{' …' if len(plan.classes) > 5 else ''}"),
        *_features(plan.features),
        *([("public start", f"{plan.start.name} (SHA-256 {plan.start.sha256})")] if plan.start else []),
        *plan.described().trusted(plan.solver.worth, facts.unit),
    ]


def _features(known: "Recipe") -> list[tuple[str, str]]:
    """What made the features of all sites, as far as it is known."""
    if known.backbone.get("name") == "imported":
        unsure = "imported: dpfc cannot check that all sites have used the same model. Ask them which one"
        return [("backbone", unsure), ("dimension", f"{known.dim:,}")]
    return [("backbone", f"{known.backbone.get('name')}, dimension {known.dim:,}")]


def _sites(plan: "Federation") -> Table:
    columns = ["site", f"{plan.solver.facts.unit}s", "epsilon", "weight"]
    rows = [
        (each.name, f"{each.n:,}", f"{each.epsilon:g}", rounding.rounded_down(weight, 3))
        for each, weight in zip(plan.sites, plan.weights, strict=True)
    ]
    return Table(columns, rows, left=1)
