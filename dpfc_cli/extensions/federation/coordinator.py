"""The coordinator: it asks all sites the queries of a plan, and computes the head from weighted sums of their answers.

It has no record, and nobody needs to trust it. It keeps nothing until it has the head: a coordinator that is started
again asks from the beginning, gets the same answers, and computes the same head. On another machine its queries differ
by rounding, and so does what the answers are about.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from dpfc_cli.errors import Note, UserError, conflict, damaged, missing, parameter, quoted
from dpfc_cli.extensions.federation.card import Federated
from dpfc_cli.extensions.federation.messages import PATIENCE, SHORT, Refusal, ask
from dpfc_cli.extensions.federation.plan import Federation, class_vectors
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.facts import now
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.methods.method import Solution
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.privacy.chain import Linear, arrays, to_json
from dpfc_cli.privacy.curator import lattice_of
from dpfc_cli.privacy.forms import unpacked
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Release
from dpfc_cli.privacy.parts import bytes_of, encoded, framed, taken
from dpfc_cli.privacy.queries import Gradient, Query, sensitivity
from dpfc_cli.records.card import Card, Features, Prepared
from dpfc_cli.structs import optional
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import card_with, check_name, with_ending
from dpfc_cli.training.observer import Observer

GIVING = 30.0
"""Seconds for which a site that is away is asked again when there is a new head for it."""
STARTS = 10
"""How often a site may be started again while it is asked for one answer."""
_WORDS: dict[Refusal, str] = {
    "unreadable": "it cannot read the message: it may have another version of dpfc",
    "other-plan": "it has pinned another plan (compare the digests)",
    "refused": "its own check says no; its operator sees why",
    "not-charged": "it stops again and again, and its operator sees why",
    "other-charges": "it has begun with other charges of the sites, so one of them has charged again",
    "out-of-order": "it expects another query of the plan, or stops again and again",
    "failed": "something went wrong there; its operator sees what",
}


class RefusedError(UserError):
    """A site said no. said: its word."""

    def __init__(self, name: str, said: str) -> None:
        why = _WORDS.get(said, "it gives no reason that is known")  # type: ignore[call-overload]
        goes_on = "Speak to its operator. Then the same command resumes: what was charged is not charged again."
        ends = "Was one put back from an older backup? Put back what it had last, or make a new plan."
        super().__init__(
            f"Site '{name}' refuses: {why}.",
            ends if said == "other-charges" else goes_on,
            code="conflict",
            site=name,
        )
        self.said = said


Part = Callable[[int, int, Query], np.ndarray]
"""part(number, i, query): piece i of a site's answer to release `number`, in the shape in which it is kept
(`Release.parts`).
"""


class Sums(Oracle):
    """The oracle of a federation: weighted sums of what the sites answer, or the sums in which masks cancel."""

    def __init__(self, mechanism: Mechanism, sites: Sequence[Part], weights: Sequence[float]) -> None:
        """Make it. mechanism: of the sums. weights: what each site's answers are multiplied by; with masks 1."""
        self._mechanism, self._sites, self._weights = mechanism, sites, weights
        self._released = 0
        self._threads = ThreadPoolExecutor(len(sites))

    def release(self, query: Query) -> np.ndarray:
        return np.concatenate(list(self.pieces(query)))

    def pieces(self, query: Query) -> Iterator[np.ndarray]:
        number, self._released = self._released, self._released + 1
        due = self._mechanism.plan.due(number, query, self._mechanism.facts)
        query, signs = _with_fixed_signs(query)
        # All sites have released it when this returns.
        first = signs * self._sum(number, 0, query, due)
        return itertools.chain([first], (self._sum(number, part, query, due) for part in range(1, len(due.pieces))))

    def _sum(self, number: int, part: int, query: Query, due: Release) -> np.ndarray:
        asked = [self._threads.submit(site, number, part, query) for site in self._sites]
        found = [each.result() for each in asked]
        if self._mechanism.pool is None:
            total = np.zeros_like(found[0])
            for weight, answer in zip(self._weights, found, strict=True):
                total += weight * answer
        else:
            whole = np.zeros(found[0].shape, np.uint64)
            for answer in found:
                # Modulo 2⁶⁴.
                whole += answer.view(np.uint64)
            facts, lattice = self._mechanism.facts, lattice_of(self._mechanism)
            total = whole.view(np.int64) * query.scale(facts, lattice)
            if not _can_be(self._mechanism, total, number, query):
                raise _impossible("A site")
        return total if len(due.pieces) == 1 else unpacked(total, due.shape[-1])


