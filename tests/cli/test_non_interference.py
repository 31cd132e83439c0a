"""Non-interference: whatever leaves a training beside the curator's answers depends on no record.

The true curator is at work, with two changes: it reads and sums the records and then forgets the sums, and its noise
comes from a fixed seed. Two sets of records with the same public facts, and nothing else in common, must then give the
same bytes everywhere: heads, cards, rows of the ledger, both output streams, exit codes, and names and sizes of files.
Clocks and random names count how often they are asked for, so that one time more or less is seen, too.
"""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import h5py
import numpy as np
import pytest
from PIL import Image

from dpfc_cli import evaluation, extraction, files
from dpfc_cli.cli import display
from dpfc_cli.cli import train as command
from dpfc_cli.cli.app import main
from dpfc_cli.cli.help import flag_of, parameters
from dpfc_cli.errors import UserError
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.manifest import MANIFEST, Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head, ordered
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import curator, passes, sums
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.report import contents
from dpfc_cli.report.document import Words
from dpfc_cli.training import answers, cap, charge, check, private_evaluation, request, run, told
from dpfc_cli.training import train as training
from dpfc_cli.training.charge import Charged
from tests.support import blobs

N, TEST, D, M, K = 150, 30, 4, 3, 3
CLASSES = ("flu", "cold", "rare")
BLOCK = 64
"""Records read at a time: a pass takes three blocks."""
Fault = Callable[[pytest.MonkeyPatch], None]
Seen = dict[str, Any]
"""What somebody can see of some command lines, by where it is seen."""


# --- Two worlds: the same public facts, and nothing else in common.


