"""What is fuzzed: every reader of files, and the command line. Each target has whole inputs to start from.

A target takes bytes and a folder of its own. It may return, or raise a UserError. Anything else is a find.
"""

import contextlib
import io
import json
import random
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import typer

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features import digests
from dpfc_cli.features.manifest import Manifest, Shard, SplitFacts
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.tables import opened
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger import caps, file
from dpfc_cli.ledger.facts import Fact, new_id
from dpfc_cli.ledger.file import append, read
from dpfc_cli.ledger.populations import records_of
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Claim
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.public_starts.classifier_rows import below, check_count, labels_in, stated
from dpfc_cli.public_starts.wordnet import DATA, INDEX, WordNet
from dpfc_cli.sources.classes import class_names
from dpfc_cli.sources.split_files import files_by_split
from dpfc_cli.training import tuning
from dpfc_cli.training.card import card_of
from dpfc_cli.training.request import Privacy
from dpfc_cli.trust import statement
from dpfc_cli.trust.card import of_card
from tests.hostile import DATE, calibrated, set_of, standing
from tests.ledger import facts as made_up
from tests.public_starts import nouns
from tests.support import CHAIN
from tests.torture.folder_targets import FOLDERS
from tests.torture.picture_targets import PICTURE_TARGETS
from tests.torture.target import Target, as_json, parquet, saved, written

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)


def _manifest(rows: int = 6, **changes: Any) -> Manifest:
    shard = Shard(file="train-00000-of-00001.h5", rows=rows, sha256="0" * 64)
    identity = {"listing": {"train": "1" * 64, "test": "2" * 64}, "hold_out": 0.25}
    said = {
        "classes": ("a", "b", "ü"),
        "dim": 4,
        "dtype": "float32",
        "labels_per_record": 1,
        "origin": "asserted",
        "splits": {"train": SplitFacts(n=rows, shards=(shard,))},
        "backbone": {"name": "imported", "from": "x.npz", "weights": {"sha256": "3" * 64}},
        "source": {"dataset": "d", "identity": identity},
        "versions": {"dpfc": "0.1.0"},
        "id": "0" * 32,
    }
    return Manifest(**{**said, **changes})


