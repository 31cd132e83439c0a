"""A site: it has the records, and answers the queries of one agreed plan.

It goes the way of any training: calibrate, check, charge, run. Only the method's `solve` is another one: it hands the
coordinator's queries to the curator, and returns the head that the coordinator sends. So all promises of a training
hold here: the charge is on disk before the first record is read, the curator answers only its plan, and an answer is on
disk before it leaves.

**What arrives is data.** It is of bounded length, its query is one that the proofs are about (`forms.check`), and the
next one of the plan (`Plan.due`). All else is refused with a fixed word.

**A release has one answer.** Whoever asks for a release again gets the answer that is kept, whatever the query is now:
that tells nothing new. So a coordinator may be started again on another machine, where the bits of its queries differ.
After a restart the curator hands out the answers that are kept, and draws the others (`ledger.answers`).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError, conflict, missing, parameter
from dpfc_cli.extensions.federation.masks import Masks, forget
from dpfc_cli.extensions.federation.messages import Door, Exchange, query_bytes
from dpfc_cli.extensions.federation.plan import Federation, keys_of, offered
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.folders import heads_folder
from dpfc_cli.ledger.answers import is_held
from dpfc_cli.ledger.facts import Outcome, now
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.forms import check as check_query
from dpfc_cli.privacy.oracle import Oracle, PlanError
from dpfc_cli.privacy.parts import bytes_of, chain_shapes, decoded, taken
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import charge_of_training
from dpfc_cli.training.charged import Charged, charged_before, check_charge
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.run import Trained, run


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site of a plan, with its records.

    plan: what was agreed. name: of this site. features: its records, with the classes of the plan. folder: for heads.
    """

    plan: Federation
    name: str
    features: FeatureSet
    folder: Path

    @property
    def ended(self) -> Outcome | None:
        """The outcome with its head, if that was written. Others in its ledger may say of theirs what they like."""
        book = read(ledger_path(self.features.folder))
        own = charge_of_training(self.plan.claim(self.name), self.features, "", self.name, None)
        last = (book.outcome(each.id) for each in charged_before(book, own))
        return next((each for each in last if each is not None and each.state == "written"), None)


def site_of(plan: Federation, name: str, features: FeatureSet, folder: Path | None = None) -> Site:
    """The site of that name, if these are its records, and the plan has what it has offered.

    Raises:
        UserError: the plan has no such site, says something else of the records, or is of no invitation of this site.

    """
    part = plan.part(name)
    own = offered(features, part.key)
    if own is None:
        mine = [each.name for each in plan.sites if offered(features, each.key)]
        remedy = "Name the feature set that the invitation was made of, or ask for a plan of a new invitation."
        raise missing(
            f"'{features.name}' has made no invitation that the plan has for '{name}'.",
            f"It has made one for {parameter('name')} {', '.join(mine)}." if mine else remedy,
            known=mine,
        )
    found = features.with_classes(plan.classes)
    facts = facts_of(found, plan.adjacency)
    wrong = [
        *(["its name"] if part.name != own.name else []),
        *([f"its epsilon ({own.epsilon:g} in the invitation)"] if part.epsilon != own.epsilon else []),
        *(["the counts or the unit"] if facts != plan.facts(part.n, part.records) else []),
        *(["the recipe of the features"] if found.manifest.fingerprint != plan.fingerprint else []),
    ]
    if wrong:
        raise conflict(
            f"The plan says something else of '{features.name}': {' and '.join(wrong)}.",
            "Name the feature set that the invitation was made of, or ask for a plan of a new invitation.",
        )
    return Site(plan=plan, name=name, features=found, folder=heads_folder() if folder is None else folder)


def masks_of(site: Site) -> Masks | None:
    """The site's masks, if the plan has some. UserError where its keys are not there."""
    plan = site.plan
    if not plan.masked:
        return None
    own = plan.sites.index(plan.part(site.name))
    return Masks([each.key for each in plan.sites], own, plan.digest, keys_of(site.features))


