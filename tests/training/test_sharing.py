"""Sets that share some records: what is spent on one of them counts for the records that are in both."""

import hashlib
import io
import json
import math
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dpfc_cli import backbones
from dpfc_cli.errors import UserError
from dpfc_cli.extraction import extract
from dpfc_cli.features import digests, shards
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.sources.digests import digest_of
from dpfc_cli.training import account as accounts
from dpfc_cli.training import cap as caps
from dpfc_cli.training import charge as charging
from dpfc_cli.training import ledger, limit, other_ledgers, sharing
from dpfc_cli.training.account import Account, account_of
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.charge import charge, pay
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request, facts_of
from dpfc_cli.training.sharing import beside
from dpfc_cli.training.told import share_records
from dpfc_cli.training.train import finish, train
from tests.support import blobs
from tests.test_extraction import Means
from tests.training.test_cap import meanwhile

DELTA = 1e-3


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.delenv(variable, raising=False)
    # What a backbone makes of a picture does not matter here.
    monkeypatch.setattr(backbones, "load", lambda *given, **named: Means())


def of(
    name: str,
    numbers: Iterable[int],
    *,
    test: Iterable[int] = (),
    kind: Any = "file",
    persons: bool = False,
    part: bool = False,
) -> FeatureSet:
    """A set of these records, as an extraction makes it. A record is a number, and is made of its decimal digits.

    test: those of its test split. kind: of its digests; None: as earlier versions made it. part: the source has more
    records than these.
    """
    known = {"train": list(numbers), "test": list(test)}
    known = {split: some for split, some in known.items() if some}
    listing = {
        split: hashlib.sha256(f"whole {split}".encode() if part else repr(some).encode()).hexdigest()
        for split, some in known.items()
    }
    groups = {split: np.arange(len(some)) // 2 for split, some in known.items()} if persons else None
    identity: dict[str, Any] = {"listing": listing}
    identity |= {"groups": dict.fromkeys(known, "0" * 64)} if persons else {}
    manifest = Manifest(
        classes=("a", "b"),
        dim=2,
        dtype="float32",
        labels_per_record=1,
        origin="asserted",
        splits={},
        backbone={"name": "imported"},
        source={"dataset": "numbers", "identity": identity},
        grouped_by={"by": "folder", "level": 1} if persons else None,
    )
    shape: dict[str, Any] = {"dim": 2, "dtype": "float32", "labels_per_record": 1}
    rows = {split: len(some) for split, some in known.items()}
    made = FeatureWriter(
        Path("features", name), rows=rows, identity=identity, shards=2, groups=groups, kind=kind, **shape
    )
    with closing(made):
        for planned in made.missing:
            some = known[planned.split][planned.start : planned.stop]
            found = np.array([0 if i < 0 else digest_of(str(i).encode()) for i in some], np.uint64)
            with made.shard(planned) as sink:
                x = np.array([(i % 7, i % 5) for i in some], float)
                sink.append(x, np.array(some) % 2, digests=None if kind is None else found)
        made.finish(manifest)
    return FeatureSet(Path("features", name))


def ready(features: FeatureSet, epsilon: float = 1.0, **changed: Any) -> Checked:
    """A training that is checked and not charged yet."""
    privacy = changed.pop("privacy", Privacy(epsilon=epsilon, delta=DELTA))
    request = Request(features=features, folder=Path("heads"), privacy=privacy, **changed)
    given = {} if privacy.claim == "non-private" else {"steps": 2}
    return check(request, calibrate(request.chosen, request.facts, given, request.privacy), Observer())


def account(features: FeatureSet, **more: Any) -> Account:
    return account_of(ledger_path(features.folder), features.folder, **more)


def spent(*epsilons: float) -> Any:
    """What trainings of these ε cost together at δ."""
    return pytest.approx(epsilon_for(math.hypot(*(mu_for(each, DELTA) for each in epsilons)), DELTA), rel=1e-6)


def evaluated(features: FeatureSet, epsilon: float, split: str = "test") -> None:
    """A private evaluation of some head on records of a split, charged and not made."""
    request = Request(features=features, folder=Path("heads"), privacy=Privacy(epsilon=epsilon, delta=DELTA))
    planned = calibrate(request.chosen, facts_of(features, split=split), {"steps": 2}, request.privacy)
    pay(planned, features, split, "some.safetensors", "me")


def over(features: FeatureSet) -> bool:
    """Whether more is spent on some of the records than a cap allows."""
    known = account(features)
    return any(known.room(cap) < 0 for _, cap in known.in_force)


def total(features: FeatureSet) -> float:
    return account(features).epsilon(DELTA)


# Which records are the same


def draw(path: Path, number: int) -> bytes:
    """A picture that follows from a number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return path.read_bytes()


def pictures(folder: str, numbers: Iterable[int], named: str = "{}.png") -> Path:
    for i in numbers:
        draw(Path(folder, "ab"[i % 2], named.format(i)), i)
    return Path(folder)


def features_of(source: str, name: str, **options: Any) -> FeatureSet:
    classes = options.pop("classes", ("a", "b"))
    made = extract(source, out=name, classes=classes, image_size=8, pool="mean", **options)
    assert made.features is not None
    return made.features


def grown() -> FeatureSet:
    return features_of(f"imagefolder:{pictures('more', range(15))}", "other")


def a_part() -> FeatureSet:
    return features_of(f"imagefolder:{pictures('fewer', range(3, 9))}", "other")


def held_out() -> FeatureSet:
    made = features_of(f"imagefolder:{pictures('more', range(15))}", "other", hold_out=0.4)
    assert made.splits == {"train": 9, "test": 6}
    return made


def limited() -> FeatureSet:
    return features_of(f"imagefolder:{pictures('more', range(15))}", "other", limit=5)


def renamed() -> FeatureSet:
    """Other names, other classes, other folders: the pictures are the same."""
    for i in range(12):
        draw(Path("renamed", "xyz"[i % 3], f"picture-{99 - i}.png"), i)
    return features_of("imagefolder:renamed", "other", classes=("x", "y", "z"))


def packed() -> FeatureSet:
    with tarfile.open("train.tar", "w") as archive:
        for i in range(4, 15):
            for name, data in ((f"{i}.png", draw(Path("tmp.png"), i)), (f"{i}.cls", str(i % 2).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return features_of("webdataset:train.tar", "other")


def tabled() -> FeatureSet:
    rows = [{"image": {"bytes": draw(Path("tmp.png"), i), "path": None}, "label": i % 2} for i in range(4, 15)]
    pq.write_table(pa.Table.from_pylist(rows), "train.parquet")
    return features_of("parquet:train.parquet", "other")


def of_persons() -> FeatureSet:
    for i in range(15):
        draw(Path("patients", "ab"[i % 2], f"patient{i % 4}", f"{i}.png"), i)
    return features_of("imagefolder:patients", "other", group_by="folder:1")


@pytest.mark.parametrize(
    ("made", "both"),
    [
        *[(grown, 12), (a_part, 6), (held_out, None), (limited, None), (renamed, 12)],
        *[(packed, 8), (tabled, 8), (of_persons, 12)],
    ],
)
def test_the_same_pictures_are_recognised(made: Callable[[], FeatureSet], both: int | None) -> None:
    """Whatever they are called, and wherever they lie: their contents count, which are read anyway."""
    first = features_of(f"imagefolder:{pictures('photos', range(12))}", "first")
    charge(ready(first))
    other = made()
    assert ledger.records_of(other.manifest) != ledger.records_of(first.manifest)
    (share,) = account(other).shared.shares
    assert (share.name, len(share.entries)) == ("first", 1)
    assert share.records is not None
    if both is None:
        # How many of the first twelve are among the training pictures.
        inside = {digest_of(path.read_bytes()) for path in Path("photos").rglob("*.png")}
        (section, *_) = digests.stored_in(other.folder / digests.FILE)
        both = len(inside & {int(each) for each in section.read()})
        assert 0 < both < 12
    assert share.records == both
    assert account(other).not_counted == ()
    charge(ready(other, epsilon=0.5))
    assert total(first) > 1.0
    if not other.manifest.grouped:
        assert total(first) == total(other) == spent(1.0, 0.5)


def test_pictures_that_were_encoded_anew_are_not_recognised() -> None:
    """Nothing tells that they are the same. This is what `share_records` is for."""
    first = features_of(f"imagefolder:{pictures('photos', range(12))}", "first")
    charge(ready(first))
    for path in pictures("photos", range(12)).rglob("*.png"):
        anew = Path("again", path.parent.name, f"{path.stem}.bmp")
        anew.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(anew)
    again = features_of("imagefolder:again", "other")
    assert account(again).entries == []
    share_records(again, [first])
    assert total(again) == spent(1.0)


def test_an_extraction_that_was_stopped_goes_on_with_the_digests_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"imagefolder:{pictures('photos', range(12))}"
    whole = features_of(place, "whole", shards=3).folder / digests.FILE
    real, calls = shards.ShardSink.append, list[int]()

    def stopping(*given: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardSink, "append", stopping)
        with pytest.raises(KeyboardInterrupt):
            features_of(place, "stopped", shards=3)
    stopped = features_of(place, "stopped", shards=3).folder
    assert (stopped / digests.FILE).read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in stopped.iterdir()) == sorted(path.name for path in whole.parent.iterdir())


def test_a_set_that_an_earlier_version_began_has_no_digests_and_notes_that_are_damaged_are_refused() -> None:
    def shard_with(note: bytes | None) -> FeatureSet:
        """One of two shards has this note of digests."""
        real = digests.note

        def other(path: Path, parts: Any) -> None:
            real(path, parts)
            if "00000-of" in path.name:
                path.unlink() if note is None else path.write_bytes(note)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(digests, "note", other)
            return of("a", range(8))

    for note in (b"", b"1234567", bytes(40)):
        with pytest.raises(UserError, match="the notes beside its shards cannot be read"):
            shard_with(note)
        shutil.rmtree("features/a.partial")
    assert not (shard_with(None).folder / digests.FILE).exists()


def test_packed_pictures_are_recognised_by_their_values() -> None:
    features = extract("digits", out="digits", limit=300).features
    assert features is not None
    train, test = digests.stored_in(features.folder / digests.FILE)
    assert (train.section.kind, train.section.count, test.section.count) == ("pixels", 300, 300)
    again = extract("digits", out="again", pool="mean").features
    assert again is not None
    both = digests.stored_in(again.folder / digests.FILE)[0]
    assert digests.common(train, [both]).keys() == {1}


def test_a_larger_import_is_recognised_by_its_rows_and_one_that_has_none_of_them_is_named() -> None:
    x, y = blobs(50, 3, 2)
    for name, rows, dtype in (
        ("a", slice(0, 30), np.float16),
        ("b", slice(20, 50), np.float64),
        ("c", slice(30, 50), None),
    ):
        values = x[rows].astype(np.float16)
        np.savez(f"{name}.npz", train_x=values if dtype is None else values.astype(dtype), train_y=1 - y[rows])
        import_features(f"{name}.npz", name, classes=("a", "b"))
    a, b, c = (FeatureSet(Path("features", name)) for name in "abc")
    charge(ready(a))
    assert (account(b).shared.shares[0].records, total(b)) == (10, spent(1.0))
    # Another backbone makes other rows of the same pictures, so nothing is known.
    assert (account(c).entries, account(c).not_counted) == ([], ("a",))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=30), min_size=1, max_size=4), st.integers(1, 7))
def test_patterns_are_those_of_sets(
    tmp_path_factory: pytest.TempPathFactory, sets: list[list[int]], block: int
) -> None:
    """Block by block as all at once, and whichever records are there twice. 0 is no record."""
    path = tmp_path_factory.mktemp("d") / "f"
    digests.write(
        path, [digests.section_of(f"{i}", "train", "file", np.array(s, np.uint64)) for i, s in enumerate(sets)]
    )
    own, *others = digests.stored_in(path)
    expected: dict[int, int] = {}
    for each in set(sets[0]) - {0}:
        pattern = sum(1 << bit for bit, other in enumerate(sets[1:]) if each in other)
        expected[pattern] = expected.get(pattern, 0) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK", block)
        assert digests.common(own, others) == expected


# What the files show, and to whom


def test_digests_are_for_their_owner_alone_and_their_size_says_how_many_records_there_are() -> None:
    """Not how many of them are the same, or could not be read."""
    one, other = of("one", range(8)), of("two", [3, 3, 3, 3, -1, -1, 4, 5])
    for features in (one, other):
        charge(ready(features))
    for place in (lambda each: each.folder / digests.FILE, lambda each: beside(ledger_path(each.folder))):
        paths = [place(each) for each in (one, other)]
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
        assert len({path.stat().st_size for path in paths}) == 1
    assert account(one).shared.shares[0].records == 3


def test_who_opens_the_digests_of_a_set_to_a_team_opens_those_beside_its_ledger_too() -> None:
    one = of("one", range(8))
    (one.folder / digests.FILE).chmod(0o660)
    charge(ready(one))
    path = beside(ledger_path(one.folder))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    path.chmod(0o640)
    shutil.rmtree("features/one")
    charge(ready(of("one", range(8, 12))))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_of_sets_whose_digests_are_not_open_to_us_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = of("one", range(8)), of("other", range(4, 12))
    charge(ready(one))
    closed = beside(ledger_path(one.folder))
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    assert (account(other).entries, account(other).not_counted) == ([], ("one",))


def test_head_card_and_row_are_the_same_whatever_sets_share() -> None:
    """Heads are handed over. What other sets hold is a fact about records."""
    seen = []
    for place, numbers in (("apart", range(100, 110)), ("sharing", range(5, 15))):
        Path(place).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            charge(ready(of("other", numbers), 0.3))
            features = of("own", range(10))
            done = finish(ready(features, privacy=Privacy(epsilon=1.0, delta=DELTA, seed=1), by="me"), Observer())
            card = {name: value for name, value in done.head.card.items() if name != "date"}
            row = replace(account(features).own[0], at="", sha256=None)
            names = sorted(str(path) for path in Path("features").rglob("*"))
            seen.append((card, done.head.weight.tobytes(), row, names))
    assert seen[0] == seen[1]


def test_no_digest_is_said_anywhere() -> None:
    one, other = of("one", range(8)), of("other", range(4, 12))
    charge(ready(one))
    said = json.dumps(account(other).to_json((DELTA,))) + repr(account(other).warning)
    for i in range(12):
        assert str(digest_of(str(i).encode())) not in said
        assert f"{digest_of(str(i).encode()):016x}" not in said


# What counts


def test_the_account_is_that_of_the_record_that_the_trainings_cost_most() -> None:
    sets = {"a": range(10), "b": range(5), "c": range(5, 12), "d": range(4, 6), "e": range(20, 30)}
    made = {name: of(name, numbers) for name, numbers in sets.items()}
    cost = {"a": 1.0, "b": 0.5, "c": 0.7, "d": 0.2, "e": 5.0}
    for name, epsilon in cost.items():
        charge(ready(made[name], epsilon))

    def largest(name: str) -> float:
        """Record by record."""
        of_record = [[cost[other] for other in sets if i in sets[other]] for i in sets[name]]
        return max(epsilon_for(math.hypot(*(mu_for(each, DELTA) for each in some)), DELTA) for some in of_record)

    for name in sets:
        assert total(made[name]) == pytest.approx(largest(name), rel=1e-6)
        assert account(made[name]).exact
        assert account(made[name]).not_counted == ()
    # Record 4 is in b and d, record 5 in c and d, and none is in b and c.
    assert total(made["a"]) == spent(1.0, 0.7, 0.2)
    assert {share.name: share.records for share in account(made["a"]).shared.shares} == {"b": 5, "c": 5, "d": 2}


def test_rows_about_a_source_count_whichever_ledger_has_its_digests() -> None:
    """A copy of a set was charged by an earlier version, or its test records were: no digests lie beside these rows."""
    one, b, c = of("one", range(10)), of("b", range(5, 15)), of("c", range(5))
    shutil.copytree("features/b", "features/copy")
    (Path("features/copy") / digests.FILE).unlink()
    copy = FeatureSet(Path("features/copy"))
    for features, epsilon in ((b, 0.5), (c, 0.7), (copy, 0.3)):
        charge(ready(features, epsilon))
    assert not beside(ledger_path(copy.folder)).exists()
    assert total(one) == spent(0.7)
    charge(ready(copy, 1.0))
    assert total(one) == spent(0.5, 0.3, 1.0)
    (row,) = account(c).own
    ledger.charge(ledger_path(c.folder), replace(row, split="test"))
    assert {share.name for share in account(one).shared.shares} == {"b", "c", "copy"}
    # Which test records those are is not known, so they may be any.
    assert total(one) == spent(0.5, 0.3, 1.0, 0.7)


def test_sets_that_have_nothing_in_common_are_not_said_and_those_of_which_nothing_is_known_are() -> None:
    made = [
        of("one", range(8)),
        of("two", range(8, 16)),
        of("old", range(4), kind=None),
        of("packed", range(30, 38), kind="pixels"),
    ]
    for features in made[:2]:
        charge(ready(features))
        assert account(features).not_counted == ()
    for features in made[2:]:
        charge(ready(features))
    assert [account(each).not_counted for each in made] == [
        *[("old", "packed")] * 2,
        ("one", "packed", "two"),
        ("old", "one", "two"),
    ]


def test_a_ledger_that_outlives_its_set_knows_its_records_still() -> None:
    one, other = of("one", range(8)), of("other", range(4, 12))
    charge(ready(one))
    shutil.rmtree("features/one")
    assert total(other) == spent(1.0)
    # It is made again, of other pictures. Its ledger has rows of both.
    charge(ready(of("one", range(20, 28)), 0.5))
    assert total(other) == spent(1.0)
    assert total(of("third", range(22, 24))) == spent(0.5)
    # Whoever asks by the ledger alone gets the same.
    charge(ready(other, 0.2))
    shutil.rmtree("features/other")
    assert account_of(Path("features/other.ledger.sqlite").absolute()).epsilon(DELTA) == spent(1.0, 0.2)


def test_a_ledger_that_is_gone_while_its_digests_are_there_is_told_if_they_share_records() -> None:
    one, other, apart = of("one", range(8)), of("other", range(4, 12)), of("apart", range(50, 58))
    charge(ready(one))
    ledger_path(one.folder).unlink()
    assert "The ledger of one is gone" in str(account(other).warning)
    assert "The ledger of one is gone" in str(account(one).warning)
    assert (account(apart).warning, account(apart).not_counted) == (None, ())
    assert account(of("old", range(3), kind=None)).not_counted == ("one",)


def test_another_part_of_a_source_adds_to_what_is_known_of_it() -> None:
    """A row of a ledger says which source was charged, and not which part of it."""
    charge(ready(of("one", range(8), part=True)))
    shutil.rmtree("features/one")
    charge(ready(of("one", range(6, 10), part=True)))
    (kept,) = digests.stored_in(beside(Path("features/one.ledger.sqlite")))
    assert kept.section.count == 12
    charge(ready(FeatureSet(Path("features/one"))))
    assert digests.stored_in(beside(Path("features/one.ledger.sqlite"))) == (kept,)
    assert account(of("low", range(2))).private == account(of("high", range(9, 11))).private == 3


# Files of digests that are damaged


def cut(data: bytes) -> bytes:
    return data[:-8]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": cut,
    "longer": lambda data: data + bytes(8),
    "a digest": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "the header": lambda data: data.replace(b'"train"', b'"test"'),
    "another kind": lambda data: data.replace(b'"file"', b'"pixels"'),
    "no header": lambda data: data[:80],
    "another format": lambda data: data.replace(b"digests 1", b"digests 2"),
}


@pytest.mark.parametrize("which", ["one", "other"])
def test_a_file_of_digests_that_is_damaged_is_refused_and_nothing_is_charged(which: str) -> None:
    """Whether it is that of the set itself or of another one: what is spent would not be known."""
    one, other = of("one", range(8)), of("other", range(4, 12))
    for features in (one, other):
        charge(ready(features))
    planned = ready(other)
    path = beside(Path(f"features/{which}.ledger.sqlite"))
    whole = path.read_bytes()
    for damage in DAMAGE.values():
        assert damage(whole) != whole
        path.write_bytes(damage(whole))
        for asked in (lambda: account(other), lambda: charge(planned), lambda: set_cap(other, 9.0)):
            with pytest.raises(UserError, match=r"ledger\.digests' is damaged") as refused:
                asked()
            assert (refused.value.code, refused.value.fields["path"]) == ("damaged", str(path.absolute()))
    path.write_bytes(whole)
    assert len(account(other).own) == 1
    # Without it nothing is known of these records.
    path.unlink()
    assert account(other).not_counted == (() if which == "other" else ("one",))


# Caps


def test_a_cap_holds_for_each_record_whichever_set_was_trained_on() -> None:
    a, low, high, apart = of("a", range(10)), of("low", range(6)), of("high", range(6, 20)), of("apart", range(20, 30))
    set_cap(a, 2.0, delta=DELTA)
    charge(ready(low, 1.5))
    with pytest.raises(UserError, match=r"epsilon = 2 at delta = 0\.001 for a") as refused:
        ready(low, 1.5)
    assert refused.value.code == "over-cap"
    # No record is in both.
    charge(ready(high, 1.5))
    for epsilon in (9.0, 9.0):
        charge(ready(apart, epsilon))
    fits = account(a).fitting(DELTA)
    assert fits == account(low).fitting(DELTA) == refused.value.fields["fits"]
    assert fits is not None
    with pytest.raises(UserError, match="does not fit"):
        ready(a, fits + 0.01)
    charge(ready(a, fits))
    for features in (a, low, high):
        assert not over(features)
        with pytest.raises(UserError, match="does not fit"):
            ready(features, 0.1)
    assert account(apart).in_force == []


def test_a_cap_that_other_sets_have_passed_already_is_refused() -> None:
    a, b, c = of("a", range(10)), of("b", range(5)), of("c", range(5, 10))
    charge(ready(b, 1.0))
    charge(ready(c, 1.5))
    with pytest.raises(UserError, match="would promise what is not true") as refused:
        set_cap(a, 1.4, delta=DELTA)
    assert refused.value.fields["least"] == 1.5
    set_cap(a, 1.5, delta=DELTA)
    assert account(a).fitting(DELTA) == 0
    # For b there is more, because its records are not those of c.
    left = math.sqrt(mu_for(1.5, DELTA) ** 2 - mu_for(1.0, DELTA) ** 2)
    assert account(b).fitting(DELTA) == pytest.approx(epsilon_for(left, DELTA), rel=1e-3)


def test_trainings_that_no_cap_can_be_kept_with_are_refused_where_records_are_shared() -> None:
    a, b = of("a", range(10)), of("b", range(9, 12))
    set_cap(a, 2.0, delta=DELTA)
    for privacy in (Privacy(), Privacy(epsilon=1.0, delta=DELTA, seed=1)):
        with pytest.raises(UserError, match="These records have a cap"):
            ready(b, privacy=privacy)


def ignored(patch: pytest.MonkeyPatch) -> None:
    """Caps and trainings of sets that share records are not looked at."""
    patch.setattr(accounts, "shared", lambda *given, **named: sharing.Shared())


def not_kept(patch: pytest.MonkeyPatch) -> None:
    """The digests are put beside the ledger after its first row. So a first training is not seen by another one."""
    real, charged = sharing.keep, ledger.charge
    patch.setattr(charging, "keep", lambda *given: None)

    def late(path: Path, *given: Any) -> Any:
        receipt = charged(path, *given)
        real(path, path.with_name(path.name.removesuffix(".ledger.sqlite")))
        return receipt

    patch.setattr(ledger, "charge", late)


def not_locked(patch: pytest.MonkeyPatch) -> None:
    """The ledgers of sets that share records are read, and not locked."""
    real = sharing.shared

    def unlocked(*given: Any, **named: Any) -> sharing.Shared:
        return replace(real(*given, **named), ledgers=frozenset(), sources=frozenset())

    patch.setattr(accounts, "shared", unlocked)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No fault."""


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        *[("a", "b", fault) for fault in (nothing, ignored, not_locked)],
        *[("b", "a", fault) for fault in (nothing, ignored, not_locked)],
        *[("b", "c", fault) for fault in (nothing, ignored, not_locked)],
    ],
)
def test_two_trainings_on_sets_that_share_records_never_pass_a_cap_together_unless_a_fault_is_planted(
    first: str, second: str, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap is set for `a`. `b` and `c` have no ledger yet. The second training is charged while the first one is."""
    sets = {"a": of("a", range(10)), "b": of("b", range(5, 15)), "c": of("c", range(9, 20))}
    set_cap(sets["a"], 1.5, delta=DELTA)
    one, other = ready(sets[first], 1.2), ready(sets[second], 1.2)
    with monkeypatch.context() as patch:
        fault(patch)
        seen = meanwhile(patch, limit, "check", lambda: charge(other))
        charge(one)
    passes = fault is not nothing
    assert seen == ["done" if passes else "busy"]
    assert over(sets["a"]) == passes
    if not passes:
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


@pytest.mark.parametrize("fault", [nothing, not_kept])
def test_a_cap_and_the_first_training_of_a_set_that_shares_records_do_not_miss_each_other(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ledger exists. Each of the two must see the digests that the other one has just put down."""
    a, b = of("a", range(10)), of("b", range(9, 20))
    other = ready(b, 1.2)
    with monkeypatch.context() as patch:
        fault(patch)
        if fault is not_kept:
            patch.setattr(caps, "keep", lambda *given: None)
        seen = meanwhile(patch, caps, "_check", lambda: charge(other), skip=1)
        set_cap(a, 1.0, delta=DELTA)
    assert seen == ["done" if fault is not_kept else "busy"]
    if fault is nothing:
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


# All splits


def test_a_cap_holds_for_pictures_of_a_test_split_that_another_set_trains_on() -> None:
    """`bigger` has all test records of `whole`, and one more. The digests beside the ledger tell it for good."""
    whole, bigger = of("whole", range(10), test=range(20, 30)), of("bigger", range(20, 31))
    set_cap(whole, 1.0, delta=DELTA)
    for gone in (False, True):
        if gone:
            shutil.rmtree("features/whole")
        with pytest.raises(UserError, match=r"epsilon = 1 at delta = 0\.001 for whole") as refused:
            ready(bigger, 3.0)
        assert refused.value.code == "over-cap"
        assert [(share.name, share.records) for share in account(bigger).shared.shares] == [("whole", 10)]
    charge(ready(bigger, 0.8))
    assert account(of("unrelated", range(50, 60))).in_force == []


def test_a_cap_holds_for_a_set_whose_records_are_exactly_the_test_split_of_the_capped_one() -> None:
    """Also if there are no digests: both have one listing. Only the digests tell it once the set is gone."""
    for kind, numbers in ((None, 0), ("file", 100)):
        whole = of(f"whole{kind}", range(numbers, numbers + 10), test=range(numbers + 20, numbers + 30), kind=kind)
        other = of(f"other{kind}", range(numbers + 20, numbers + 30), kind=kind)
        set_cap(whole, 1.0, delta=DELTA)
        with pytest.raises(UserError, match="does not fit under the cap"):
            ready(other, 3.0)
        charge(ready(other, 0.6))
        with pytest.raises(UserError, match="does not fit"):
            evaluated(whole, 0.9)
        assert account(whole).private == 0
        assert account(whole, split="test").epsilon(DELTA) == spent(0.6)
        if kind is not None:
            shutil.rmtree(whole.folder)
            with pytest.raises(UserError, match="does not fit under the cap"):
                ready(other, 0.9)


def test_a_training_on_a_test_split_of_another_set_waits_for_a_cap_that_is_being_set_there() -> None:
    """Without digests the listing alone tells it. The other ledger has trainings on its training records alone."""
    whole, other = of("whole", range(10), test=range(20, 30), kind=None), of("other", range(20, 30), kind=None)
    charge(ready(whole, 0.5))
    assert account(other).ledgers == {ledger_path(whole.folder).resolve()}
    assert account(other).entries == []


def test_a_cap_that_was_set_for_another_version_of_a_set_is_not_replaced_for_others() -> None:
    """The ledger has two caps, each for records that another set has. Each of them stays in force for that set."""
    set_cap(of("one", range(10), test=range(20, 30)), 1.0, delta=DELTA)
    shutil.rmtree("features/one")
    set_cap(of("one", range(40, 50), test=range(60, 70)), 5.0, delta=DELTA)
    for numbers in (range(9, 12), range(29, 32), range(20, 30)):
        with pytest.raises(UserError, match="epsilon = 1 at"):
            ready(of(f"other{numbers}", numbers), 1.1)
    charge(ready(of("later", range(49, 52)), 4.5))


def test_a_test_split_that_another_set_trained_on_counts_for_its_evaluation() -> None:
    whole, bigger = of("whole", range(10), test=range(20, 30)), of("bigger", range(20, 31))
    charge(ready(bigger, 1.0))
    evaluated(whole, 0.5)
    assert account(whole, split="test").epsilon(DELTA) == total(bigger) == spent(1.0, 0.5)
    assert (total(whole), account(whole).not_counted) == (0.0, ())
    with pytest.raises(UserError, match="would promise what is not true"):
        set_cap(whole, 1.0, delta=DELTA)


def test_what_is_in_two_splits_counts_in_both_accounts() -> None:
    """Five records are in both splits of `a`, and `b` is its test split. The cap holds for them, too."""
    a, b = of("a", range(10), test=range(5, 15)), of("b", range(5, 15))
    set_cap(a, 1.0, delta=DELTA)
    charge(ready(b, 0.9))
    with pytest.raises(UserError, match="does not fit under the cap"):
        ready(a, 0.9)
    alone = of("alone", range(30, 40), test=range(39, 45))
    charge(ready(alone, 0.5))
    evaluated(alone, 0.6)
    for split in ("train", "test"):
        assert account(alone, split=split).epsilon(DELTA) == spent(0.5, 0.6)


def test_a_picture_that_is_in_what_was_held_out_and_in_the_rest_counts_in_both_accounts() -> None:
    """There, both splits have one listing."""
    for i in range(12):
        draw(Path("photos", "ab"[i % 2], f"{i}.png"), i % 4)
    held = features_of("imagefolder:photos", "held", hold_out=0.4)
    train_digests, test_digests = digests.stored_in(held.folder / digests.FILE)
    assert 1 in digests.common(train_digests, [test_digests])
    charge(ready(held, 0.5))
    evaluated(held, 0.6)
    for split in held.splits:
        assert account(held, split=split).epsilon(DELTA) == spent(0.5, 0.6)


def test_persons_are_in_one_split_also_if_two_of_them_have_the_same_picture() -> None:
    held = of("held", range(10), test=range(9, 19), persons=True)
    charge(ready(held, 0.5))
    evaluated(held, 0.6)
    assert total(held) == spent(0.5)
    assert account(held, split="test").epsilon(DELTA) == spent(0.6)


def test_an_evaluation_makes_a_set_no_more_doubtful_than_its_training() -> None:
    whole = of("whole", range(10), test=range(20, 30))
    charge(ready(whole, 0.5))
    evaluated(whole, 0.5)
    assert account(of("unrelated", range(50, 60))).not_counted == ()


def test_what_is_said_of_a_set_is_said_of_all_its_splits() -> None:
    a, b = of("a", range(10), test=range(20, 30)), of("b", range(40, 50), test=range(60, 70))
    share_records(b, [a])
    for features, epsilon in ((a, 0.5), (b, 0.6)):
        evaluated(features, epsilon)
    assert total(a) == spent(0.6)
    assert total(b) == spent(0.5)
    assert account(a, split="test").epsilon(DELTA) == account(b, split="test").epsilon(DELTA) == spent(0.5, 0.6)
    assert [each.name for each in account(a, split="test").overlaps] == ["a"]


def test_a_source_is_not_known_by_the_digests_of_a_part_of_it() -> None:
    """`full` has no digests, and has rows of the whole source. What `part` has of it says nothing of the rest."""
    full, apart = of("full", range(10), kind=None, part=True), of("apart", range(5, 10))
    charge(ready(full, 1.0))
    assert account(apart).not_counted == ("full",)
    part = of("part", range(4), part=True)
    charge(ready(part, 0.5))
    assert account(apart).not_counted == ("full",)
    # Records of the part may be in `full`, and so may all others that `near` has.
    near, other = of("near", range(3, 20)), of("beyond", range(10, 20))
    charge(ready(other, 0.7))
    assert total(near) == spent(1.0, 0.7)


def test_where_digests_of_two_kinds_are_known_all_is_added_up() -> None:
    """The set was made again with other digests. Which of them are of one record is not known."""
    charge(ready(of("own", range(10)), 0.5))
    shutil.rmtree("features/own")
    own = of("own", range(10), kind="pixels")
    for other, epsilon in ((of("s", range(5, 15)), 0.6), (of("t", range(3, 8), kind="pixels"), 0.7)):
        charge(ready(other, epsilon))
    charge(ready(own, 0.4))
    assert total(own) == spent(0.5, 0.6, 0.7, 0.4)
    assert account(own).shared.summed


# Persons


def test_persons_of_another_source_are_other_persons() -> None:
    """What is known is which records are in both. For one of them a training for persons counts with twice its μ."""
    one, larger = of("one", range(8), persons=True), of("larger", range(14), persons=True)
    charge(ready(one, 0.5))
    assert (account(one).unit, account(one).exact) == ("person", True)
    charge(ready(larger, 0.3))
    for features in (one, larger):
        known = account(features)
        assert (known.unit, known.exact) == ("record", False)
        double = 2 * math.hypot(mu_for(0.5, DELTA), mu_for(0.3, DELTA))
        assert known.epsilon(DELTA) == pytest.approx(epsilon_for(double, DELTA), rel=1e-6)
    with pytest.raises(UserError, match="do not protect the persons of one"):
        set_cap(one, 9.0, delta=DELTA)


def test_a_training_that_would_not_protect_the_persons_of_a_capped_set_is_refused() -> None:
    one, larger = of("one", range(8), persons=True), of("larger", range(14), persons=True)
    set_cap(one, 2.0, delta=DELTA)
    with pytest.raises(UserError, match="would not protect these persons"):
        ready(larger)
    charge(ready(one))


def test_for_persons_all_sets_are_added_up() -> None:
    """One record of a person may be in one set, and the next one in another."""
    persons, low, high = of("p", range(10), persons=True), of("low", range(5)), of("high", range(5, 10))
    charge(ready(low, 0.5))
    charge(ready(high, 0.5))
    assert total(persons) == spent(0.5, 0.5)
    assert not account(persons).exact
    assert total(low) == spent(0.5)


# What somebody says


def test_what_was_said_once_counts_from_then_on_for_both_and_cannot_be_left_out() -> None:
    one, other = of("one", range(8), kind=None), of("other", range(100, 108), kind=None)
    set_cap(one, 1.5, delta=DELTA)
    charge(ready(one))
    assert (account(other).entries, account(other).not_counted) == ([], ("one",))
    # In a rehearsal it counts, and is not written down.
    records = ledger.records_of(one.manifest)
    with pytest.raises(UserError, match="does not fit"):
        ready(other, 1.4, also=(one,))
    assert account(other, also=[records]).epsilon(DELTA) == spent(1.0)
    assert account(other).overlaps == ()
    with pytest.raises(UserError, match="does not fit"):
        trained(other, 1.4, also=[one], by="Ada")
    (said,) = account(other).overlaps
    assert (said.name, said.who, said.records, said.other) == (
        *("one", "Ada", ledger.records_of(other.manifest), records),
    )
    with pytest.raises(UserError, match="does not fit"):
        trained(other, 1.4)
    trained(other, 0.4)
    for features in (one, other):
        assert total(features) == spent(1.0, 0.4)
        assert account(features).not_counted == ()
        assert not account(features).exact
    share_records(one, [other])
    share_records(other, [one], by="Eve")
    assert account(one).overlaps == account(other).overlaps == (said,)


def trained(features: FeatureSet, epsilon: float, **more: Any) -> None:
    class Quiet(Observer):
        def warn(self, text: str) -> None:
            """Such small sets give many warnings."""

    train(features, epsilon=epsilon, delta=DELTA, steps=2, observer=Quiet(), **more)


def test_where_it_is_not_known_which_records_are_shared_all_that_is_connected_counts() -> None:
    """Records of `b` may be in `a`, and then in `c` or in what is said of `c`. Those of `e` are not."""
    made = {"a": of("a", range(10)), "b": of("b", range(50, 60), kind=None), "c": of("c", range(9, 20))}
    made |= {"d": of("d", range(60, 70)), "e": of("e", range(19, 30)), "f": of("f", range(80, 90))}
    for features in made.values():
        charge(ready(features, 0.5))
    assert total(made["a"]) == spent(0.5, 0.5)
    share_records(made["b"], [made["a"]])
    share_records(made["c"], [made["d"]])
    for name in "abcde":
        # All of them are connected, with e by record 19, which c has.
        assert total(made[name]) == spent(*[0.5] * 5), name
        assert not account(made[name]).exact
    assert (total(made["f"]), account(made["f"]).not_counted) == (spent(0.5), ("b",))


def test_a_set_that_was_never_trained_on_connects_others() -> None:
    """Records of `a` may be in `b`, whose files are those of `c`."""
    a, b, c = of("a", range(10), kind=None), of("b", range(50, 60)), of("c", range(59, 70))
    for features in (a, c):
        charge(ready(features, 0.5))
    share_records(a, [b])
    for features in (a, b, c):
        assert total(features) == spent(0.5, 0.5)


@pytest.mark.parametrize("fault", [False, True])
def test_a_cap_and_the_first_training_of_a_set_that_is_said_to_share_records_do_not_miss_each_other(
    fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said is in the ledger of `a`. No ledger has a training or a cap."""
    a, b = of("a", range(10), kind=None), of("b", range(50, 60), kind=None)
    share_records(a, [b])
    other = ready(b, 1.2)
    with monkeypatch.context() as patch:
        if fault:
            patch.setattr(other_ledgers, "begun", lambda *given: False)
        seen = meanwhile(patch, caps, "_check", lambda: charge(other), skip=1)
        set_cap(a, 1.0, delta=DELTA)
    assert seen == ["done" if fault else "busy"]
    assert over(a) == fault


def test_what_makes_no_sense_to_be_said_is_refused() -> None:
    one = of("one", range(8))
    shutil.copytree("features/one", "features/copy")
    share_records(one, [FeatureSet(Path("features/copy"))])
    assert not ledger_path(one.folder).exists(), "sets of one source are linked in any case"
    with pytest.raises(UserError, match="names one itself") as refused:
        share_records(one, [one])
    assert refused.value.fields["parameter"] == "also"
    Path("elsewhere").mkdir()
    far = of("far", range(5))
    shutil.move("features/far", "elsewhere/far")
    with pytest.raises(UserError, match="where it is not looked for"):
        share_records(one, [FeatureSet(Path("elsewhere/far"))])
    Path("features/far").symlink_to(Path("elsewhere/far").absolute())
    share_records(one, [FeatureSet(Path("features/far"))])
    with pytest.raises(UserError, match="by must be a text"):
        share_records(one, [far], by="")


def test_what_is_said_of_a_set_before_its_first_training_counts_for_its_cap() -> None:
    one, other = of("one", range(8), kind=None), of("other", range(100, 108), kind=None)
    share_records(one, [other])
    set_cap(one, 1.0, delta=DELTA)
    with pytest.raises(UserError, match="does not fit"):
        ready(other, 1.1)
    charge(ready(other, 1.0))
    with pytest.raises(UserError, match=r"Nothing more fits"):
        ready(one, 0.1)


def test_what_was_said_before_the_first_training_stays_if_the_set_is_made_again() -> None:
    other = of("other", range(100, 108), kind=None)
    share_records(of("one", range(8), kind=None), [other])
    shutil.rmtree("features/one")
    charge(ready(other, 1.0))
    assert total(of("one", range(9), kind=None)) == spent(1.0)
