"""Nobody is in two named populations: what contradicts this is refused, and leaves nothing behind."""

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

import dpfc_cli
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.extract import extract
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import Cap, Set
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.merge import merge_ledgers
from dpfc_cli.ledger.populations import known_set, register
from tests import instead
from tests.extraction.test_extract import Means
from tests.ledger.facts import DELTA, a_cap, a_charge, a_set, kept, made_set, spent_by, written
from tests.support import feature_set, refuses

BAD_NAMES = ("", "x" * 101, "dataset:digits", "a:b", "a\0b", "\ud800")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of feature sets, with one set of the population 'a'."""
    made_set(tmp_path / "features" / "first", range(10), "a")
    return tmp_path / "features"


def book(place: Path) -> dict[str, bytes]:
    """The ledger and what lies beside it; without sets, and without those that are not finished."""
    return {name: data for name, data in kept(place).items() if name.startswith("ledger")}


def refused(code: str, does: Callable[[], object]) -> UserError:
    with refuses(code) as error:
        does()
    return error.value


def names(place: Path) -> list[str | None]:
    return [each.population for each in read(place / "ledger.sqlite").all(Set)]


# A source that would be in two populations


def test_a_source_of_another_population_is_refused_when_it_is_imported(place: Path) -> None:
    before = book(place)
    error = refused("conflict", lambda: made_set(place / "second", range(10), "b"))
    assert error.what.partition(GUARDED)[1]
    assert book(place) == before
    assert [each.name for each in place.iterdir() if each.is_dir()] == ["first"]
    # It may be of the same population, or nothing is said of it.
    made_set(place / "second", range(10), "a")
    made_set(place / "third", range(10))
    made_set(place / "fourth", range(20, 30), "b")
    assert names(place) == ["a", "a", None, "b"]
    # The ledger outlives the sets.
    for name in ("first", "second", "third"):
        shutil.rmtree(place / name)
    refused("conflict", lambda: made_set(place / "fifth", range(10), "b"))
    # Of another dtype its listing is another one. What is stored is the same.
    with np.load(place.parent / "sources" / "features-first.npz") as source:
        np.savez(place.parent / "wide.npz", train_x=source["train_x"].astype(np.float64), train_y=source["train_y"])
    again = partial(feature_set, place.parent / "wide.npz", place / "fifth", classes=("a", "b"))
    refused("conflict", partial(again, population="b"))


def test_a_source_of_another_population_is_refused_when_it_is_said_whose_a_set_is(place: Path, tmp_path: Path) -> None:
    second = made_set(place / "second", range(10))
    elsewhere = made_set(tmp_path / "elsewhere" / "third", range(10))
    shutil.copytree(elsewhere.folder, place / "third")
    third = FeatureSet(place / "third")
    before = book(place)
    refused("conflict", lambda: dpfc_cli.set_population(second, "b"))
    refused("conflict", lambda: dpfc_cli.set_population(third, "b", adopt=True))
    assert book(place) == before
    dpfc_cli.set_population(second, "a")
    dpfc_cli.set_population(third, None, adopt=True)
    assert names(place) == ["a", None, "a", None]
    # Now nothing is said of the third, and it is with everybody.
    refused("conflict", lambda: dpfc_cli.set_population(third, "b"))


# Names


def test_what_cannot_be_a_name_is_refused_everywhere(place: Path, tmp_path: Path) -> None:
    """Names with a colon are those of the catalogue."""
    first = FeatureSet(place / "first")
    made_set(tmp_path / "elsewhere" / "second", range(20, 30), "b")
    before = kept(place)
    doors: list[Callable[[str], object]] = [
        lambda bad: made_set(place / "second", range(20, 30), bad),
        lambda bad: extract("digits", out=place / "second", population=bad),
        lambda bad: dpfc_cli.set_population(first, bad),
        lambda bad: merge_ledgers(place, tmp_path / "elsewhere", apart=["a", "b", bad]),
        lambda bad: merge_ledgers(place, tmp_path / "elsewhere", apart=["a"], same={"b": bad}),
        lambda bad: merge_ledgers(place, tmp_path / "elsewhere", apart=["a"], same={bad: "a"}),
    ]
    for bad, door in product(BAD_NAMES, doors):
        refused("bad-value", partial(door, bad))
    assert kept(place) == before
    odd = "é\u202e\x1b[2J\n" + "x" * 90
    dpfc_cli.set_population(first, odd, by=odd)
    assert read(place / "ledger.sqlite").populations_of(first.manifest.id) == frozenset(["a", odd])


def test_a_data_set_of_the_catalogue_has_a_population_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a backbone makes of a picture does not matter here.
    instead.backbone(monkeypatch, lambda *given, **named: Means())
    place = tmp_path / "features"
    refused("conflict", lambda: extract("digits", out=place / "digits", limit=5, pool="mean", population="a"))
    assert kept(tmp_path) == {}
    features = extract("digits", out=place / "digits", limit=5, pool="mean").features
    assert features is not None
    assert names(place) == ["dataset:digits"]
    before = kept(place)
    refused("conflict", lambda: dpfc_cli.set_population(features, "a"))
    assert kept(place) == before


# Sets and their ledger


def test_a_set_is_said_to_be_of_a_population_with_all_its_charges(place: Path) -> None:
    first, second = FeatureSet(place / "first"), made_set(place / "second", range(20, 30))
    path = place / "ledger.sqlite"
    written(path, a_charge(first.manifest.id, 1.0), a_charge(second.manifest.id, 0.5))
    assert read(path).account("a").epsilon(DELTA) == pytest.approx(spent_by(1.0, 0.5), rel=1e-6)
    made_set(place / "third", range(30, 40), "b")
    dpfc_cli.set_population(second, "b", by="an officer")
    ledger = read(path)
    assert ledger.account("a").epsilon(DELTA) == pytest.approx(spent_by(1.0), rel=1e-6)
    assert ledger.account("b").epsilon(DELTA) == pytest.approx(spent_by(0.5), rel=1e-6)
    assert (ledger.facts[-1].by, ledger.all(Set)[1].population) == ("an officer", None)
    # To say it again adds nothing.
    before = book(place)
    dpfc_cli.set_population(second, "b", by="another one")
    assert book(place) == before
    # A cap that the set's charges would pass stops it. One where they fit does not.
    written(path, a_cap(1.02, "a"))
    before = book(place)
    refused("over-cap", lambda: dpfc_cli.set_population(second, "a"))
    assert book(place) == before
    written(path, a_cap(1.3, "a", replaces=(read(path).all(Cap)[0].id,)))
    dpfc_cli.set_population(second, "a")
    # What was spent on people who were named once leaves no sum.
    assert [charge.set for charge in read(path).account("b").charges] == [second.manifest.id]
    assert read(path).account("a").epsilon(DELTA) == pytest.approx(spent_by(1.0, 0.5), rel=1e-6)


def test_a_finished_set_is_of_no_other_population_because_its_command_is_typed_again(place: Path) -> None:
    before = kept(place)
    for population in ("a", None):
        made_set(place / "first", range(10), population)
    refused("conflict", lambda: made_set(place / "first", range(10), "b"))
    assert kept(place) == before
    np.savez(place / "raw.npz", train_x=np.eye(9), train_y=np.array(list("abc"))[np.arange(9) % 3])
    for name in "abc":
        (place / "pictures" / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), ord(name), np.uint8)).save(place / "pictures" / name / "1.png")
    makers: list[Callable[..., Any]] = [
        partial(feature_set, place / "raw.npz", place / "imported", classes=[*"abc"]),
        partial(
            extract,
            f"imagefolder:{place / 'pictures'}",
            out=place / "extracted",
            image_size=8,
            pool="mean",
            classes=[*"abc"],
        ),
    ]
    for make in makers:
        make()
        before = kept(place)
        refused("conflict", partial(make, population="b"))
        assert kept(place) == before


def test_what_has_no_guarantee_is_moved_under_no_cap(place: Path) -> None:
    second, path = made_set(place / "second", range(20, 30), "b"), place / "ledger.sqlite"
    written(path, a_charge(second.manifest.id, claim="non-private"), a_cap(3.0, "a"))
    before = book(place)
    refused("over-cap", lambda: dpfc_cli.set_population(second, "a"))
    assert book(place) == before


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_where_the_ledger_is_gone_nothing_is_begun_until_each_set_is_adopted(place: Path, left: str) -> None:
    first, second, path = FeatureSet(place / "first"), made_set(place / "second", range(20, 30), "b"), place / LEDGER
    path.write_bytes(b"")
    if left == "nothing":
        path.unlink()
    before = kept(place)
    refused("missing", lambda: made_set(place / "third", range(30, 40), "a"))
    refused("missing", lambda: dpfc_cli.set_population(first, "a"))
    refused("missing", lambda: dpfc_cli.set_cap(first, 3.0))
    # To look whether it may be written makes a file without a fact.
    assert (kept(place) | {LEDGER: b""}, read(path).facts) == (before | {LEDGER: b""}, ())
    dpfc_cli.set_population(second, "b", adopt=True)
    refused("missing", lambda: made_set(place / "third", range(30, 40), "a"))
    dpfc_cli.set_population(first, None, adopt=True)
    made_set(place / "third", range(30, 40), "a")
    assert read(path).account("a").adopted


def test_a_set_that_the_ledger_lacks_or_that_was_exchanged_is_refused(place: Path, tmp_path: Path) -> None:
    first, ledger = FeatureSet(place / "first"), read(place / "ledger.sqlite")
    assert known_set(ledger, first) == ledger.all(Set)
    elsewhere = made_set(tmp_path / "elsewhere" / "first", range(10), "a")
    shutil.copytree(elsewhere.folder, place / "copy")
    copy = FeatureSet(place / "copy")
    before = kept(place)
    for does in (
        lambda: known_set(ledger, copy),
        lambda: dpfc_cli.set_population(copy, "a"),
        lambda: dpfc_cli.set_cap(copy, 3.0),
    ):
        refused("missing", does)
    # Its id alone does not make it the other one.
    path = copy.folder / "manifest.json"
    said = json.loads(path.read_text())
    said["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps({**said, "id": first.manifest.id}))
    taken = FeatureSet(copy.folder)
    refused("damaged", partial(known_set, ledger, taken))
    refused("damaged", partial(dpfc_cli.set_population, taken, "b"))
    shutil.rmtree(copy.folder)
    # One that is not finished is none.
    first.folder.rename(place / "first.partial")
    refused("missing", lambda: known_set(ledger, FeatureSet(place / "first.partial")))
    (place / "first.partial").rename(first.folder)
    # A copy of the folder is the same set: what is charged for the one is charged for the other.
    shutil.copytree(first.folder, place / "copy")
    assert known_set(ledger, FeatureSet(place / "copy")) == ledger.all(Set)
    shutil.rmtree(place / "copy")
    assert {name for name in before if "copy" not in name} == set(kept(place))


def test_an_adopted_set_has_a_past_that_nobody_knows(place: Path, tmp_path: Path) -> None:
    elsewhere = made_set(tmp_path / "elsewhere" / "second", range(20, 30))
    shutil.copytree(elsewhere.folder, place / "second")
    second, path = FeatureSet(place / "second"), place / "ledger.sqlite"
    refused("exists", lambda: dpfc_cli.set_population(FeatureSet(place / "first"), "a", adopt=True))
    for cap in (a_cap(3.0, "a"), a_cap(3.0)):
        written(path, cap)
        before = book(place)
        refused("over-cap", lambda: dpfc_cli.set_population(second, "a", adopt=True))
        refused("over-cap", lambda: dpfc_cli.set_population(second, None, adopt=True))
        assert book(place) == before
        written(path, a_cap(None, cap.population, replaces=(cap.id,)))
    partial = shutil.copytree(second.folder, place / "second.partial")
    refused("missing", lambda: dpfc_cli.set_population(FeatureSet(partial), None, adopt=True))
    shutil.rmtree(partial)
    dpfc_cli.set_population(second, None, adopt=True, by="an officer")
    ledger = read(path)
    assert ledger.account("a").adopted
    assert ledger.account_of(second.manifest.id).at_least
    refused("over-cap", lambda: dpfc_cli.set_cap(second, 3.0))
    # Wherever it goes, its past goes with it.
    dpfc_cli.set_population(second, "b")
    ledger = read(path)
    assert (ledger.account("a").adopted, ledger.account("b").adopted) == (False, True)
    refused("conflict", lambda: made_set(place / "third", range(20, 30), "a"))


def test_a_set_is_written_down_before_it_has_its_name(place: Path) -> None:
    """A ledger that cannot be written, or that goes meanwhile, stops it. The same command finishes it later."""
    path = place / "ledger.sqlite"
    whole = path.read_bytes()
    source = place.parent / "second.npz"
    np.savez(source, train_x=np.eye(4, dtype=np.float32), train_y=np.arange(4) % 2)

    def breaks(*given: Any) -> None:
        path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))

    def goes(*given: Any) -> None:
        path.unlink(missing_ok=True)

    for name, code, progress in (("second", "damaged", breaks), ("third", "missing", goes)):
        refused(code, partial(feature_set, source, place / name, classes=("a", "b"), progress=progress))
        assert not (place / name).exists()
        path.write_bytes(whole)
    path.write_bytes(whole)
    made = feature_set(source, place / "second", classes=("a", "b"))
    assert known_set(read(path), made)
    assert a_set(set=made.manifest.id).set in read(path).sets


Undo = Callable[[FeatureSet], object]


def moved_back(features: FeatureSet) -> None:
    """As a kill between the renaming and the tidying leaves it, or somebody who knows what to move."""
    partial = features.folder.rename(features.folder.with_name(f"{features.folder.name}.partial"))
    for shard in partial.glob("*.h5"):
        shard.unlink()


UNDONE: dict[str, Undo] = {
    "moved back": moved_back,
    "deleted": lambda features: shutil.rmtree(features.folder),
    "copied": lambda features: shutil.copytree(features.folder, features.folder.with_name("copy")),
    "registered": lambda features: register(features.folder, features.manifest, None),
    "registered otherwise": lambda features: register(features.folder, features.manifest, "b"),
}


@pytest.mark.parametrize("undo", UNDONE.values(), ids=UNDONE)
@pytest.mark.parametrize("adopted", [False, True])
def test_what_was_said_of_a_set_and_spent_on_it_stays(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undo: Undo, adopted: bool
) -> None:
    path, numbers = place / LEDGER, range(20, 30)
    if adopted:
        shutil.copytree(made_set(tmp_path / "elsewhere" / "second", numbers).folder, place / "second")
        second = FeatureSet(place / "second")
        dpfc_cli.set_population(second, "a", adopt=True)
        written(path, a_charge(second.manifest.id))
    else:
        second = made_set(place / "second", numbers, "a")
        written(path, a_cap(1.2, "a"), a_charge(second.manifest.id))
    before = read(path).account("a")
    undo(second)
    for population in (None, "b"):
        with suppress(UserError):
            second = made_set(place / "second", numbers, population)
        for folder in ("second", "copy"):
            with suppress(UserError):
                dpfc_cli.set_population(FeatureSet(place / folder), "b")
    after = read(path).account("a")
    assert (after.used("record"), after.adopted) == (before.used("record"), adopted)
    if not adopted:
        refused("over-cap", lambda: caps.check(read(path), a_charge(FeatureSet(place / "first").manifest.id)))


def some_records(folder: Path) -> range:
    """Those of a set: other ones for each name and each place."""
    first = 10 * (folder.name == "x") + 20 * (folder.parent.name == "here")
    return range(first, first + 6)


def changed_somehow(draw: random.Random, here: Path, there: Path) -> bool:
    """Do what somebody may do with sets and their ledger. Whether it said whose a set is of which nothing was said."""
    name, whose = draw.choice(("x", "y")), draw.choice((None, "a", "b"))
    folder, facts = here / name, read(here / LEDGER).facts
    kind = draw.choice(("make", "make", "back", "copy", "bring", "delete", "say", "charge", "charge", "merge"))
    with suppress(UserError, OSError):
        if kind == "make":
            made_set(folder, some_records(folder), whose)
        elif kind == "back":
            moved_back(FeatureSet(folder))
            made_set(folder, some_records(folder), whose)
        elif kind == "copy":
            shutil.copytree(here / "x", folder)
        elif kind == "bring":
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(there / name, folder)
            dpfc_cli.set_population(FeatureSet(folder), whose, adopt=True)
        elif kind == "delete":
            UNDONE["deleted"](FeatureSet(folder))
        elif kind == "say":
            dpfc_cli.set_population(FeatureSet(folder), whose)
        elif kind == "charge":
            known_set(read(here / LEDGER), FeatureSet(folder))
            written(here / LEDGER, a_charge(FeatureSet(folder).manifest.id))
        else:
            merge_ledgers(here, there, apart=["a", "b"])
    said = [fact for fact in facts if isinstance(fact, Set)]
    new = [fact.set for fact in read(here / LEDGER).facts[len(facts) :] if isinstance(fact, Set)]
    return bool(new) and kind != "merge" and not any(fact.population for fact in said if fact.set in new)


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.randoms(use_true_random=False))
def test_whatever_is_done_no_total_falls_but_of_those_who_were_not_named(
    tmp_path_factory: pytest.TempPathFactory, draw: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("p")
    places = folder / "here", folder / "there"
    for place in places:
        written(place / LEDGER, a_charge(made_set(place / "x", some_records(place / "x"), "a").manifest.id))
    for _ in range(20):
        here, there = places if draw.random() < 0.7 else places[::-1]
        before = {name: read(here / LEDGER).account(name) for name in "ab"}
        first = changed_somehow(draw, here, there)
        for name, was in before.items():
            now = read(here / LEDGER).account(name)
            assert first or (now.used("record"), now.adopted) >= (was.used("record"), was.adopted)


def test_a_link_to_a_set_with_a_ledger_elsewhere_is_in_nobodys_way(place: Path, tmp_path: Path) -> None:
    (place / "link").symlink_to(made_set(tmp_path / "elsewhere" / "second", range(10)).folder)
    made_set(place / "third", range(20, 30))
    assert names(place) == ["a", None]