def _with_fixed_signs(query: Query) -> tuple[Query, np.ndarray | float]:
    """The same query over axes with fixed signs, and what its answer is to be multiplied by.

    The signs of eigenvectors are a choice of LAPACK. So another machine would ask about other axes, and could not use
    the answers that sites have kept.
    """
    if not (isinstance(query, Gradient) and isinstance(last := query.chain[-1], Linear)):
        return query, 1.0
    largest = np.take_along_axis(last.matrix, np.abs(last.matrix).argmax(axis=0)[None], axis=0)[0]
    signs = np.where(largest < 0, -1.0, 1.0)
    rows = np.append(signs, np.ones(len(query.theta) - len(signs)))[:, None]
    fixed = (*query.chain[:-1], Linear(last.matrix * signs))
    return replace(query, chain=fixed, theta=rows * query.theta), rows


@dataclass
class Remote:
    """A site at a socket. mechanism: its plan and noise. patience: for how many seconds it may be away.

    told: called with a line when it is away. charges: the ids of those of all sites, if there are masks.
    """

    name: str
    socket: Path
    digest: str
    mechanism: Mechanism
    patience: float = PATIENCE
    told: Callable[[str], None] = lambda _: None
    charges: bytes = b""
    _asked: list[Query] = field(default_factory=list, init=False)

    def say(self, asked: str, body: bytes = b"", limit: int = SHORT, **said: object) -> tuple[str, memoryview]:
        """The state in which the site is, and what it sends. RefusedError, or UserError where it is away."""
        message = framed({"ask": asked, "plan": self.digest, **said}, body)
        away = partial(self.told, f"Waiting for {self.name} at '{self.socket}'.")
        try:
            for _ in range(STARTS):
                reply, rest = ask(self.socket, message, limit, self.patience, away)
                if reply.get("error") != "not-charged" or asked == "charge":
                    break
                # It was started again since. It finds its charge, and goes on.
                self.say("charge")
                if self.charges and asked != "begin":
                    self.say("begin", self.charges)
        except (OSError, ValueError) as error:
            raise UserError(
                f"Site '{self.name}' does not answer at '{self.socket}'.",
                "See that it was started there, and works: then the same command resumes. One that has its head, or "
                "refuses the plan when it starts, has ended: its log says so. If a pass over its records takes long, "
                f"give it more time: {parameter('patience')}.",
                code="lost",
                site=self.name,
            ) from error
        if "state" not in reply:
            raise RefusedError(self.name, str(reply.get("error")))
        return str(reply["state"]), rest

    def give(self, head: Head) -> None:
        """Give it the head. It returns when the head is written there."""
        body, chain = b"".join(map(bytes_of, (head.weight, head.bias, *arrays(head.chain)))), to_json(head.chain)
        self.say("head", body, chain=chain)

    def part(self, number: int, part: int, query: Query) -> np.ndarray:
        if number == len(self._asked):
            self._asked.append(query)
        at, starts = number, 0
        while True:
            try:
                answer = self._part(at, part if at == number else 0, self._asked[at])
            except RefusedError as error:
                if error.said != "out-of-order" or at == 0 or starts == STARTS:
                    raise
                # It was started again, and its curator begins with the first release. All of these have their answers.
                at, starts = 0, starts + 1
                continue
            if at == number:
                return answer
            at += 1

    def _part(self, number: int, part: int, query: Query) -> np.ndarray:
        release = self.mechanism.plan.releases[number]
        shape = release.parts[part + (len(release.parts) > len(release.pieces))]
        size = 8 * math.prod(shape)
        _, body = self.say("release", encoded(query, None), SHORT + size, number=number, part=part)
        answer = taken(body, [shape])[0][0] if len(body) == size else None
        # A masked answer says nothing by itself.
        masked = self.mechanism.pool is not None
        if answer is None or not (masked or _can_be(self.mechanism, answer, number, query)):
            raise _impossible(f"Site '{self.name}'")
        return answer


def _can_be(mechanism: Mechanism, answer: np.ndarray, number: int, query: Query) -> bool:
    """Whether an answer is as long as n units, and noise, can make it: n·4ᵇ + σ·4ᵇ·(√D + 6), in natural units.

    The length of D Gaussian numbers exceeds √D + 6 with a probability below e⁻¹⁸.
    """
    facts, lattice, release = mechanism.facts, lattice_of(mechanism), mechanism.plan.releases[number]
    sigma = mechanism.sigmas[number] * sensitivity(query, facts)
    most = lattice.unit * query.scale(facts, lattice) * (facts.n + sigma * (math.sqrt(release.held) + 6))
    whole = answer if answer.shape == release.shape else unpacked(answer, release.shape[-1])
    # The largest number first: squares of larger ones may not be numbers.
    return bool(np.abs(whole).max() <= most and np.linalg.norm(whole) <= most)


def _impossible(who: str) -> UserError:
    return damaged(
        f"{who} sent an answer that records and noise cannot give.",
        "Speak to its operator. Nothing was computed with it.",
    )