def _shard(libver: str = "latest", dtype: str = "float32", groups: bool = False) -> bytes:
    def write(path: Path) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("features", data=X.astype(dtype), chunks=(3, 4), track_times=False)
            file.create_dataset("labels", data=Y, track_times=False)
            file.create_dataset("index", data=np.arange(6), track_times=False)
            if groups:
                file.create_dataset("groups", data=np.arange(6) // 2, track_times=False)

    return written(write, ".h5")


def _read_all(features: FeatureSet) -> None:
    for split in features.splits:
        if features.splits[split] <= 10_000:
            for _ in features.stream(split)(4):
                pass
            for *_, groups in features.grouped(split)(4) if features.manifest.grouped else ():
                if groups.min() < 0 or groups.max() >= (features.split(split).groups or 0):
                    raise AssertionError("a group that the manifest does not count")


def _grouped() -> Manifest:
    """The manifest of a set of three persons."""
    plain = _manifest()
    split = replace(plain.splits["train"], groups=3)
    identity = {**plain.source["identity"], "groups": {"train": "3" * 64}}
    return _manifest(
        splits={"train": split},
        source={**plain.source, "identity": identity},
        grouped_by={"by": "folder", "level": 1},
    )


def _run_manifest(data: bytes, place: Path) -> None:
    folder = place / "set"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(data)
    (folder / "train-00000-of-00001.h5").write_bytes(_SHARD if b"grouped_by" not in data else _GROUPED_SHARD)
    features = FeatureSet(folder)
    repr(features), features.manifest.fingerprint, features.manifest.to_json(), features.classes
    statement.hold_out_of(features.manifest)
    records_of(features.manifest)
    _read_all(features)


def _run_shard(data: bytes, place: Path) -> None:
    """The shard of a set without groups, and of one with them."""
    folder = place / "set"
    folder.mkdir(exist_ok=True)
    (folder / "train-00000-of-00001.h5").write_bytes(data)
    manifests = (_manifest(), _grouped()) if b"groups" in data else (_manifest(),)
    for manifest in manifests:
        (folder / "manifest.json").write_bytes(manifest.to_json())
        with contextlib.suppress(UserError) if len(manifests) > 1 else contextlib.nullcontext():
            _read_all(FeatureSet(folder))


def _head(claim: Claim = "private", rate: float = 1.0) -> Head:
    seed = 7 if claim == "research" else None
    privacy = Privacy() if claim == "non-private" else Privacy(epsilon=1.0, delta=1e-5, seed=seed)
    sampled: dict[str, Any] = {} if rate == 1 else {"sampling_rate": rate, "steps": 2}
    made = calibrated("dp-fc" if rate == 1 else "dp-sgd", privacy, **sampled)
    solution = Solution(chain=CHAIN, weight=np.zeros((2, 3)), bias=np.zeros(3))
    card = card_of(made, set_of(made.facts), DATE, solution, standing())
    chain = (Clip(1.0), Centre(np.ones(2)))
    return Head(chain=chain, weight=np.array([[0.0, 1.0, 2.0], [2.0, -3.0, 0.5]]), bias=np.zeros(3), card=card)


def _use_head(path: Path) -> None:
    head = Head.load(path)
    if head.dim * len(head.classes) <= 1_000_000:
        # Numbers that are no numbers are the head's own.
        with np.errstate(all="ignore"):
            head.scores(np.zeros((2, head.dim), np.float32))
            head.predict(np.ones((2, head.dim), np.float32))
    # What is made up here is not what a method makes, and `Head.statement` would refuse it.
    statement.document(head.card, "0" * 64)
    of_card(head.card)
    statement.brief(head.card)
    statement.meaning(head.card)


def _run_head(data: bytes, place: Path) -> None:
    path = place / "head.safetensors"
    path.write_bytes(data)
    _use_head(path)


def _with_metadata(name: str, data: bytes) -> bytes:
    """A head's file with other metadata under that name."""
    whole = encoded(_head())
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    header["__metadata__"][name] = data.decode("utf-8", "replace")
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + whole[8 + length :]


def _import(suffix: str) -> Callable[[bytes, Path], None]:
    """Import the input as a file that ends so: the features are read, and sometimes the whole set is made."""

    def run(data: bytes, place: Path) -> None:
        path = place / f"train{suffix}"
        path.write_bytes(data)
        with opened(path) as tables:
            for table in tables.splits.values():
                for start in range(0, min(table.n, 10_000), 5_000):
                    table.rows(start, min(start + 5_000, table.n))
        if sum(data) % 16 == 0:
            import_features(path, place / "made")

    return run


def _run_npy(data: bytes, place: Path) -> None:
    """The first byte says whether features or labels are the input."""
    folder = place / "arrays"
    folder.mkdir(exist_ok=True)
    x, y = folder / "train_x.npy", folder / "train_y.npy"
    np.save(x, X)
    np.save(y, Y)
    (x if data[:1] < b"\x80" else y).write_bytes(data[1:])
    import_features(folder, place / "made")


def _table(kind: Any = None) -> pa.Table:
    values = pa.array([list(map(float, row)) for row in X], kind or pa.list_(pa.float32()))
    return pa.table({"features": values, "label": pa.array(Y)})


def _run_trials(data: bytes, place: Path) -> None:
    path = place / "set.tuning.jsonl"
    path.write_bytes(data)
    tuning._read(path)


_SET = made_up.a_set()
_FACTS: tuple[Fact, ...] = (_SET, *made_up.some_facts(random.Random(0), 12, [_SET]))


def _ledger(count: int = len(_FACTS)) -> bytes:
    return written(lambda path: made_up.written(path, *_FACTS[:count]), ".sqlite")


def _run_ledger(data: bytes, place: Path) -> None:
    path = place / "ledger.sqlite"
    path.write_bytes(data)
    _use_ledger(path)
    fact = made_up.a_charge(next(iter(read(path).sets), made_up.a_set().set))
    append(path, lambda ledger: [fact], "It")
    if read(path).facts[-1] != fact:
        raise AssertionError("a ledger took a fact, and does not have it")


def _use_ledger(path: Path) -> None:
    book = read(path)
    for account in book.accounts(None):
        if len(account.charges) <= 20:
            account.epsilon(1e-5), account.exact, caps.left(account, 1e-5)


def _run_fact(data: bytes, place: Path) -> None:
    """A ledger whose file is sound, with one more row: its kind and its text."""
    kind, _, body = data.decode("utf-8", "replace").partition(" ")
    path = place / "ledger.sqlite"
    path.write_bytes(_LEDGER)
    row = (len(_FACTS) + 1, new_id(), kind, body)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        (end,) = connection.execute("SELECT hash FROM facts ORDER BY n DESC").fetchone()
        hashed = file._hash(end, *row)
        connection.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?)", (*row, hashed))
    _use_ledger(path)


def _digests() -> bytes:
    return written(lambda path: digests.write(path, "row", np.array([1, 2, 2, 7], np.uint64)))


