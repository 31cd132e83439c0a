"""Who is in which set: writing sets down, and saying whose records they are.

A set is written down before it gets its name. `population` names whose records it has. This is an assertion: nobody is
in two named populations. An undeclared set counts in all of them, so a name that is forgotten makes totals larger, and
never smaller. Public data sets whose bytes were verified have names of their own (`RESERVED`).

**What contradicts an assertion is refused**, where a listing shows it: a set of the same source as one of another named
population cannot be made, declared to be of a population, imported without history or merged. Records are not compared,
so the same people under another listing of files are not noticed.
"""

import hashlib
import json
import shlex
from pathlib import Path

from msgspec.structs import replace

from dpfc_cli.errors import GUARDED, Code, UserError, parameter, printable, quoted
from dpfc_cli.features.lookup import finished
from dpfc_cli.features.manifest import Manifest, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.folders import PARTIAL
from dpfc_cli.ledger.facts import MOST_NAME, RESERVED, Set, account_name, is_keepable, noted
from dpfc_cli.ledger.file import append, ledger_path, read
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.structs import encoded


def records_of(manifest: Manifest) -> str:
    """The SHA-256 of what a manifest says of its shards: their digests, and the number of records and persons."""
    said = {name: {"groups": None, **encoded(split)} for name, split in manifest.splits.items()}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def check_name(population: str | None) -> None:
    """UserError for what cannot be the name of a population."""
    if population is None or (is_keepable(population, MOST_NAME) and ":" not in population):
        return
    what = f"{parameter('population')} must be a name of 1 to {MOST_NAME} characters, without a colon."
    raise refused("population", what, "Give another name, such as ward7.", "bad-value")


def refused(name: str, what: str, remedy: str, code: Code = "conflict", **fields: object) -> UserError:
    """The error for what may not be said. name: of the parameter that says it."""
    return UserError(what, remedy, code=code, parameter=name, **fields)


def check_begin(ledger: Ledger) -> None:
    """UserError if the ledger lacks a set that lies beside it: what was spent is not known, so none is made."""
    place = ledger.path.parent.resolve()
    # A link leads to a set with a ledger of its own, elsewhere.
    here = (path for path in finished(place) if path.resolve().parent == place)
    lost = min((path for path in here if load(path).id not in ledger.sets), default=None)
    if lost is not None:
        what = f"{quoted(ledger.path)} does not have '{printable(str(lost))}': it is gone, or too old a copy."
        remedy = "Put it back. If there is none any more: 'dpfc population --adopt --features SET', for each."
        raise refused("out", what, remedy, "missing")


def check_new(folder: Path, manifest: Manifest, population: str | None) -> None:
    """Refuse, before a record is read, to make a set in a folder: as `check_begin`; and UserError where it is of the
    same source as a set of another named population.
    """
    ledger, fact = read(ledger_path(folder)), _fact(folder, manifest, account_name(), population)
    check_begin(ledger)
    check_source(ledger.with_facts(fact), fact)


def check_source(after: Ledger, fact: Set) -> None:
    """UserError where a set of a ledger has the source, or the shards, of a set in whose populations nobody of it may
    be.
    """
    mine = after.populations_of(fact.set)
    for other, (each, *_) in after.sets.items():
        theirs = after.populations_of(other)
        same = fact.records == each.records or not {*fact.listing.values()}.isdisjoint(each.listing.values())
        if same and mine and theirs and not mine & theirs:
            what = f"{fact.name} and {each.name} are of the same source, and {each.name} is of the population"
            remedy = f"Give both the same {parameter('population')}, or leave it out: then both are added up."
            raise refused("population", f"{what} '{min(theirs)}'. Nobody may be in two. {GUARDED}", remedy)


def register(folder: Path, manifest: Manifest, population: str | None) -> None:
    """Write down a set that is made. Its files are in place, and it has no name yet.

    folder: where it will lie. population: whose records it has; None: undeclared. UserError where it is of the
    same source as a set of another named population, or the ledger is gone or cannot be written.
    """
    fact = _fact(folder, manifest, account_name(), population)

    def written(ledger: Ledger) -> list[Set]:
        check_begin(ledger)
        return _said(ledger, fact)

    place = ledger_path(folder)
    # That of a set at a URL may be the first thing in its folder.
    place.parent.mkdir(parents=True, exist_ok=True)
    append(place, written, "The set")