def ready(site: Site, observer: Observer) -> Checked:
    """Everything that can be refused. Nothing is charged.

    Raises:
        UserError: as `training.check.check`; or the plan was charged before, and has its head, is held elsewhere or
            cannot go on; or its masks cannot be made here.

    """
    if (before := site.ended) is not None:
        raise UserError("The head of this plan is written.", f"It is '{before.head}'.", code="exists")
    plan, claim = site.plan, site.plan.claim(site.name)
    request = Request(
        site.features,
        folder=site.folder,
        method=claim.method.name,  # type: ignore[arg-type]
        epsilon=claim.privacy.epsilon,
        delta=plan.delta,
        adjacency=plan.adjacency,
        by=site.name,
        purpose=f"federation {plan.digest}",
    )
    checked = check(request, claim, observer)
    own = next((each.id for each in charged_before(checked.book, checked.charge)), None)
    if checked.unfinished is None and own is not None:
        held = is_held(checked.book.path, own)
        why = {True: "another process serves it", False: "its answers cannot be used", None: "its answers are gone"}
        raise UserError(
            f"This plan was charged before: {why[held]}.",
            "A site is charged once for a plan. If it can go on nowhere, ask for a new plan.",
            code="busy" if held else "conflict",
        )
    if not checked.keeps:
        what = "A site keeps its answers, and those of this plan are too large for its ledger."
        raise conflict(what, "Ask for a plan of features of fewer dimensions.")
    masks_of(site)
    return checked


def serve(site: Site, socket: Path, observer: Observer, every: float = 0.0) -> Trained | Outcome:
    """Answer at a socket until the head of the plan is written. If it was written before: what the ledger says of it.

    every: seconds between the times at which replies leave (`messages.left`).

    Raises:
        UserError: it is not ready; or it stopped. Then the same command resumes.

    """
    if (before := site.ended) is not None:
        forget(keys_of(site.features), site.plan.part(site.name).key)
        return before
    checked = ready(site, observer)
    quiet = partial(_log, observer, "Nobody has asked for ten minutes. If the coordinator has stopped, it can go on.")
    with Door(socket, query_bytes(site.features.dim, len(site.plan.classes)), every, quiet) as door:
        stands = "nothing is charged yet" if checked.unfinished is None else "it was charged before, and resumes"
        _log(observer, f"Waits at {socket} for the coordinator of the plan {site.plan.digest}: {stands}.")
        answering = Answering(site, checked, door, observer)
        try:
            trained = run(checked, observer, answering.solve)
        except BaseException:
            if answering.waits is not None:
                answering.waits.refuse("failed")
            raise
        assert answering.waits is not None
        answering.waits.reply({"state": "ended"})
        _log(observer, f"Ended with the head {trained.path.name}.")
        forget(keys_of(site.features), site.plan.part(site.name).key)
        return trained


def _log(observer: Observer, text: str) -> None:
    """A line of public facts. It is said when the reply has left, so its time tells no more than the reply does."""
    observer.say(f"{now()} {text}")


def _asked(site: Site, checked: Checked, door: Door, observer: Observer) -> Exchange:
    """Wait until the coordinator asks for the charge."""
    for each in _of_plan(site, door):
        asked = each.said.get("ask")
        if asked not in ("ready", "charge"):
            each.refuse("not-charged" if asked in ("begin", "release", "head") else "unreadable")
            continue
        try:
            if checked.unfinished is None:
                site.features.check_same()
                check_charge(read(checked.book.path), site.features, checked.charge)
        except UserError as error:
            each.refuse("refused")
            observer.warn(f"The coordinator was told no, and nothing is charged: {error.what}")
            continue
        if asked == "charge":
            return each
        each.reply({"state": "ready" if checked.unfinished is None else "charged"})
        _log(observer, "The coordinator asked whether this site is ready. It is.")
    raise AssertionError("a door has no end")


def _of_plan(site: Site, door: Door) -> Iterator[Exchange]:
    """The messages that are about this plan."""
    for each in door.exchanges():
        if each.said.get("plan") == site.plan.digest:
            yield each
        else:
            each.refuse("other-plan")