def _run_digests(data: bytes, place: Path) -> None:
    """A file of digests, beside a whole one."""
    path, other = place / "digests", place / "other"
    path.write_bytes(data)
    other.write_bytes(_digests())
    if digests.common(path, other) > 3:
        raise AssertionError("there are more different records than records")


def _run_patterns(data: bytes, place: Path) -> None:
    text = data.decode("utf-8", "surrogateescape").replace("/", "").replace("~", "")
    if "\0" not in text and len(text) < 200 and text.count("..") < 2:
        with contextlib.chdir(place):
            Path("train-00.tar").touch()
            files_by_split(text, ".tar")


def _run_names(data: bytes, place: Path) -> None:
    path = place / "names.txt"
    path.write_bytes(data)
    class_names(path)


def _run_rows(data: bytes, place: Path) -> None:
    path = place / "rows.json"
    path.write_bytes(data)
    check_count(path, stated(path, ["red fox", "cat"]), 9)


def _run_nouns(data: bytes, place: Path) -> None:
    """The first byte says which file of WordNet is the input, or whether the labels are."""
    nouns.write(place)
    names = (INDEX, DATA, "labels.txt")
    (place / "labels.txt").write_text("tabby\n")
    (place / names[data[0] % 3 if data else 0]).write_bytes(data[1:])
    below(["cat", "seal", "animal"], labels_in(place / "labels.txt"), WordNet(place))


def _nouns() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        at = nouns.write(Path(folder))
        files = [bytes([i]) + Path(folder, name).read_bytes() for i, name in enumerate((INDEX, DATA))]
        return [*files, f"\x02n{at['cat']:08d} cat\ntabby, x\n".encode()]


WORDS = (
    *("budget", "train", "evaluate", "statement", "list", "import", "extract", "--help", "-h", "-q", "-v", "--json"),
    *("--sigma", "--epsilon", "--delta", "--steps", "--features", "--out", "--classes", "--method", "--seed"),
    *("--non-private", "--adjacency", "--dry-run", "--yes", "--memory", "--tune-on", "--public-features", "--column"),
    *("--labels-per-record", "--dtype", "--shards", "--limit", "--hold-out", "--task", "--batch", "--budget-split"),
    *("float16", "float32", "a,b", "", " ", "ü", "\udcff", "--delta=0.5", "--", "-", "dp-ls", "dp-sgd", "dp-whitened"),
    *("set", "head.safetensors", "arrays", "imagefolder:arrays", "webdataset:arrays", "parquet:arrays", "train-0.tar"),
    *("1", "0", "-1", "1e-5", "nan", "inf", "-inf", "1e400", "1e-400", "999999999999999999999", "0.5,0.5", "8GB"),
    *("--split", "1/2", "zero-out", "replace-one", "--momentum", "--learning-rate", "--clip", "--sampling-rate"),
    *("--noise-multiplier", "heads/a.safetensors", "zero-shot", "--from", "text", "classifier", "--on", "--rows"),
)  # fmt: skip


def _run_words(data: bytes, place: Path) -> None:
    """Each byte is a word of the table; after 255 the bytes up to the next 255 are a word of their own."""
    words, rest = [], list(data[:60])
    while rest:
        first = rest.pop(0)
        if first < 255:
            words.append(WORDS[first % len(WORDS)])
            continue
        own = rest[: rest.index(255)] if 255 in rest else rest
        rest = rest[len(own) + 1 :]
        words.append(bytes(own).decode("utf-8", "surrogateescape").replace("/", "").replace("\0", ""))
    _prepare_words(place)
    from dpfc_cli.cli import app

    said = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace")
    with contextlib.chdir(place / "words"), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            typer.main.get_command(app.app).main(words, prog_name="dpfc", standalone_mode=True)
            code: object = 0
        except SystemExit as end:
            code = end.code
    if code not in (0, 2, None):
        said.seek(0)
        raise AssertionError(f"exit code {code}: {said.read().strip().splitlines()[-2:]}")


