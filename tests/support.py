"""What several rooms' tests share: block streams from arrays, small data sets, and oracles that watch."""

import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, TypeVar, cast
from unittest import mock

import msgspec
import numpy as np
import pytest
import typer

from dpfc_cli import points
from dpfc_cli.annotations.broken import Broken
from dpfc_cli.annotations.classes import class_names, coded, numbers_of, stated
from dpfc_cli.annotations.groups import keys_in
from dpfc_cli.cli.app import app, main, register
from dpfc_cli.errors import UserError
from dpfc_cli.extraction.arrays import Source, in_memory, make_of
from dpfc_cli.extraction.request import Making
from dpfc_cli.features.lookup import new_folder
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Scorer
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.accounting import Claim, Guarantee, Privacy
from dpfc_cli.privacy.chain import Centre, Chain, Clip, Linear
from dpfc_cli.privacy.curator import Curator, Unprotected
from dpfc_cli.privacy.directions import Directions
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Grid, Hessians, Mean, Query
from dpfc_cli.privacy.standings import Standings
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.check import check
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.run import Trained, run
from dpfc_cli.version import code_digest
from tests import instead

CHAIN = (Clip(1.0),)
LOST = 600.0
"""Seconds after which somebody whom nobody meets fails: no machine is so busy."""


Made = TypeVar("Made")


def replace(value: Made, **changed: Any) -> Made:
    """A record, or a value of a dataclass, with other fields."""
    record = isinstance(value, msgspec.Struct)
    return (msgspec.structs.replace if record else dataclasses.replace)(value, **changed)  # type: ignore[type-var]


@contextmanager
def package(folder: Path, name: str, source: str, entries: str) -> Iterator[None]:
    """In it a package of one module is installed, with its entry points, as pip leaves it in a folder."""
    (folder / f"{name}.py").write_text(source)
    about = folder / f"{name}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        points.installed.cache_clear()
        points.added.cache_clear()
        try:
            yield
        finally:
            sys.modules.pop(name, None)
    points.installed.cache_clear()
    points.added.cache_clear()


@contextmanager
def other_source(module: ModuleType) -> Iterator[None]:
    """In it the source of a module counts as another one."""
    real = Path.read_bytes
    with mock.patch.object(Path, "read_bytes", lambda path: real(path) + b"#" * (str(path) == module.__file__)):
        code_digest.cache_clear()
        try:
            yield
        finally:
            code_digest.cache_clear()


@functools.cache
def commands() -> Any:
    """The whole command line, as Typer builds it."""
    register()
    return typer.main.get_command(app)


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """What a line says, the words after `dpfc`. Raises what the command line would refuse. Nothing is run."""
    group = commands()
    outer = group.make_context("dpfc", list(words))
    name = next(word for word in words if not word.startswith("-"))
    command = group.get_command(outer, name)
    assert command is not None, f"there is no command '{name}'"
    said = command.make_context(name, list(words)[list(words).index(name) + 1 :], parent=outer).params
    return {each: list(value) if isinstance(value, tuple) else value for each, value in said.items()}


