"""Sets that share some records: how dpfc knows which records are the same, and who can see it."""

import errno
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.kept_digests import beside, in_folder, own_digests
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.told import share_records
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dpfc_cli.errors import UserError
from dpfc_cli.extraction import extract
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features import digests, shards
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.sources.digests import digest_of
from dpfc_cli.training import ledger
from dpfc_cli.training.charge import charge
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.train import finish
from tests.support import blobs
from tests.training.sharing import DELTA, account, alone_in, draw, features_of, of, ready, spent, total


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_in(tmp_path, monkeypatch)


# Which records are the same


def pictures(folder: str, numbers: Iterable[int], named: str = "{}.png") -> Path:
    for i in numbers:
        draw(Path(folder, "ab"[i % 2], named.format(i)), i)
    return Path(folder)


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
    # Those beside the ledger are those of the set.
    path = ledger_path(one.folder)
    assert own_digests(path, one.folder) == digests.stored_in(beside(path))


def test_who_opens_the_digests_of_a_set_to_a_team_opens_those_beside_its_ledger_too() -> None:
    one = of("one", range(8))
    (one.folder / digests.FILE).chmod(0o661)
    charge(ready(one))
    path = beside(ledger_path(one.folder))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    path.chmod(0o640)
    shutil.rmtree("features/one")
    charge(ready(of("one", range(8, 12))))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_no_other_file_is_opened_by_a_link_that_takes_the_name_of_the_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the folder may exchange the file as soon as it has its name."""
    victim, path, renamed = tmp_path / "victim", tmp_path / "digests", os.replace
    victim.touch(0o600)

    def exchanged(temporary: Path, name: Path) -> None:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o660
        renamed(temporary, name)
        name.unlink()
        name.symlink_to(victim)

    monkeypatch.setattr(os, "replace", exchanged)
    digests.write(path, [digests.section_of("0" * 64, "train", "file", np.arange(3, dtype=np.uint64))], 0o660)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_nothing_is_charged_if_it_cannot_be_kept_which_records_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of("one", range(8))
    path = ledger_path(one.folder)
    left = beside(path).with_name(f".{beside(path).name}.1.tmp")
    left.touch()

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(digests, "write", full)
    with pytest.raises(UserError, match=r"No space left on device.*Nothing was charged") as refused:
        charge(ready(one))
    assert (refused.value.code, ledger.read(path)) == ("unwritable", [])
    # What a killed process has left is removed before anything is written.
    assert not left.exists()


def test_digests_of_other_records_that_lie_in_the_folder_of_a_set_are_not_its_own() -> None:
    one, other = of("one", range(8)), of("other", range(8, 16))
    shutil.copy(other.folder / digests.FILE, one.folder / digests.FILE)
    assert in_folder(one.folder) == ()


def test_of_sets_whose_digests_are_not_open_to_us_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = of("one", range(8)), of("other", range(4, 12))
    charge(ready(one))
    closed = beside(ledger_path(one.folder))
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    assert (account(other).entries, account(other).not_counted) == ([], ("one",))


def test_what_is_not_known_of_a_source_is_told_where_another_part_of_it_is_known() -> None:
    """It has as many records, and they are others."""
    charge(ready(of("gone", range(8), part=True)))
    beside(Path("features/gone.ledger.sqlite")).unlink()
    shutil.rmtree("features/gone")
    charge(ready(of("part", range(20, 28), part=True)))
    assert account(of("one", range(4))).not_counted == ("gone",)


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