def _prepare_words(place: Path) -> None:
    """A folder with a feature set, a head and arrays, in which no network is asked."""
    if (place / "words").exists():
        return
    import importlib

    from dpfc_cli.cli.help import COMMANDS

    for name, module in COMMANDS.items():
        # An audit takes minutes by itself.
        if name != "audit":
            importlib.import_module(f"dpfc_cli.cli.{module}")
    (place / "words" / "arrays").mkdir(parents=True)
    for split in ("train", "test"):
        np.save(place / "words" / "arrays" / f"{split}_x.npy", X)
        np.save(place / "words" / "arrays" / f"{split}_y.npy", Y)
    (place / "words" / "head.safetensors").write_bytes(encoded(_head()))
    import_features(place / "words" / "arrays", place / "words" / "features" / "set", classes=3)

    def refused(*_: Any, **__: Any) -> Any:
        raise UserError("No network here.", "None.", code="unreadable")

    from dpfc_cli.backbones import hub
    from dpfc_cli.images import catalogue, idx

    catalogue._download = refused
    hub.fetch = refused  # type: ignore[attr-defined]
    idx.open_digits = refused
    # Trainings and extractions themselves take long, and have campaigns of their own.
    import dpfc_cli.extraction.extract
    import dpfc_cli.training.train

    dpfc_cli.training.train.finish = refused
    dpfc_cli.extraction.extract.make_shards = refused


_SHARD, _GROUPED_SHARD, _LEDGER = _shard(), _shard(groups=True), _ledger()


def _npz(**arrays: np.ndarray) -> bytes:
    return saved(lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def _safetensors(**arrays: np.ndarray) -> bytes:
    from safetensors.numpy import save

    return save(arrays)


def _hdf5(libver: str, **arrays: np.ndarray) -> bytes:
    def write(path: Path) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, compression="gzip")

    return written(write, ".h5")


def _chain() -> bytes:
    """The text that says which steps a head's features go through."""
    whole = encoded(_head())
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    return str(header["__metadata__"]["chain"]).encode()


def _npy(array: np.ndarray) -> bytes:
    return saved(lambda file: np.save(file, array))


TARGETS = {
    "manifest": Target(seeds=lambda: [_manifest().to_json(), _grouped().to_json()], run=_run_manifest, text="json"),
    "shard": Target(seeds=lambda: [_shard("earliest"), _shard(), _shard(groups=True)], run=_run_shard),
    "head": Target(seeds=lambda: [encoded(_head()), encoded(_head("research"))], run=_run_head),
    "card": Target(
        seeds=lambda: [as_json(_head().card), as_json(_head("non-private").card), as_json(_head(rate=0.5).card)],
        run=lambda data, place: _run_head(_with_metadata("card", data), place),
        text="json",
    ),
    "chain": Target(
        seeds=lambda: [_chain()], run=lambda data, place: _run_head(_with_metadata("chain", data), place), text="json"
    ),
    "npz": Target(
        seeds=lambda: [_npz(train_x=X, train_y=Y, train_groups=Y), _npz(features=X, labels=Y)], run=_import(".npz")
    ),
    "safetensors": Target(seeds=lambda: [_safetensors(train_x=X, train_y=Y)], run=_import(".safetensors")),
    "hdf5": Target(
        seeds=lambda: [
            _hdf5("earliest", train_x=X, train_y=Y),
            _hdf5("latest", train_x=X, train_y=Y, train_groups=np.char.encode(["ü", "b"] * 3, "utf-8")),
        ],
        run=_import(".h5"),
    ),
    "npy": Target(seeds=lambda: [b"\x00" + _npy(X), b"\xff" + _npy(Y)], run=_run_npy),
    "columns": Target(
        seeds=lambda: [
            parquet(_table(kind))
            for kind in (pa.list_(pa.float32()), pa.list_(pa.float16(), 4), pa.large_list(pa.float64()))
        ],
        run=_import(".parquet"),
    ),
    "trials": Target(seeds=lambda: [b'\n{"trial": "ab", "score": 0.5}\n'], run=_run_trials, text="json"),
    "ledger": Target(seeds=lambda: [_ledger(), _ledger(3)], run=_run_ledger),
    "fact": Target(seeds=lambda: [f"{fact.kind} {fact.body}".encode() for fact in _FACTS], run=_run_fact),
    "digests": Target(seeds=lambda: [_digests()], run=_run_digests),
    "patterns": Target(seeds=lambda: [b"train-{00..00}.tar", b"train-0{0}.tar", b"t[a-z]?in*"], run=_run_patterns),
    "rows": Target(seeds=lambda: [as_json({"Red_Fox": [1, 8], "cat": []})], run=_run_rows, text="json"),
    "nouns": Target(seeds=_nouns, run=_run_nouns),
    "names": Target(seeds=lambda: [b"flu\ncold\n", "ü\nb".encode()], run=_run_names),
    "words": Target(
        seeds=lambda: [bytes(range(i, i + 6)) for i in range(0, len(WORDS), 6)], run=_run_words, text="words"
    ),
    **PICTURE_TARGETS,
    **FOLDERS,
}