class Answering:
    """Answers the queries of a plan, which is charged when the coordinator asks for it.

    waits: the message whose reply waits: the one that asks for the charge, and later the one with the head.
    """

    def __init__(self, site: Site, checked: Checked, door: Door, observer: Observer) -> None:
        self._site, self._door, self._observer = site, door, observer
        self._plan, self._facts = checked.calibrated.plan, checked.calibrated.facts
        self._starts = [0, *itertools.accumulate(len(release.parts) for release in self._plan.releases)]
        self._masks = masks_of(site)
        self._begun = 0
        self.waits: Exchange | None = _asked(site, checked, door, observer)

    def solve(self, paid: Charged, calibrated: Calibrated, oracle: Oracle) -> Solution:
        """Answer until the head comes. It takes the place of the method's own `solve`."""
        assert paid.answers is not None
        self._answers = paid.answers
        # What the list of the charges has of this one. Nobody needs it without masks.
        self._id = bytes.fromhex(paid.charge.id) if self._site.plan.masked else b""
        if self.waits is not None:
            self.waits.reply({"state": "charged"}, self._id)
            self.waits = None
        _log(self._observer, f"Charged: {paid.charge.id}. The coordinator may ask now.")
        for each in _of_plan(self._site, self._door):
            asked = each.said.get("ask")
            if asked in ("ready", "charge"):
                each.reply({"state": "charged"}, self._id)
            elif asked == "begin" and self._masks is not None:
                self._begin(each, self._masks)
            elif asked == "release":
                self._release(each, oracle)
            elif asked == "head" and self._answers.answered >= self._starts[-1]:
                try:
                    solution = self._head(each)
                except (ValueError, KeyError, TypeError):
                    each.refuse("unreadable")
                    continue
                self.waits = each
                return solution
            else:
                each.refuse("out-of-order" if asked == "head" else "unreadable")
        raise AssertionError("a door has no end")

    def _begin(self, each: Exchange, masks: Masks) -> None:
        try:
            begun = masks.begin(self._id, bytes(each.body))
        except BaseException:
            each.refuse("failed")
            raise
        if begun:
            each.reply({"state": "charged"})
            return
        each.refuse("other-charges")
        self._observer.warn(
            "The coordinator was told no: the charges of the sites are not those with which this site has begun. If a "
            "site was put back from an older backup, and has charged again, the plan cannot go on."
        )

    def _release(self, each: Exchange, oracle: Oracle) -> None:
        if self._masks is not None and not self._masks.charges:
            each.refuse("not-charged")
            return
        number, part = each.said.get("number"), each.said.get("part")
        if type(number) is not int or not 0 <= number <= min(self._begun, len(self._plan.releases) - 1):
            each.refuse("out-of-order")
            return
        try:
            query, sample = decoded(bytes(each.body), self._facts)
            check_query(query, self._facts)
            release = self._plan.due(number, query, self._facts)
            if sample is not None or type(part) is not int or not 0 <= part < len(release.pieces):
                raise ValueError("it has a sample, or there is no such part")
        except PlanError:
            each.refuse("out-of-order")
            return
        except ValueError:
            each.refuse("unreadable")
            return
        kept = self._answers.answered > self._starts[number]
        try:
            if number == self._begun:
                self._begun += 1
                oracle.pieces(query)
            # The first part of an answer in pieces says which query it is of.
            at = part + (len(release.parts) > len(release.pieces))
            answer = self._kept(self._starts[number] + at, release.parts[at])
            if self._masks is not None:
                answer = self._masks.masked(answer, number, part)
        except BaseException:
            each.refuse("failed")
            raise
        each.reply({"state": "answered"}, bytes_of(answer))
        if part == 0:
            how = "Sent again, as it was kept:" if kept else "Answered"
            _log(self._observer, f"{how} release {number + 1} of {len(self._plan.releases)}, {query.kind}.")

    def _kept(self, number: int, shape: tuple[int, ...]) -> np.ndarray:
        found = self._answers.recall(number, shape)
        assert found is not None
        return found

    def _head(self, each: Exchange) -> Solution:
        """The head that the coordinator sends. ValueError and others: it is none of this plan."""
        d, m = self._facts.d, self._facts.m
        (weight, bias), rest = taken(each.body, [(d, m), (m,)])
        steps = each.said["chain"]
        arrays, rest = taken(rest, chain_shapes(steps, d))
        chain = chains.from_json(steps, arrays, d)
        kinds = [type(step) for step in chain]
        if len(rest) or kinds not in [[type(step) for step in one.form.chain] for one in self._plan.releases]:
            raise ValueError("it has other preprocessing than the plan")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError("its numbers are not finite")
        return Solution(chain=chain, weight=weight, bias=bias)