def ordinary(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Records as they should be: classes of one size, features near 1."""
    x, y = blobs(N, D, M, seed=1)
    return x, np.stack([(y + i) % M for i in range(k)], axis=1)


def strange(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Records as they should not be: duplicates, zeros, tiny, huge and infinite numbers and NaN, one class alone, and
    null records of every kind.
    """
    x = np.repeat(np.array([[1e-45, 3e38, -3e38, 7.0]], np.float32), N, axis=0)
    x[10:20], x[20:30], x[30:40] = 0, np.nan, np.inf
    y = np.full((N, k), -1, np.int32)
    y[:, 0] = M - 1
    y[40:90], y[90:95], y[95:100] = -1, 99, -7
    return x, y


WORLDS = {"ordinary": ordinary, "strange": strange}
PERSONS = 15
SIZES = {"ordinary": [N // PERSONS] * PERSONS, "strange": [1] * 7 + [N - PERSONS + 1] + [1] * 7}
"""How many records each person has."""


def write_set(folder: Path, x: np.ndarray, y: np.ndarray, sizes: list[int] | None = None) -> None:
    """A feature set of these training records, whatever they are. The test split is always the same. sizes: how many
    records each person has.
    """
    k = y.shape[1]
    test_x, test_y = blobs(TEST, D, M, seed=2)
    splits = {"train": (x, y), "test": (test_x, np.pad(test_y[:, None], ((0, 0), (0, k - 1)), constant_values=-1))}
    listing = {name: hashlib.sha256(part.tobytes()).hexdigest() for name, (part, _) in splits.items()}
    identity = {"imported": "raw.npz", "listing": listing, "k": k, "dtype": "float32"}
    rows = {name: len(part) for name, (part, _) in splits.items()}
    groups = None if sizes is None else {"train": np.repeat(np.arange(PERSONS), sizes), "test": np.arange(TEST)}
    if groups is not None:
        identity["groups"] = {name: hashlib.sha256(each.tobytes()).hexdigest() for name, each in groups.items()}
    manifest = Manifest(
        classes=CLASSES,
        dim=D,
        dtype="float32",
        labels_per_record=k,
        origin="asserted",
        splits={},
        backbone={"name": "imported", "from": "raw.npz"},
        source={"dataset": "raw", "identity": identity},
        grouped_by=None if groups is None else {"by": "column", "column": "person"},
    )
    shape: dict[str, Any] = {"dim": D, "dtype": "float32", "labels_per_record": k}
    writer = FeatureWriter(folder, rows=rows, identity=identity, shards=2, groups=groups, **shape)
    with closing(writer):
        shards = writer.missing
        for planned in shards:
            with writer.shard(planned) as sink:
                labels = splits[planned.split][1][planned.start : planned.stop]
                sink.append(np.zeros((planned.rows, D)), labels[:, 0] if k == 1 else labels)
        writer.finish(manifest)
    # Such features are refused by the writer. The curator does not rely on that.
    described = json.loads((folder / MANIFEST).read_text())
    for planned in shards:
        with h5py.File(folder / planned.file, "r+") as file:
            file["features"][:] = splits[planned.split][0][planned.start : planned.stop]
        for shard in described["splits"][planned.split]["shards"]:
            shard["sha256"] = files.sha256_of(folder / shard["file"])
    (folder / MANIFEST).write_text(json.dumps(described))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The working folder of each world. The public set is the same in both."""
    top = tmp_path_factory.mktemp("worlds")
    x, y = blobs(N + TEST, D, M, seed=3)
    raw: dict[str, Any] = {"train_x": x[:N], "train_y": y[:N], "test_x": x[N:], "test_y": y[N:]}
    np.savez(top / "raw.npz", **raw)
    import_features(top / "raw.npz", top / "known", classes=("a", "b", "c"), labels_per_record=1)
    made = {}
    for name, records in WORLDS.items():
        folder = made[name] = top / name
        shutil.copytree(top / "known", folder / "features" / "known")
        told = {"source": "text", "model": "clip-b16", "prompts": ["a {}"]}
        start = {"classes": json.dumps(CLASSES), "origin": json.dumps(told)}
        (folder / "vectors.safetensors").write_bytes(ordered({"vectors": np.eye(M, D)}, start))
        for own, k in (("private", 1), ("several", K)):
            write_set(folder / "features" / own, *records(k))
        write_set(folder / "features" / "persons", *records(1), SIZES[name])
        for i, each in enumerate(("known", "several", "persons", "private")):
            os.utime(folder / "features" / each / MANIFEST, (i, i))
        x, y = records(1)
        (folder / "arrays").mkdir()
        for part, array in {**raw, "train_x": np.nan_to_num(x), "train_y": y[:, 0].clip(0, M - 1)}.items():
            np.save(folder / "arrays" / f"{part}.npy", array)
        write_pictures(folder / "pictures", y[:12, 0], damaged=name == "strange")
    return made


def write_pictures(folder: Path, labels: np.ndarray, damaged: bool) -> None:
    """Pictures in class folders. A damaged set has one good picture, of another size, and TIFF that libtiff refuses."""
    rng = np.random.default_rng(0)
    for i, label in enumerate(labels):
        file = io.BytesIO()
        size = (9, 30) if damaged else (20, 20)
        picture = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))
        picture.save(file, "TIFF", compression="tiff_deflate")
        path = folder / CLASSES[label] / f"{i:03d}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = file.getvalue()
        path.write_bytes(
            data[:8] + data[8:-300].replace(data[20:40], bytes(20)) + data[-300:] if damaged and i else data
        )


# --- What can be seen.

HOLDERS = {
    "features/*/*.h5": "the records themselves",
    "features/*/manifest.json": "digests of the shards, and of the source's listing",
    "features/*.ledger.sqlite": "`records` and `persons`, digests of the listing and of its persons, link sets",
    "features/*.digests": "digests of single records, which tell what sets share",
    "features/*/*.digests": "the same, in the folder of the set",
}
"""The files that depend on records, and how. They stay with whoever holds the records. Of shards and digests only names
and sizes are compared; of the others everything but these digests.
"""
SOURCES = ("arrays", "pictures")
"""What feature sets are made of."""
DIGEST = re.compile(rb"[0-9a-f]{64}")


class Clock(datetime):
    """A second later whenever it is asked."""

    asked = count()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 1, 1, tzinfo=tz) + timedelta(seconds=next(cls.asked))


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The curator with fixed answers, and clocks and names that count. Yields what could be seen at each release."""
    real, moments = sums.exact_sum, list[Any]()

    def forgotten(*given: Any) -> np.ndarray:
        found = (path for path in sorted(Path().rglob("*")) if path.is_file() and path.parts[0] not in SOURCES)
        moments.append({str(path): path.stat().st_size for path in found})
        return np.zeros_like(real(*given))

    patch.setattr(sums, "exact_sum", forgotten)
    patch.setattr(passes, "block_rows", lambda facts: BLOCK)
    for place in (run, private_evaluation):
        patch.setattr(place, "SystemBits", lambda: SeededBits(0))
    asked, named = count(), count()
    patch.setattr(Clock, "asked", count())
    for place in (charge, cap, told):
        patch.setattr(place, "datetime", Clock)
    # So long a time between two calls that each step of the progress is a line.
    for place in (display, extraction):
        patch.setattr(place, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(asked)))
    patch.setattr(answers, "_number_of", lambda file: "1")
    patch.setattr(files, "secrets", SimpleNamespace(token_hex=lambda size: f"{next(named):0{2 * size}x}"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield moments


@contextmanager
def streams() -> Iterator[list[bytes]]:
    """The process's own standard output and standard error, which libraries use, too."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    written: list[bytes] = []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield written
        finally:
            for number, descriptor in kept:
                os.dup2(descriptor, number)
                os.close(descriptor)
            for file in (out, err):
                file.seek(0)
                written.append(file.read())


def seen_in(world: Path, here: Path, lines: tuple[str, ...], patch: pytest.MonkeyPatch, fault: Fault | None) -> Seen:
    """What can be seen of these command lines in that world. It is moved to `here` first: outputs have whole paths."""
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(world, here)
    patch.chdir(here)
    seen: Seen = {}
    with watched(patch) as moments:
        if fault is not None:
            fault(patch)
        for line in lines:
            follow(line, seen)
        for head in sorted(Path("heads").glob("*")):
            follow(f"statement {head}", seen)
            follow(f"report {head} --out {head.name}.md", seen)
    seen["meanwhile"] = moments
    digests = {found for path in here.rglob(MANIFEST) for found in DIGEST.findall(path.read_bytes())}
    for path in sorted(here.rglob("*")):
        name, data = str(path.relative_to(here)), path.read_bytes() if path.is_file() else b"a folder"
        if name.startswith(SOURCES):
            continue
        if any(path.match(pattern) for pattern in HOLDERS):
            for digest in digests:
                data = data.replace(digest, b"*" * len(digest))
        seen[name] = len(data) if path.suffix in (".h5", ".digests") else data
    return seen


def both(worlds: dict[str, Path], here: Path, lines: tuple[str, ...], fault: Fault | None = None) -> list[Seen]:
    """What can be seen of these command lines in each world. fault: plants a leak."""
    found = []
    for world in worlds.values():
        with pytest.MonkeyPatch.context() as patch:
            found.append(seen_in(world, here, lines, patch, fault))
    return found


def follow(line: str, seen: Seen) -> None:
    """Run a command line as the console script does, and note everything that it says."""
    before, handler, code = (sys.stdout, sys.stderr, sys.argv), signal.getsignal(signal.SIGINT), None
    with streams() as written:
        sys.argv = ["dpfc", *line.split()]
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout, sys.stderr, sys.argv = before
            signal.signal(signal.SIGINT, handler)
    out, err = written
    if line.startswith("import") and "--json" in line:
        # The digest of the manifest, which has digests of the records. It is for whoever holds them.
        out = re.sub(b'"sha256": "[0-9a-f]{64}"', b"", out)
    if line.startswith("extract"):
        # Which pictures became null records, and how many. It is for whoever holds them.
        err = re.sub(rb"Warning: Null records.*do not publish it\.\n(  .*\n)*", b"", err)
    seen.update({f"{line}: code": code, f"{line}: stdout": out, f"{line}: stderr": err})


def differences(one: Seen, other: Seen) -> list[str]:
    """Where something else can be seen."""
    return [name for name in one | other if one.get(name) != other.get(name)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place") / "here"


# --- What is run.

PRIVATE, SEVERAL = "train --features private --epsilon 1", "train --features several --epsilon 1"
SCENARIOS: dict[str, tuple[str, ...]] = {
    "dp-whitened": (f"{PRIVATE} --steps 2 --damping 0.5",),
    "dp-whitened with all that is public": (
        f"{PRIVATE} --public-features known --public-head vectors.safetensors --steps 2 --json",
    ),
    "a private head, continued": (
        f"{PRIVATE} --steps 2 --out heads/first.safetensors",
        f"{PRIVATE} --steps 2 --public-head first --out heads/second.safetensors --json",
        "statement second",
    ),
    "dp-fc": (f"{PRIVATE} --method dp-fc --adjacency replace-one --steps 2 --budget-split 0.3,0.7 --json",),
    "dp-ls": (f"{PRIVATE} --method dp-ls --negative-weight 0.2 --ridge 1 --delta 0.02 --allow-large-delta",),
    "dp-newton, tuned": (f"{PRIVATE} --method dp-newton --steps 1 --damping 1 --tune-on known --json",),
    "dp-sgd, sampled": (
        "train --features private --method dp-sgd --noise-multiplier 9 --steps 2 --sampling-rate 0.3 --average",
    ),
    "dp-momentum, verbose": (f"-v {PRIVATE} --method dp-momentum --steps 2 --feature-clip 0.1 --gradient-clip 1",),
    "dp-adam, quiet": (f"-q {PRIVATE} --method dp-adam --steps 2 --learning-rate 1 --memory 8GB",),
    "noise of a seed": (f"{PRIVATE} --method dp-sgd --steps 2 --seed 3 --out heads/a.research.safetensors",),
    "label sets": (f"{SEVERAL} --steps 2", f"{SEVERAL} --method dp-sgd --steps 2 --loss softmax --json"),
    "what comes afterwards": (
        "train --epsilon 1 --method dp-sgd --steps 2 --yes",
        "train --epsilon 1 --method dp-sgd --steps 2 --json",
        "list",
        "list --json",
        "budget",
        "budget --json",
        "statement private-dp-sgd-eps1 --json",
        "evaluate",
        "evaluate private-dp-sgd-eps1 --features private --json",
    ),
    "persons": (
        "train --features persons --epsilon 1 --steps 2 --public-head vectors.safetensors --out heads/p.safetensors",
        "train --features persons --epsilon 1 --method dp-ls --delta 0.02 --json",
        "train --features persons --noise-multiplier 9 --method dp-sgd --steps 2 --sampling-rate 0.3",
        "statement p",
        "budget --features persons",
        "evaluate p --features persons",
        "list",
    ),
    "private evaluations": (
        f"{PRIVATE} --method dp-ls --out heads/h.safetensors",
        "evaluate h --features private --split train --epsilon 1 --delta 0.001 --by me --purpose paper",
        "-v evaluate h --features private --split train --epsilon 80 --json",
        "evaluate h --features private --epsilon 0.1 --csv",
        "budget --features private",
        f"{PRIVATE} --method dp-ls --out heads/later.safetensors",
        "train --features persons --epsilon 1 --method dp-ls --out heads/p.safetensors",
        "evaluate p --features persons --split train --epsilon 1 --markdown",
    ),
    "a rehearsal": (f"{PRIVATE} --dry-run", f"{PRIVATE} --method dp-ls --dry-run --json"),
    "refusals": (
        f"{PRIVATE} --delta 0.5",
        f"{PRIVATE} --memory 1KB",
        f"{PRIVATE} --out heads",
        f"{PRIVATE} --public-features private",
        f"{PRIVATE} --tune-on several",
        "evaluate --epsilon 1",
        "train --features private --sigma 1e30",
    ),
    "an extraction": (
        "extract imagefolder:pictures --classes flu,cold,rare --on-error null --most-null 0.95 --image-size 8 "
        "--pool mean --out found",
    ),
    "a cap": (
        "budget --features private --cap 3 --delta 1e-5 --by officer --note plan",
        f"{PRIVATE} --method dp-ls --by me --purpose figures --json",
        f"{PRIVATE} --method dp-ls --dry-run",
        "budget --features private --cap 2 --json",
        "budget --features private --cap none",
        "budget",
    ),
    "sets that are said to share records": (
        f"{PRIVATE} --method dp-ls --also known --by me",
        f"{PRIVATE} --method dp-ls --also persons --also known --dry-run",
        "budget --features known --also several --by officer --json",
        "train --features persons --method dp-ls --epsilon 1 --json",
        "budget --features private",
        "list",
    ),
    "refusals of what is said to share records": (
        f"{PRIVATE} --method dp-ls --also private",
        f"{PRIVATE} --method dp-ls --also nowhere",
        "budget --also several",
        "budget --features several --also ./several",
    ),
    "refusals under a cap": (
        f"{PRIVATE} --method dp-ls --by {'x' * 101}",
        "budget --features private --cap 3 --delta 0.5",
        "budget --features private --cap none",
        "budget --cap 3",
    ),
    "an import": (
        "import arrays --out fresh --classes 3 --labels-per-record 1 --json",
        "import arrays --out again --classes 3 --labels-per-record 1",
        "train --features fresh --method dp-sgd --steps 2 --epsilon 1",
    ),
}


@pytest.fixture(scope="module")
def seen_of(worlds: dict[str, Path], here: Path) -> Callable[[str], list[Seen]]:
    """What can be seen of a scenario, in each world."""
    known: dict[str, list[Seen]] = {}

    def found(scenario: str) -> list[Seen]:
        if scenario not in known:
            known[scenario] = both(worlds, here, SCENARIOS[scenario])
        return known[scenario]

    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_that_can_be_seen_depends_on_a_record(seen_of: Callable[[str], list[Seen]], scenario: str) -> None:
    one, other = seen_of(scenario)
    assert not differences(one, other)
    codes = {code for name, code in one.items() if name.endswith(": code")}
    assert codes == {2 if scenario.startswith("refusals") else 0}


def test_all_methods_and_all_flags_of_a_training_with_noise_take_part() -> None:
    words = {word for lines in SCENARIOS.values() for line in lines for word in line.split()}
    flags = {flag_of(command.train, name) for name in parameters(command.train)}
    # Other processes see the records as this one does, and write nothing (`test_distributed`).
    assert {*flags, "-q", "-v"} - words == {"--non-private", "--distributed"}
    assert set(METHODS) - words == {"dp-whitened"}, "which is the default"


LINE = f"-v {PRIVATE} --method dp-sgd --steps 2"


@pytest.mark.parametrize("how", [ValueError, MemoryError, KeyboardInterrupt])
def test_a_training_that_is_stopped_after_its_charge_ends_in_the_same_way(
    worlds: dict[str, Path], here: Path, how: type[BaseException]
) -> None:
    def stopped(patch: pytest.MonkeyPatch) -> None:
        real, calls = curator.draw_noise, count()

        def drawn(*given: Any) -> np.ndarray:
            if next(calls) == 1:
                raise how
            return real(*given)

        patch.setattr(curator, "draw_noise", drawn)
        patch.setattr(os, "_exit", sys.exit)

    one, other = both(worlds, here, (LINE, "budget"), stopped)
    assert not differences(one, other)
    assert b"stays charged" in one[f"{LINE}: stderr"] or how is ValueError
    assert b"stopped" in one["budget: stdout"]


# --- The closed lists: every name that a card or a row may have, and why it is public. A new one needs a reason here.

STATED = "what the user asked for"
FACTS = "a function of public facts and of what the user asked for"
OPTIONS = {
    "average": STATED,
    "bias_feature": FACTS,
    "budget_split": FACTS,
    "damping": FACTS,
    "feature_clip": FACTS,
    "gradient_clip": FACTS,
    "learning_rate": FACTS,
    "loss": STATED,
    "negative_weight": FACTS,
    "ridge": FACTS,
    "sampling_rate": STATED,
    "steps": STATED,
}
"""Those that are tuned are functions of public records, too."""
PLANNED = {
    "kind": "the method's plan",
    "shape": FACTS,
    "share": FACTS,
    "sigma": FACTS,
    "rate": STATED,
    "times": "the method's plan",
}
CARD = {
    "method": STATED,
    "date": "when the training was charged, before a record was summed",
    **{f"options.{name}": why for name, why in OPTIONS.items()},
    "claim": STATED,
    "epsilon": FACTS,
    "delta": FACTS,
    "mu": FACTS,
    "eta": FACTS,
    "accounting": STATED,
    "adjacency": STATED,
    "unit": "a word",
    "facts.n": "the number of records is public",
    "facts.m": "the number of classes is asserted",
    "facts.d": "the backbone's",
    "facts.k": "the most labels of a record are asserted",
    "facts.origin": "who asserts them",
    "facts.records": "the number of records is public",
    **{f"plan[].{name}": why for name, why in PLANNED.items()},
    "classes": "their names are asserted",
    "features.name": "the name of a folder",
    "features.split": "a word",
    "features.fingerprint": "a digest of backbone, preparation, precision and classes, and of no record",
    "features.backbone.name": "the backbone's",
    "features.backbone.from": "the name of the file that was imported",
    "features.preparation": STATED,
    "features.dtype": STATED,
    "features.hold_out": STATED,
    "ledger.training": "the number of the row",
    **{f"ledger.{name}": "how often dpfc was run" for name in ("trainings", "private", "unprotected", "other_records")},
    "ledger.epsilon": "of the plans in the set's own ledger",
    "ledger.exact": "of the plans in the set's own ledger",
    "ledger.unit": "of the plans in the set's own ledger",
    "versions.dpfc": "the program's",
    "public_features.name": "the name of a folder",
    "public_features.rows": "of public records",
    "public_features.fingerprint": "as that of the features",
    "public_features.backbone.name": "the backbone's",
    "public_features.backbone.from": "the name of the file that was imported",
    "public_head.name": "the name of a file",
    "public_head.sha256": "of public class vectors, or of the private head that was continued",
    "public_head.classes": "of public class vectors",
    "public_head.without": "of public class vectors, and names of classes, which are asserted",
    "public_head.made.source": "of public class vectors: a word",
    "public_head.made.model": "of public class vectors: the name of a backbone",
    "public_head.made.count": "of public class vectors: how many prompts or rows",
    "public_head.trusted": "a function of the gradients that are released",
    "public_head.doubted": "a function of the gradients that are released",
    "public_head.releases": "how many kinds of releases the private head that was continued had",
    "public_head.asserted": "the names of folders and files that this head and those before it took for public",
    "tuning.name": "the name of a folder",
    "tuning.fingerprint": "as that of the features",
    "tuning.facts.n": "of public records",
    "tuning.facts.m": "of public records",
    "tuning.runs": "a constant",
    "tuning.tried[].factors": "the method's grid",
    "tuning.tried[].score": "a function of public records",
    "tuning.finalists[].factors": "the method's grid",
    "tuning.finalists[].score": "a function of public records",
    "tuning.finalists[].sd": "a function of public records",
    "tuning.chosen": "a function of public records",
}
ROW = {
    "id": "the number of the row",
    "at": "when the training was charged, before a record was summed",
    "records": "the listing: it depends on the records. The ledger stays with whoever holds them",
    "split": "a word",
    "method": STATED,
    "claim": STATED,
    "epsilon": FACTS,
    "delta": FACTS,
    "mu": FACTS,
    "eta": FACTS,
    "adjacency": STATED,
    "unit": "a word",
    "n": "the number of records is public",
    "releases": "the plan, with the names of `PLANNED`",
    "head": "the name of a file",
    "state": "whether the training ended",
    "sha256": "of the head, which is a function of what was released",
    "who": "the name of an account, or what the user typed. It is in the ledger alone",
    "purpose": "what the user typed. It is in the ledger alone",
    "persons": "a digest of which records belong to which person. It is in the ledger alone",
    "caps": "how many caps were set before",
    "overlaps": "how often it was said before that a set shares records",
}
CAP = {
    "id": "the number of the row",
    "at": "when the cap was set",
    "records": ROW["records"],
    **dict.fromkeys(("epsilon", "delta"), STATED),
    "mu": "a function of epsilon and delta",
    "eta": "a constant",
    "who": ROW["who"],
    "note": ROW["purpose"],
    "trainings": "how many trainings were before",
    "unit": ROW["unit"],
    "persons": ROW["persons"],
}
OVERLAP = {
    "id": "the number of the row",
    "at": "when it was said",
    **dict.fromkeys(("records", "other"), ROW["records"]),
    "name": "what the other set was called",
    "who": ROW["who"],
    "trainings": CAP["trainings"],
}
HEAD = {
    "format": "a constant",
    "card": "see `CARD`",
    "chain": "steps with norms; a function of options and releases",
    "weight": "a function of releases",
    "bias": "a function of releases",
    "chain.0": "a function of releases",
}
LEAVES = ("tuning.tried[].factors", "tuning.finalists[].factors", "tuning.chosen")
"""They have the names of options."""


def names_in(value: Any, place: str = "") -> Iterator[str]:
    """The names in a JSON value, with those that they lie in."""
    if place in LEAVES:
        assert set(value) <= set(OPTIONS)
    if isinstance(value, Mapping) and place not in LEAVES:
        for name, inner in value.items():
            yield from names_in(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from names_in(inner, f"{place}[]")
    else:
        yield place


def test_card_row_and_head_have_the_names_of_the_closed_lists_and_no_other(
    seen_of: Callable[[str], list[Seen]], tmp_path: Path
) -> None:
    of_cards, of_heads, of_rows, of_caps, of_overlaps, of_plans = (set[str]() for _ in range(6))
    for scenario in SCENARIOS:
        seen = seen_of(scenario)[0]
        for name, data in seen.items():
            if name.startswith("heads/"):
                size = int.from_bytes(data[:8], "little")
                tensors = json.loads(data[8 : 8 + size])
                told = tensors.pop("__metadata__")
                assert len(data) == 8 + size + max(tensor["data_offsets"][1] for tensor in tensors.values())
                of_heads |= {*told, *tensors}
                of_cards |= set(names_in(json.loads(told["card"])))
            elif name.endswith(".ledger.sqlite"):
                (tmp_path / "ledger.sqlite").write_bytes(data)
                with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
                    connection.row_factory = sqlite3.Row
                    for row in connection.execute("SELECT * FROM trainings"):
                        of_rows |= set(row.keys())
                        of_plans |= set(names_in(json.loads(row["releases"])))
                    for row in connection.execute("SELECT * FROM caps"):
                        of_caps |= set(row.keys())
                    for row in connection.execute("SELECT * FROM overlaps"):
                        of_overlaps |= set(row.keys())
    assert of_cards == set(CARD)
    assert of_heads == set(HEAD)
    assert of_rows == set(ROW)
    assert of_caps == set(CAP)
    assert of_overlaps == set(OVERLAP)
    assert of_plans == {f"[].{name}" for name in PLANNED}


# --- Planted faults. Each must be seen, and where it was planted.


def labels() -> np.ndarray:
    return FeatureSet("features/private").arrays("train")[1]


def nulls() -> int:
    """The number of null records: it depends on the records, and is no public fact."""
    return int((labels() < 0).all(axis=1).sum())


def after(place: Any, name: str, change: Callable[[Any], Any]) -> Fault:
    """A fault that changes what a function gives."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(place, name)
        patch.setattr(place, name, lambda *given, **named: change(real(*given, **named)))

    return plant


def before(place: Any, name: str, do: Callable[[], object]) -> Fault:
    """A fault that does something more before a function."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(place, name)
        patch.setattr(place, name, lambda *given, **named: (do(), real(*given, **named))[1])

    return plant


def computed(owner: type, name: str, change: Callable[[Any, Any], Any]) -> Fault:
    """A fault in a property."""
    real = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, property(lambda self: change(self, real.fget(self))))


def counts() -> list[int]:
    return [int((labels() == label).sum()) for label in range(M)]


def heaviest_first(card: dict[str, Any]) -> dict[str, Any]:
    sizes = counts()
    return {**card, "classes": [card["classes"][i] for i in sorted(range(M), key=lambda i: -sizes[i])]}


def scaled(head: Head) -> Head:
    x = FeatureSet("features/private").arrays("train")[0]
    return replace(head, weight=head.weight * (1 + np.tanh(np.nanmean(np.clip(x, -1, 1)))))


def clipped_by_the_records(asked: request.Request) -> request.Request:
    x = np.clip(FeatureSet("features/private").arrays("train")[0], -9, 9)
    return replace(asked, options={**asked.options, "feature_clip": float(np.nanmax(np.linalg.norm(x, axis=1)))})


def early_stopping(patch: pytest.MonkeyPatch) -> None:
    real = run.run

    def shortened(charged: Charged, observer: Any) -> Any:
        checked, fewer = charged.checked, int(nulls() > 0)
        method = checked.calibrated.method
        solve = lambda oracle, facts, made: method.solve(oracle, facts, replace(made, steps=made.steps - fewer))  # noqa: E731
        calibrated = replace(checked.calibrated, method=replace(method, solve=solve))
        return real(replace(charged, checked=replace(checked, calibrated=calibrated)), observer)

    patch.setattr(training, "run", shortened)


def row_with_a_figure(patch: pytest.MonkeyPatch) -> None:
    for place in (charge, run):
        after(place, "entry_of", lambda entry: replace(entry, eta=entry.eta and entry.eta * (1 + nulls())))(patch)


def total_of_labelled(patch: pytest.MonkeyPatch) -> None:
    real = curator._Passes._read
    patch.setattr(curator._Passes, "_read", lambda self, done, n: real(self, done, n - nulls()))


def refuse() -> None:
    if nulls():
        raise UserError("There are records without a label.", "Label them.", code="bad-record")


def said_to_a_library() -> None:
    os.write(2, f"{nulls()} records are empty\n".encode())


def noted(path: str) -> Callable[[], object]:
    return lambda: Path(path).write_text(str(counts()))


def warned() -> None:
    if max(counts()) > 2 * min(counts()):
        display.warn("the classes are of unequal size")


FAULTS: dict[str, tuple[str, Fault]] = {
    "exact class counts in the card": ("heads/", after(run, "card_of", lambda card: {**card, "counts": counts()})),
    "the card's classes by their sizes": ("heads/", after(run, "card_of", heaviest_first)),
    "a digest of the records in the fingerprint": (
        "heads/",
        computed(Manifest, "fingerprint", lambda self, found: self.source["identity"]["listing"]["train"]),
    ),
    "weights in proportion to a mean of the records": ("heads/", after(run, "Head", scaled)),
    "a default read off the records": ("heads/", after(request, "requested", clipped_by_the_records)),
    "steps until the records are learned": ("heads/", early_stopping),
    "more noise for null records": ("heads/", after(curator, "draw_noise", lambda drawn: drawn << min(nulls(), 1))),
    "a file as long as the labelled records": ("heads/", after(heads, "encoded", lambda data: data + bytes(nulls()))),
    "a file name with a count": ("heads/", after(check, "path_of", lambda p: p.with_name(f"{nulls()}-{p.name}"))),
    "a temporary name with a count": (
        "meanwhile",
        after(heads, "temporary_beside", lambda path: path.with_name(f"{path.name}.{nulls()}")),
    ),
    "a file of statistics beside the heads": (".counts", before(training, "run", noted("heads/.counts"))),
    "a figure of the records in the row": ("ledger.sqlite", row_with_a_figure),
    "a clock that is asked once for every null record": (
        "ledger.sqlite",
        before(training, "charge", lambda: [Clock.now(UTC) for _ in range(nulls())]),
    ),
    "a warning of unequal classes": ("stderr", before(training, "check", warned)),
    "a warning of NumPy about huge numbers": (
        "stderr",
        before(sums, "exact_sum", lambda: FeatureSet("features/private").arrays("train")[0].astype(np.float16)),
    ),
    "a line of a log with the number of null records": (
        "stderr",
        before(training, "run", lambda: print(nulls(), file=sys.stderr)),  # noqa: T201
    ),
    "a line of a library with that number": ("stderr", before(training, "run", said_to_a_library)),
    "progress of the labelled records alone": ("stderr", total_of_labelled),
    "a result with the number of null records": ("stdout", before(training, "run", lambda: print(nulls()))),  # noqa: T201
    "an exit code": ("code", after(command, "show_head", lambda shown: sys.exit(3 if nulls() else 0))),
    "a refusal": ("code", before(check, "check_memory", refuse)),
    "an evaluation that looks at the training split": (
        "evaluate --json: stderr",
        before(evaluation, "_check_fit", lambda: display.say(f"{nulls()} records were empty")),
    ),
    "a count in a report": (".md", after(contents, "_trained", lambda blocks: (*blocks, Words(str(nulls()))))),
    "a list of the labelled records": (
        "list --json: stdout",
        computed(FeatureSet, "splits", lambda self, rows: {name: n - nulls() for name, n in rows.items()}),
    ),
}


IN_EVALUATIONS: dict[str, tuple[str, Fault]] = {
    "the exact number of labelled records": (
        "stdout",
        after(private_evaluation, "_figures", lambda found: replace(found, n=N - nulls())),
    ),
    "a warning of unequal classes": ("stderr", before(private_evaluation, "_figures", warned)),
    "a refusal": ("code", before(private_evaluation, "_answers", refuse)),
}
EVALUATED = (f"{PRIVATE} --method dp-ls --out heads/h.safetensors", "evaluate h --split train --epsilon 1")


@pytest.mark.parametrize("fault", IN_EVALUATIONS)
def test_leaks_planted_in_a_private_evaluation_are_seen(worlds: dict[str, Path], here: Path, fault: str) -> None:
    where, plant = IN_EVALUATIONS[fault]
    found = differences(*both(worlds, here, EVALUATED, plant))
    assert any(name == f"{EVALUATED[1]}: {where}" for name in found), found


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_leaks_are_seen(worlds: dict[str, Path], here: Path, fault: str) -> None:
    where, plant = FAULTS[fault]
    found = differences(*both(worlds, here, (LINE, "evaluate --json", "list --json"), plant))
    assert any(where in name for name in found), found