def typed(words: Sequence[str], output: IO[Any], remarks: IO[Any]) -> int:
    """Run a command line in this process, as the console script does; its exit code.

    output, remarks: what is the process's own standard output and standard error meanwhile. Libraries use these, too.
    """
    before, handler = (sys.stdout, sys.stderr, sys.argv), signal.getsignal(signal.SIGINT)
    kept = [(number, os.dup(number)) for number in (1, 2)]
    for (number, _), file in zip(kept, (output, remarks), strict=True):
        os.dup2(file.fileno(), number)
    sys.argv = ["dpfc", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.stdout, sys.stderr, sys.argv = before
        signal.signal(signal.SIGINT, handler)
        for number, descriptor in kept:
            os.dup2(descriptor, number)
            os.close(descriptor)
    raise AssertionError("main returns nothing")


@contextmanager
def refuses(code: str, match: str | None = None, **fields: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """The block raises a UserError of that code, about these fields. match: a pattern in its text."""
    with pytest.raises(UserError, match=match) as caught:
        yield caught
    error = caught.value
    assert (error.code, {name: error.fields.get(name) for name in fields}) == (code, fields)


@contextmanager
def shards_of(rows: int) -> Iterator[None]:
    """Shards have so many rows."""
    with mock.patch.multiple("dpfc_cli.features.shards", BATCH=rows, SHARD_ROWS=rows):
        yield


def stored(folder: Path) -> dict[str, bytes]:
    """The files of a feature set, without the set's random id."""
    own = FeatureSet(folder).manifest.id.encode()
    return {path.name: path.read_bytes().replace(own, b"") for path in sorted(folder.iterdir())}


def stream_of(x: np.ndarray, labels: np.ndarray, persons: np.ndarray | None = None) -> BlockStream:
    """Blocks of arrays held in memory. labels: n or n × k. persons: the person of each record."""

    def blocks(rows: int) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(x), rows):
            taken = slice(start, start + rows)
            found = () if persons is None else (persons[taken],)
            yield start, x[taken], labels[taken].reshape(len(x[taken]), -1), *found

    return blocks


def exact_sum(
    query: Query,
    stream: BlockStream,
    facts: Facts,
    grid: Grid,
    sample: np.ndarray | None = None,
    directions: Directions | None = None,
) -> np.ndarray:
    """The exact sum of a query over the records of a stream."""
    return sums.exact_sum(query, sums.Summed(stream, facts, grid, directions=directions), sample)


def every_query(facts: Facts, seed: int = 0, scale: float = 1.0) -> list[Query]:
    """One of each kind, with and without a bias, with both losses, and of raw features."""
    rng = np.random.default_rng(seed)
    theta = scale * rng.normal(size=(facts.d + 1, facts.m))
    centred: Chain = (Clip(1e-30), Centre(scale * rng.normal(size=facts.d) / facts.d), Clip(0.9))
    white = Linear(scale * rng.normal(size=(facts.d, facts.d)))
    return [
        Gram(CHAIN),
        Gram(CHAIN, constant=0.2),
        ClassSums(CHAIN),
        ClassGrams(CHAIN),
        Gradient(CHAIN, theta, clip=0.3),
        Gradient(CHAIN, theta[:-1], clip=2.0, constant=0),
        Gradient(CHAIN, theta, clip=0.3, loss="softmax"),
        Gradient((), theta[:-1], clip=0.005, constant=0, offset=-10.0),
        Hessians(CHAIN, theta, 0, facts.m, constant=1.0),
        Hessians(CHAIN, theta[:-1], 1, 2),
        Mean(CHAIN),
        Outcomes(CHAIN, theta[:-1], theta[-1]),
        Outcomes(centred, theta[:-1], theta[-1], best=2),
        Outcomes(CHAIN, theta[:-1], theta[-1], by_class=True),
        Standings(CHAIN, theta[:-1], theta[-1], depth=3),
        Outcomes(CHAIN, theta[:-1, :1], theta[-1, :1], groups=facts.m),
        Gram(centred),
        Gradient((*centred, white), theta, clip=0.4, constant=0.3, loss="softmax", radius=2.0),
    ]


def of_each_way(facts: Facts) -> list[Query]:
    """A query for each of the ways in which blocks are read and sums are added up."""
    queries = every_query(facts)
    return [next(q for q in queries if isinstance(q, kind)) for kind in (Gram, ClassGrams, Gradient, Hessians)]


def blobs(n: int, d: int, m: int, seed: int = 0, apart: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """n records in m Gaussian classes whose centres lie `apart` from the origin."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(m, d))
    centres *= apart / np.linalg.norm(centres, axis=1, keepdims=True)
    labels = np.arange(n) % m
    return (centres[labels] + rng.normal(size=(n, d))).astype(np.float32), labels.astype(np.int32)


def drawn_sigmas(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by σ, in lattice units, whenever a curator draws noise."""
    drawn: list[int] = []
    real = curator_module.draw_noise

    def spy(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        drawn.append(sigma)
        return real(query, shape, sigma, bits)

    instead.draw_noise(monkeypatch, spy)
    return drawn


class Watching(Oracle):
    """An oracle that passes queries on and remembers them with their answers."""

    def __init__(self, inner: Curator) -> None:
        self.inner = inner
        self.queries: list[Query] = []
        self.answers: list[np.ndarray] = []

    def release(self, query: Query) -> np.ndarray:
        self.queries.append(query)
        self.answers.append(self.inner.release(query))
        return self.answers[-1]


def curator(facts: Facts, plan: Plan, mu: float, x: np.ndarray, labels: np.ndarray, seed: int = 0) -> Curator:
    return Curator(Mechanism(facts=facts, plan=plan, mu=mu), Unprotected(stream_of(x, labels)), SeededBits(seed))


def plan_of(facts: Facts, *releases: tuple[Query, float], rate: float = 1.0) -> Plan:
    """The plan that releases these queries with these shares, each seeing records at that rate."""
    return Plan(tuple(planned(query, facts, share, rate) for query, share in releases))


def calibrated_at(
    facts: Facts, plan: Plan, mu: float | None, claim: Claim = "private", epsilon: float = 1.0, method: str = "dp-fc"
) -> Calibrated:
    """A training of that plan at that μ, as calibration would leave it. mu: None without noise."""
    privacy = Privacy(epsilon=None if mu is None else epsilon, seed=7 if claim == "research" else None)
    assert privacy.claim == claim
    return Calibrated(
        method=METHODS[method],
        facts=facts,
        privacy=privacy,
        given={},
        options=METHODS[method].defaults(facts, mu, {}),
        plan=plan,
        mechanism=None if mu is None else Mechanism(facts=facts, plan=plan, mu=mu),
        guarantee=None if mu is None else Guarantee(epsilon=epsilon, delta=1e-5, mu=mu, eta=1e-60),
    )


def asked(privacy: Privacy) -> dict[str, Any]:
    """How that privacy is asked for."""
    return vars(privacy) | {"non_private": privacy.claim == "non-private"}


def trained(features: FeatureSet, calibrated: Calibrated, folder: Path) -> Trained:
    """The training of a calibration on a feature set: checked, charged and run. The head lies in the folder."""
    request = Request(
        features=features,
        folder=folder,
        **asked(calibrated.privacy),
        adjacency=None if calibrated.claim == "non-private" else calibrated.facts.adjacency,
    )
    checked = check(request, calibrated, Observer())
    return run(checked, Observer())


def bare_manifest(source: dict[str, Any] | None = None, **more: Any) -> Manifest:
    """The least that a manifest says, before its shards are made: two classes, two dimensions."""
    return Manifest(
        classes=("a", "b"),
        dim=2,
        dtype="float32",
        labels_per_record=1,
        origin="asserted",
        splits={},
        backbone={},
        source=source or {},
        **more,
    )


def set_with(manifest: Manifest, name: str = "set") -> FeatureSet:
    """Stands for a feature set where its manifest and its name are all that is asked for."""
    return cast(FeatureSet, SimpleNamespace(manifest=manifest, name=name))


def said_of(plan: Plan) -> list[tuple[str, tuple[int, ...]]]:
    """Kind and shape of each planned release."""
    return [(release.kind, release.shape) for release in plan.releases]


def integers(a: np.ndarray) -> list[int]:
    """The entries as Python integers, exact; fails if one is not an integer."""
    flat = np.asarray(a, np.float64).ravel()
    assert (flat == np.rint(flat)).all()
    return [int(v) for v in flat]


def accuracy(solution: Solution, x: np.ndarray, y: np.ndarray) -> float:
    """The share of records whose class scores highest."""
    scores = Scorer(chain=solution.chain, weight=solution.weight, bias=solution.bias).scores(x)
    return float((scores.argmax(axis=1) == y).mean())


def nulls(rows: dict[str, int], share: float | None = None) -> Broken:
    """What counts null records, of which there may be that share."""
    return Broken("record", rows, lambda split, i: f"{split}/{i}", share)


def feature_set(
    source: Path | str, out: Path | str | None = None, *, classes: Any, labels_per_record: int = 1, **wanted: Any
) -> FeatureSet:
    """A feature set of arrays in an .npz or a folder of .npy: {train,test}_{x,y,groups}.

    wanted: fields of `Making`, and dtype.
    """
    place, dtype = Path(source), wanted.pop("dtype", None)
    files = {path.stem: path for path in place.glob("*.npy")}
    arrays = dict(np.load(place)) if place.is_file() else {name: np.load(path) for name, path in files.items()}
    splits = [split for split in ("train", "test") if f"{split}_x" in arrays]
    names = stated(class_names(classes))
    labels = numbers_of({split: coded(arrays[f"{split}_y"]) for split in splits}, names)
    records = {}
    for split in splits:
        groups = arrays.get(f"{split}_groups")
        keys = None if groups is None else keys_in(groups, str(place), "groups")
        records[split] = in_memory(arrays[f"{split}_x"], labels[split], keys)
    person = {"by": "column", "column": "groups"}
    of = Source(path=place, classes=names, k=labels_per_record, person=person)
    return make_of(records, of, new_folder(out or "imported"), Making(**wanted), dtype)[0]