def _said(ledger: Ledger, fact: Set) -> list[Set]:
    """The fact as it is to be written down; none if the ledger says as much already.

    What was said of the set stays, whoever says what now: what was spent on those who were named leaves no sum.
    """
    known = ledger.sets.get(fact.set, [])
    if known and fact.population in {None, *ledger.names(known)}:
        return []
    if any((each.population or "").startswith(RESERVED) for each in known):
        what = f"{fact.name} is of a public data set, which has a population of its own."
        raise refused("population", what, f"Leave out {parameter('population')}.")
    fact = replace(fact, replaces=tuple(each.id for each in known if each.population is None))
    after = ledger.with_facts(fact)
    for account in after.accounts(after.populations_of(fact.set)) if known or fact.adopted else ():
        if account.passed:
            what = f"There is a cap ({account.population or 'each population'}). It would not hold any more."
            remedy = "'dpfc budget' shows it. Remove it before, or unite the ledgers (merge) instead of adopting."
            raise refused("population", what, remedy, "over-cap")
    check_source(after, fact)
    return [fact]


def check_same(features: FeatureSet, population: str | None) -> None:
    """UserError where a finished set is said to be of another population than before. None: undeclared."""
    known = read(ledger_path(features.folder))
    said = known.names(known_set(known, features))
    if population is not None and population not in said:
        line = shlex.join(["dpfc", "population", population, "--features", str(features.folder)])
        what = f"{features.name} is complete, and is not said to be of the population '{population}'."
        raise refused("population", what, f"To say so: {line}")


def set_population(
    features: FeatureSet, population: str | None, *, adopt: bool = False, by: str | None = None
) -> Account:
    """Say whose records a set has. All charges on it count there from then on.

    It is an assertion: nobody is in two named populations. It is written down with who says so, and when, and is never
    taken back: a set that is said to be of a second population counts in both.

    Args:
        features: the set; see `dpfc_cli.open_features`.
        population: the name. With `adopt` it may be None: undeclared.
        adopt: write down a set that the ledger lacks, although what was spent on it is not known. Totals then say "at
            least", and no cap holds where it counts. If its ledger is at hand, unite it instead (`merge_ledgers`).
        by: who says so. Default: the name of the account that runs the program.

    Returns:
        What is spent by the population, and its caps.

    Raises:
        UserError: it is no name; the ledger lacks the set, or has it already; the set is of the same source as one of
            another named population, or of a public data set; a cap would not hold any more; or the ledger cannot be
            written.

    Examples:
        dpfc.set_population(dpfc.open_features("ward7-vit-b16"), "ward7")

    """
    check_name(population)
    who = noted("by", by) or account_name()

    def said(ledger: Ledger) -> list[Set]:
        known = known_set(ledger, features, lacking=adopt)
        if adopt and known:
            raise refused("adopt", f"The ledger has {features.name}.", "There is nothing to adopt.", "exists")
        fact = _fact(features.folder, features.manifest, who, population)
        return _said(ledger, replace(fact, adopted=adopt))

    return append(ledger_path(features.folder), said, "The population").account_of(features.manifest.id)


def known_set(ledger: Ledger, features: FeatureSet, lacking: bool = False) -> list[Set]:
    """What the ledger says of a set. UserError where it is not complete, the ledger lacks it, or it is not the one it
    was. lacking: it may lack the set.
    """
    found, folder = ledger.sets.get(features.manifest.id, []), features.folder
    if folder.resolve().name.endswith(PARTIAL):
        what = f"{quoted(folder)} is not complete."
        raise refused("features", what, "Run the command that began it again.", "missing")
    if not found and not lacking:
        what = f"The ledger {quoted(ledger.path)} does not have {features.name}: what was spent on it is not known."
        remedy = (
            "Put the set's own ledger back, or unite the two: 'dpfc merge'. If there is none any more, totals "
            f"say 'at least' from then on: {shlex.join(['dpfc', 'population', '--adopt', '--features', str(folder)])}"
        )
        raise refused("features", what, remedy, "missing")
    if any(each.records != records_of(features.manifest) for each in found):
        what = f"{quoted(folder)} is not the set that the ledger has: its manifest names other shards."
        remedy = "Somebody has changed it. Make it anew, or put it back from a backup."
        raise refused("features", what, remedy, "damaged")
    return found


def _fact(folder: Path, manifest: Manifest, by: str, population: str | None) -> Set:
    return Set(
        by=by,
        set=manifest.id,
        name=printable(folder.resolve().name),
        records=records_of(manifest),
        listing=manifest.identity.listing,
        population=population,
    )
