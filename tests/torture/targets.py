"""Every reader of files, with whole files to start from."""

import contextlib
import io
import json
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGBaseline8Bit, RLELossless

from dpfc_cli.annotations.classes import class_names
from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.annotations.split_files import files_by_split
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.importing import slides
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.extensions.importing.request import Import
from dpfc_cli.extensions.importing.tables import opened
from dpfc_cli.extensions.planning import tuning
from dpfc_cli.extensions.starts.classifier_rows import below, check_count, labels_in, stated
from dpfc_cli.extensions.starts.wordnet import WordNet
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.heads.head import read as read_head
from dpfc_cli.images.decoding import decode
from dpfc_cli.images.pictures import Preparation
from dpfc_cli.images.sets import by_person
from dpfc_cli.ledger import caps, file
from dpfc_cli.ledger.facts import Fact, new_id
from dpfc_cli.ledger.file import append, read
from dpfc_cli.ledger.populations import records_of
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Claim, Privacy
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.records import statement
from dpfc_cli.records.findings import findings
from dpfc_cli.training.card import card_of
from tests.extensions.importing import formats
from tests.extensions.medical import dicoms
from tests.extensions.starts import nouns
from tests.hostile import DATE, calibrated, set_of, standing
from tests.images import test_tables
from tests.images.pictures import SQUARE, open_images, png, tar, unlabelled
from tests.ledger import facts as made_up
from tests.support import CHAIN

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
ARRAYS = {"train_x": X, "train_y": Y, "train_groups": Y}


