"""What is claimed of a head, in a card for programs and in sentences for the person who must defend it."""

from collections.abc import Collection, Mapping
from typing import Any

import dpfc_cli
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.privacy.accounting import Guarantee, zcdp_epsilon
from dpfc_cli.privacy.oracle import Facts, Plan
from dpfc_cli.trust.ledger import Claim, releases

NOT_COVERED = (
    "the test split (evaluation on it is not private)",
    "several pictures of one person: the unit is one record",
    "the data that the backbone was trained on",
    "running time, progress and memory use",
)


EXACT = "Gaussian differential privacy, exact composition of full passes"
SAMPLED = "privacy loss distributions of Poisson-sampled Gaussian releases (dp_accounting), an upper bound"


OPTIMUM = ("steps", "clip", "loss", "constant")


def card(
    method: str,
    options: Any,
    facts: Facts,
    plan: Plan,
    claim: Claim,
    guarantee: Guarantee | None,
    manifest: Manifest,
    feature_set: str,
    split: str,
    tuning: Mapping[str, Any] | None = None,
    idle: Collection[str] = (),
    converged: bool | None = None,
) -> dict[str, Any]:
    """The card of a head, JSON-able. `epsilon` and `delta` are null unless the claim is "private".

    Of public features it says where they came from ("public_features"); their arrays are no option. tuning: what is
    said of public records that the options were chosen on. idle: options that had no effect. converged: whether a twin
    that runs to the optimum got there.
    """
    public = getattr(options, "public", None)
    claimed = guarantee if claim == "private" else None
    return {
        "method": method,
        "options": _in_force(options, idle),
        "claim": claim,
        "epsilon": claimed.epsilon if claimed else None,
        "delta": claimed.delta if claimed else None,
        "mu": claimed.mu if claimed else None,
        "eta": claimed.eta if claimed else None,
        "accounting": SAMPLED if plan.sampled else EXACT,
        "adjacency": facts.adjacency,
        "unit": facts.unit,
        "facts": {"n": facts.n, "m": facts.m, "d": facts.d, "k": facts.k, "origin": manifest.origin},
        "plan": releases(plan, guarantee.mu if guarantee else None),
        "classes": list(manifest.classes),
        "features": {
            "name": feature_set,
            "split": split,
            "fingerprint": manifest.fingerprint,
            "backbone": manifest.backbone,
        },
        "versions": {"dpfc": dpfc_cli.__version__},
        **({} if public is None else {"public_features": dict(public.origin)}),
        **({} if tuning is None else {"tuning": dict(tuning)}),
        **({} if converged is None else {"converged": converged}),
    }


def rows(card: dict[str, Any]) -> list[tuple[str, str]]:
    """The statement as (what, said) pairs, from the card alone."""
    plan, facts = card["plan"], card["facts"]
    lines = [("claim", _claim(card))]
    if card["claim"] == "private":
        delta = card["delta"]
        lines += [
            ("epsilon, delta", f"({card['epsilon']:.6g}, {delta:.3g})"),
            ("accounting", card["accounting"]),
            *_compared(card),
            ("adjacency", _ADJACENCY[card["adjacency"]]),
            ("unit", f"one {card['unit']} of {facts['n']:,}"),
            ("releases", "; ".join(map(_said, _by_kind(plan)))),
            ("sampler", f"within {card['eta']:.1e} of the exact rounded Gaussian, counted into delta"),
        ]
    if facts["origin"] == "inferred":
        lines.append(("public facts", "classes and labels per record were inferred, asserted public by the operator"))
    else:
        lines.append(("public facts", f"{facts['m']} classes, {facts['k']} label(s) per record: {facts['origin']}"))
    if "public_features" in card:
        known = card["public_features"]
        said = f"{known['name']}: mean and covariance of {known['rows']:,} records, asserted public by the operator"
        lines.append(("public features", said))
    if "tuning" in card:
        lines.append(("tuned on", _tuned(card["tuning"])))
    return [*lines, ("not covered", "; ".join(NOT_COVERED))]


_ADJACENCY = {
    "zero-out": "zero-out: one record may count as null; the number of records is public",
    "replace-one": "replace-one: one record may be any other; the number of records is public",
}


def _claim(card: dict[str, Any]) -> str:
    if card["claim"] == "private":
        return "differentially private"
    if card["claim"] == "research":
        return "none: the noise came from a seed, so whoever knows it can remove it (epsilon = ∞)"
    return "none: no noise, contributions not clipped (epsilon = ∞)"


def _compared(card: dict[str, Any]) -> list[tuple[str, str]]:
    if card["accounting"] != EXACT:
        return []
    return [("for comparison", f"the paper's conversion would say {zcdp_epsilon(card['mu'], card['delta']):.4g}")]


def _by_kind(plan: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Releases of one kind together, in the order of their first: a method may alternate between kinds."""
    kinds: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for release in plan:
        kinds.setdefault((release["kind"], release["rate"]), []).append(release)
    return list(kinds.values())


def _said(alike: list[dict[str, Any]]) -> str:
    times, share = sum(r["times"] for r in alike), sum(r["times"] * r["share"] for r in alike)
    many = f"{times} × " if times > 1 else ""
    sigmas = " to ".join(dict.fromkeys(f"{pick(r['sigma'] for r in alike):.4g}" for pick in (min, max)))
    rate = alike[0]["rate"]
    sampled = f", each record with probability {rate:g}" if rate < 1 else ""
    return f"{many}{alike[0]['kind']} ({share:.1%} of the budget, sigma {sigmas}{sampled})"


def _tuned(tuning: dict[str, Any]) -> str:
    facts, chosen = tuning["facts"], tuning["chosen"]
    found = ", ".join(f"{name} = {factor:g} × default" for name, factor in chosen.items()) or "the defaults"
    return (
        f"{tuning['name']}: {len(tuning['tried'])} settings on {facts['n']:,} of its records of {facts['m']} classes, "
        f"asserted public by the operator; chosen: {found}"
    )


def _in_force(options: Any, idle: Collection[str]) -> dict[str, Any]:
    """The options that had an effect: not μ, which the guarantee states, nor the arrays of public features; and of a
    twin that runs to the optimum only what says which optimum. idle: those that had none.
    """
    every = {name: value for name, value in vars(options).items() if name not in ("mu", "public", *idle)}
    return every if every.get("steps", 1) is not None else {n: v for n, v in every.items() if n in OPTIMUM}