def run(
    plan: Federation,
    sockets: Path,
    out: Path,
    observer: Observer,
    patience: float = PATIENCE,
    start: Path | str | None = None,
) -> Head:
    """Train the head of a plan, write it, and give it to all sites.

    sockets: the folder in which site NAME answers at NAME.sock. out: the file of the head; if it has the head of this
    plan, the sites that are there get it, and nothing is asked. patience: for how many seconds a site may be away.
    start: the file of the public class vectors that the plan names. UserError: a site refuses, does not answer before
    there is a head, the head cannot be written, the plan has another start, or there is no such folder.
    """
    if not sockets.is_dir():
        raise missing(
            f"{parameter('sockets')}: there is no folder {quoted(sockets)}.",
            "Name the folder in which the sockets of the sites are.",
        )
    public = None if start is None else class_vectors(plan, start)
    if (public and public.origin["sha256"]) != (plan.start and plan.start.sha256):
        raise conflict(
            f"The plan starts from {plan.start.name if plan.start else 'nothing'}: {parameter('public_head')}.",
            "Name the file that the plan was made with, or none if it has none.",
        )
    sites = [
        Remote(each.name, sockets / f"{each.name}.sock", plan.digest, claim.noise, patience, observer.say)
        for each, claim in zip(plan.sites, plan.claims, strict=True)
    ]
    path = out = with_ending(out, "private")
    # One that has its head does not wait for us.
    again = 0.0 if out.exists() else min(patience, GIVING)
    if not out.exists():
        check_name(out, "private")
        heads.try_place(out, plan.features.dim, len(plan.classes))
        path = heads.save(heads.encoded(_trained(plan, sites, observer, public)), out)
    head = Head.load(path)
    made = head.card.known.get("federation")
    if not isinstance(made, Federated) or made.plan != plan.digest:
        raise UserError(f"'{out}' exists.", "A head is never overwritten. Choose another name.", code="exists")

    def given(site: Remote) -> None:
        try:
            replace(site, patience=again).give(head)
            observer.say(f"{site.name} has its head.")
        except UserError as error:
            if error.code != "lost":
                raise
            observer.say(f"{site.name} does not answer. If it lacks its head, start it: the same command gives it one.")

    _at_once(sites, given)
    return head


def _at_once(sites: Sequence[Remote], work: Callable[[Remote], object]) -> None:
    """Do something with all sites at the same time. The first error is raised when all have ended."""
    with ThreadPoolExecutor(len(sites)) as threads:
        list(threads.map(work, sites))


def _trained(plan: Federation, sites: Sequence[Remote], observer: Observer, start: PublicHead | None) -> Head:
    """Ask whether all are ready, then for all charges, then the queries. A note of an error says who is charged."""
    stands, charges = dict.fromkeys((site.name for site in sites), "not reached"), dict[str, bytes]()

    def state(asked: str, site: Remote) -> None:
        try:
            if asked == "charge" and stands[site.name] != "charged":
                stands[site.name] = "may be charged"
            said, charge = site.say(asked)
            charges[site.name] = bytes(charge)
            stands[site.name] = "charged" if said == "charged" else "not charged"
            observer.say(f"{site.name}: {said}")
        except RefusedError as error:
            stands[site.name] = "not charged" if error.said == "refused" else "may be charged"
            # It is raised when all have ended, and others may be away.
            observer.say(error.what)
            raise

    solver = plan.solver
    if start is not None:
        solver = replace(solver, options=replace(solver.options, public_head=start))
    oracle = Sums(solver.noise, [site.part for site in sites], plan.weights)
    try:
        for asked in ("ready", "charge"):
            _at_once(sites, partial(state, asked))
        if plan.masked:
            # In the order of the plan. Nobody answers before all have begun.
            whole = b"".join(charges[site.name] for site in sites)
            for site in sites:
                site.charges = whole
            _at_once(sites, lambda site: site.say("begin", whole))
        solution = solver.method.solve(oracle, solver.facts, solver.options)
    except UserError as error:
        error.add_note(Note(f"What the ledgers have: {', '.join(f'{name} {said}' for name, said in stands.items())}."))
        error.fields["ledgers"] = stands
        raise
    card = _card(plan, solver, solution)
    return Head(chain=solution.chain, weight=solution.weight, bias=solution.bias, card=card, evidence=solution.evidence)


def _card(plan: Federation, solver: Calibrated, solution: Solution) -> Card:
    """The card of the coordinator's head: of the records of all sites, with the largest claim of them."""
    counts = [each.records for each in plan.sites if each.records is not None]
    facts = plan.facts(sum(each.n for each in plan.sites), sum(counts) or None)
    noise = replace(solver.noise, facts=facts, mu=solver.worth.mu)
    whole = replace(solver, facts=facts, mechanism=noise, parts={"federation": plan.described()})
    known = Features(
        name="federation",
        fingerprint=plan.fingerprint,
        backbone=plan.features.backbone,
        preparation=optional(plan.features.preparation, Prepared),
        dtype=plan.features.dtype,
        hold_out=0.0,
        split=SPLIT,
    )
    return card_with(whole, known, plan.classes, "asserted", now(), solution, None)