@dataclass(frozen=True, kw_only=True)
class Target:
    """make: writes whole files into a folder. read: reads them, and may raise a UserError; anything else is a find."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]


def texts(**lines: str) -> Callable[[Path], object]:
    """Writes files of text, which are named like the words."""
    return lambda folder: [(folder / name).write_text(text) for name, text in lines.items()]


# Feature sets


def a_set(arrays: dict[str, Any]) -> Callable[[Path], object]:
    return lambda folder: import_features(formats.npz(folder, arrays), folder / "set", classes=3)


def read_set(folder: Path) -> None:
    features = FeatureSet(folder / "set")
    repr(features), features.manifest.fingerprint, features.manifest.to_json(), features.classes
    records_of(features.manifest)
    for split in features.splits:
        if features.splits[split] > 10_000:
            continue
        for _ in features.stream(split)(4):
            pass
        for *_, groups in features.stream(split, groups=True)(4) if features.manifest.grouped else ():
            assert groups.min() >= 0, "a group that is none"
            assert groups.max() < (features.split(split).groups or 0), "a group that the manifest does not count"


def imported(write: formats.Write, arrays: dict[str, Any] = ARRAYS) -> Target:
    """A file or a folder with arrays. Rows are read, and the whole set is made."""

    def source(folder: Path) -> Path:
        return next(path for path in folder.iterdir() if path.name != "made")

    def run(folder: Path) -> None:
        if (folder / "npy").exists():
            import_features(folder / "npy", folder / "made", classes=3)
            return
        with opened(source(folder)) as tables:
            for table in tables.splits.values():
                for start in range(0, min(table.n, 10_000), 5_000):
                    table.rows(start, min(start + 5_000, table.n))
        if sum(source(folder).read_bytes()) % 16 == 0 if source(folder).is_file() else False:
            import_features(source(folder), folder / "made", classes=3)

    return Target(make=lambda folder: write(folder, arrays), read=run)


SLIDES = "case_id,slide_id,label,split\np,a,x,train\nq,b,y,train\np,c,x,train\nr,sub/d,y,test\n"


def make_slides(folder: Path) -> None:
    (folder / "slides" / "sub").mkdir(parents=True)
    patches = np.arange(12, dtype=np.float32).reshape(4, 3)
    stored: dict[str, dict[str, Any]] = {"a": {}, "b": {"chunks": (1, 3), "maxshape": (None, 3)}}
    stored |= {"c": {"chunks": (2, 3), "compression": "gzip", "shuffle": True}, "sub/d": {}}
    for name, options in stored.items():
        with h5py.File(folder / "slides" / f"{name}.h5", "w", libver="earliest" if name == "a" else "latest") as made:
            made.create_dataset("features", data=patches, track_times=False, **options).attrs["encoder"] = "uni"
    (folder / "slides.csv").write_text(SLIDES)


def read_slides(folder: Path) -> None:
    """A damaged slide is refused or becomes a null record. The number of records never depends on what is in it."""
    by: Any
    on_error: Any
    for by, on_error in product(("slide", "patient"), ("refuse", "null")):
        told: list[str] = []
        given = {"table": folder / "slides.csv", "pool_by": by, "on_error": on_error}
        wanted = Import(
            f"slides:{folder / 'slides'}", **given, warn=told.append, most_null=0.9 if on_error == "null" else None
        )
        with contextlib.suppress(UserError):
            tables = slides.pooled(folder / "slides", wanted, ("x", "y"))
            rows = {name: (each.rows(0, each.n), each.y) for name, each in tables.splits.items()}
            if given["table"].read_bytes() == SLIDES.encode():
                assert tables.splits["train"].n == (2 if by == "patient" else 3)
            nulls = sum(int((y < 0).sum()) for _, y in rows.values())
            assert told or not nulls, "null records that nobody is told of"
            assert not (nulls and on_error == "refuse")


# Heads and ledgers


def a_head(claim: Claim = "private", rate: float = 1.0) -> Head:
    privacy = Privacy(epsilon=1.0, delta=1e-5, seed=7 if claim == "research" else None)
    sampled: dict[str, Any] = {} if rate == 1 else {"sampling_rate": rate, "steps": 2}
    made = calibrated("dp-fc" if rate == 1 else "dp-sgd", Privacy() if claim == "non-private" else privacy, **sampled)
    card = card_of(made, set_of(made.facts), DATE, Solution(chain=CHAIN, weight=X[:2, :3], bias=X[0, :3]), standing())
    return Head(chain=(Clip(1.0), Centre(np.ones(2))), weight=X[:2, :3].astype(float), bias=np.zeros(3), card=card)


def make_heads(folder: Path) -> None:
    for name, head in (("a", a_head()), ("b", a_head("research")), ("c", a_head(rate=0.5))):
        (folder / f"{name}.safetensors").write_bytes(encoded(head))


def read_heads(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(UserError):
            # What is made up here is not what a method makes, and `Head.load` would refuse it.
            head = read_head(path)
            if head.dim * len(head.classes) <= 1_000_000:
                # Numbers that are no numbers are the head's own.
                with np.errstate(all="ignore"):
                    head.predict(np.ones((2, head.dim), np.float32))
            statement.document(head.card, "0" * 64), findings(head.card, head.chain), statement.brief(head.card)
            statement.meaning(head.card)


SET = made_up.a_set()
FACTS: tuple[Fact, ...] = (SET, *made_up.some_facts(random.Random(0), 12, [SET]))


def use_ledger(path: Path) -> None:
    for account in read(path).accounts(None):
        if len(account.charges) <= 20:
            account.epsilon(1e-5), account.exact, caps.left(account, 1e-5)


def read_ledger(folder: Path) -> None:
    path = folder / "ledger.sqlite"
    use_ledger(path)
    fact = made_up.a_charge(next(iter(read(path).sets), made_up.a_set().set))
    append(path, lambda ledger: [fact], "It")
    assert read(path).facts[-1] == fact, "a ledger took a fact, and does not have it"


def read_fact(folder: Path) -> None:
    """A ledger whose file is sound, with one more row: its kind and its text."""
    kind, _, body = (folder / "fact").read_bytes().decode("utf-8", "replace").partition(" ")
    path = folder / "ledger.sqlite"
    made_up.written(path, *FACTS)
    row = (len(FACTS) + 1, new_id(), kind, body)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        (end,) = connection.execute("SELECT hash FROM facts ORDER BY n DESC").fetchone()
        connection.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?)", (*row, file._hash(end, *row)))
    use_ledger(path)


# Pictures


def look(found: Any) -> None:
    """Decode some pictures, and name them."""
    for split in found.splits.values():
        split.pixels(0, min(split.n, 4))
        split.pixels.name(0)


def tables() -> Target:
    """Parquet of pictures with labels, and with persons who are in no other split."""

    def make(folder: Path) -> None:
        columns = {split: [f"{split}{i}" for i in (1, 0, 1)] for split in ("train", "test")}
        parts = {
            split: test_tables.table([png(1), png(2), {"bytes": png(3), "path": "ü.png"}], [0, 1, 0], who=who)
            for split, who in columns.items()
        }
        test_tables.made(folder / "x", **parts)

    def run(folder: Path) -> None:
        source = f"parquet:{folder / 'x'}"
        # One reader may refuse what another one takes.
        with contextlib.suppress(UserError):
            plain = unlabelled("parquet", folder / "x").pictures
            for i in range(min(len(plain), 4)):
                plain.read(i)
                plain.name(i)
        with contextlib.suppress(UserError):
            look(open_images(source, geometry=SQUARE))
        found, groupings = by_person(open_images(source, geometry=SQUARE, group_by=rule_of("column:who")))
        assert all(len(grouping.ids) == found.splits[name].n for name, grouping in groupings.items())
        look(found)

    return Target(make=make, read=run)


def make_archive(folder: Path) -> None:
    facts = json.dumps({"label": 1, "caption": "a cat"}).encode()
    members = [("0.png", png(1)), ("0.json", facts), ("n" * 120 + ".png", png(2)), ("n" * 120 + ".cls", b"0")]
    tar(folder / "train.tar", members)


def make_beside(folder: Path) -> None:
    for split, table in (("train", "metadata.csv"), ("test", "metadata.jsonl")):
        for name in "ab":
            (folder / split).mkdir(exist_ok=True)
            (folder / split / f"{name}.png").write_bytes(png(ord(name)))
        rows = [{"file_name": f"{name}.png", "label": label} for name, label in (("a", "flu"), ("b", "cold"))]
        lines = (
            map(json.dumps, rows) if table.endswith("l") else ["file_name,label", *(",".join(r.values()) for r in rows)]
        )
        (folder / split / table).write_text("\n".join(lines))


PICTURES = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
KINDS: dict[str, Sequence[tuple[str, dict[str, Any]]]] = {
    "JPEG": (("RGB", {}), ("L", {"progressive": True}), ("CMYK", {})),
    "PNG": (("RGB", {}), ("P", {}), ("I;16", {}), ("LA", {}), ("1", {})),
    "TIFF": (("RGB", {}), ("L", {"compression": "tiff_lzw"}), ("RGB", {"compression": "jpeg"})),
    "GIF": (("P", {}),),
    "WEBP": (("RGB", {}), ("RGBA", {"lossless": True})),
    "BMP": (("RGB", {}), ("P", {})),
    "PPM": (("RGB", {}), ("L", {}), ("1", {})),
}


def pictures(kind: str) -> Target:
    def make(folder: Path) -> None:
        for i, (mode, options) in enumerate(KINDS[kind]):
            Image.fromarray(PICTURES).convert(mode).save(folder / f"{i}", kind, **options)

    return Target(make=make, read=read_pictures)


def make_dicoms(folder: Path) -> None:
    values, jpeg = PICTURES[:, :, 0].astype(np.uint16) * 16, io.BytesIO()
    Image.fromarray(PICTURES).convert("L").save(jpeg, "JPEG")
    groups = dicoms.rescale(2, -1024, "frame")
    files = [dicoms.written(values, PixelPaddingValue=7, **groups), dicoms.written(values, RLELossless)]
    files.append(dicoms.written(PICTURES, PhotometricInterpretation="YBR_FULL"))
    small = values.astype(np.uint8)
    files.append(dicoms.written(small, JPEGBaseline8Bit, PixelData=encapsulate([jpeg.getvalue()])))
    for i, data in enumerate(files):
        (folder / f"{i}").write_bytes(data)


def read_pictures(folder: Path, **options: Any) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(UserError):
            decode(path.read_bytes(), "picture", Preparation(geometry=SQUARE, **options))


# Texts


def read_rules(folder: Path) -> None:
    for line in (folder / "rules").read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        with contextlib.suppress(UserError):
            rule = rule_of(line)
            rule.describe()
            if rule.by in ("folder", "name"):
                rule.of_name("a/p1/b.png", "p1/b.png")


def read_patterns(folder: Path) -> None:
    (folder / "train-00.tar").touch()
    for line in (folder / "patterns").read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        text = line.replace("/", "").replace("~", "")
        if "\0" not in text and len(text) < 200 and text.count("..") < 2:
            with contextlib.suppress(UserError), contextlib.chdir(folder):
                files_by_split(text, ".tar")


def make_nouns(folder: Path) -> None:
    (folder / "labels.txt").write_text(f"n{nouns.write(folder)['cat']:08d} cat\ntabby, x\n")


TARGETS = {
    "set": Target(make=a_set({"train_x": X, "train_y": Y}), read=read_set),
    "grouped-set": Target(make=a_set(ARRAYS), read=read_set),
    "slides": Target(make=make_slides, read=read_slides),
    "npz": imported(formats.npz),
    "npy": imported(formats.npy),
    "safetensors": imported(formats.safetensors),
    "hdf5": imported(formats.hdf5, {**ARRAYS, "train_groups": np.char.encode(["ü", "b"] * 3, "utf-8")}),
    "columns": imported(formats.parquet()),
    "fixed-columns": imported(formats.parquet("fixed"), {"train_x": X.astype(np.float16), "train_y": Y}),
    "heads": Target(make=make_heads, read=read_heads),
    "ledger": Target(make=lambda folder: made_up.written(folder / "ledger.sqlite", *FACTS), read=read_ledger),
    **{
        f"fact-{i}": Target(make=texts(fact=f"{fact.kind} {fact.body}"), read=read_fact)
        for i, fact in enumerate({fact.kind: fact for fact in FACTS}.values())
    },
    "trials": Target(
        make=texts(trials='\n{"trial": "ab", "score": 0.5}\n'), read=lambda folder: tuning._read(folder / "trials")
    ),
    "parquet": tables(),
    "webdataset": Target(
        make=make_archive,
        read=lambda folder: look(
            open_images(f"webdataset:{folder / 'train.tar'}", geometry=SQUARE, classes=tuple("abcd"))
        ),
    ),
    "imagefolder": Target(
        make=make_beside, read=lambda folder: look(open_images(f"imagefolder:{folder}", geometry=SQUARE))
    ),
    **{kind.lower(): pictures(kind) for kind in KINDS},
    "dicom": Target(make=make_dicoms, read=lambda folder: read_pictures(folder, window=(0, 4095))),
    "rules": Target(make=texts(rules="folder:2\nname:ü(p[0-9]+)_\ncolumn:who"), read=read_rules),
    "patterns": Target(make=texts(patterns="train-{00..00}.tar\ntrain-0{0}.tar\nt[a-z]?in*"), read=read_patterns),
    "names": Target(make=texts(names="flu\ncold\nü\nb"), read=lambda folder: class_names(folder / "names")),
    "rows": Target(
        make=texts(rows='{"Red_Fox": [1, 8], "cat": []}'),
        read=lambda folder: check_count(folder / "rows", stated(folder / "rows", ["red fox", "cat"]), 9),
    ),
    "nouns": Target(
        make=make_nouns,
        read=lambda folder: below(["cat", "seal", "animal"], labels_in(folder / "labels.txt"), WordNet(folder)),
    ),
}
