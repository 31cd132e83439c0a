"""A head's file is data from a stranger: whatever it holds, it is read as what it says, or refused as damaged."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save
from typer.testing import CliRunner

from dpfc_cli.cli import list_, verify  # noqa: F401 (they register their commands)
from dpfc_cli.cli.app import app
from dpfc_cli.errors import UserError
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head, check_card
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.records.card import card_of
from dpfc_cli.records.claims import Release, epsilon_of, mu_of
from dpfc_cli.records.findings import check
from dpfc_cli.structs import decoded
from tests.hostile import altered, calibrated, card_as_written, places
from tests.support import refuses

EXACT = card_as_written(calibrated("dp-whitened", Privacy(epsilon=1.0)))
SAMPLED = card_as_written(
    calibrated("dp-sgd", Privacy(noise_multiplier=30.0, delta=1e-5), steps=2, sampling_rate=0.1, learning_rate=1.0)
)
NON_PRIVATE = card_as_written(calibrated("dp-ls", Privacy()))
CARDS = {"exact": EXACT, "sampled": SAMPLED, "non-private": NON_PRIVATE}
CHAIN = [{"step": "clip", "norm": 0.5}, {"step": "centre"}, {"step": "linear"}]
ARRAYS = {"weight": np.ones((2, 3)), "bias": np.zeros(3), "chain.0": np.zeros(2), "chain.1": np.eye(2)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for heads; nothing else is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path))
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    return tmp_path


def written(
    folder: Path, card: str = json.dumps(EXACT), chain: str = json.dumps(CHAIN), **arrays: np.ndarray | None
) -> Path:
    metadata = {"format": heads.FORMAT, "card": card, "chain": chain}
    held = {name: array for name, array in {**ARRAYS, **arrays}.items() if array is not None}
    (folder / "a.safetensors").write_bytes(save(held, metadata))
    return folder / "a.safetensors"


def refused_or_used(path: Path, listed: bool = True) -> bool:
    """Whether the head is refused as damaged. If it is not, everything that shows it must work."""
    try:
        found = Head.load(path)
    except UserError as error:
        return error.code == "damaged" or pytest.fail(str(error))
    for line in (["statement", str(path)], *([["list"]] if listed else [])):
        ended = CliRunner().invoke(app, line)
        # What does not fit the method is refused, too: nobody is told what it claims.
        assert ended.exit_code in (0, 5), (line, ended.output)
    assert np.isfinite(found.scores(np.ones((2, 2)))).all()
    return False


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (kind, place)
        for kind, card in CARDS.items()
        for place in places(card)
        # The cards differ in these.
        if kind == "exact" or (place and place[0] in ("claim", "epsilon", "delta", "mu", "eta", "plan"))
    ],
    ids=lambda value: value if isinstance(value, str) else ".".join(map(str, value)) or "all",
)
def test_whatever_stands_at_a_place_of_a_card_is_shown_or_refused(
    folder: Path, kind: str, place: tuple[str | int, ...]
) -> None:
    listed = not place or place[0] in ("method", "claim", "epsilon", "delta", "features", "date")
    refused = [refused_or_used(written(folder, text), listed) for text in altered(CARDS[kind], place)]
    assert any(refused)


@pytest.mark.parametrize("place", list(places(CHAIN)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_whatever_stands_at_a_place_of_a_chain_is_run_or_refused(folder: Path, place: tuple[str | int, ...]) -> None:
    for text in altered(CHAIN, place):
        refused_or_used(written(folder, chain=text))


def test_a_card_has_no_key_that_no_training_writes() -> None:
    for within in ((), ("facts",), ("features",), ("ledger",), ("versions",)):
        card: dict[str, Any] = json.loads(json.dumps(EXACT))
        part = card
        for name in within:
            part = part[name]
        part["approved_by"] = "the board"
        with pytest.raises(ValueError, match="approved_by"):
            card_of(card)


def test_a_whole_number_is_a_number() -> None:
    card = {**SAMPLED, "options": {**SAMPLED["options"], "learning_rate": 5}}
    check(card_of(card))
    with pytest.raises(ValueError, match="positive"):
        check(card_of({**card, "options": {**card["options"], "learning_rate": -5}}))


def test_a_head_that_memory_cannot_hold_is_refused_before_it_takes_any(
    folder: Path, room: Callable[[float], None]
) -> None:
    """On the disk it is a hole."""
    path = written(folder, json.dumps(EXACT))
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    rows = 2 * 10**7
    weight = {"dtype": "F64", "shape": [rows, 3], "data_offsets": [0, 24 * rows]}
    header = json.dumps({"__metadata__": metadata, "weight": weight}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 24 * rows)
    room(1e8)
    with refuses("memory", path=str(path)):
        Head.load(path)


@pytest.mark.parametrize(("adjacency", "k"), [("zero-out", 3), ("replace-one", 1)])
@pytest.mark.parametrize("method", METHODS)
def test_every_card_that_a_training_writes_is_taken(method: str, adjacency: Adjacency, k: int) -> None:
    wanted = [
        *(Privacy(epsilon=epsilon, delta=1e-5) for epsilon in (1e-4, 1.0, 100.0)),
        Privacy(epsilon=0.01, delta=1e-30),
        Privacy(epsilon=1e-4, delta=0.4, allow_large_delta=True),
        *(Privacy(noise_multiplier=sigma, delta=1e-5) for sigma in (5.0, 1e9)),
        Privacy(epsilon=1.0, seed=3),
        Privacy(),
    ]
    for privacy in wanted:
        check(card_of(card_as_written(calibrated(method, privacy, adjacency, k))))


def with_epsilon(card: dict[str, Any], epsilon: float) -> dict[str, Any]:
    return {**card, "epsilon": epsilon, "ledger": {**card["ledger"], "epsilon": epsilon}}


def of_more_kinds_than_are_accounted_for() -> dict[str, Any]:
    """By another version, whose plans are not known. To account for hundreds could take hours."""
    card: dict[str, Any] = json.loads(json.dumps(SAMPLED))
    (release,) = card["plan"]
    card["versions"]["dpfc"] = "99"
    card["plan"] = [{**release, "times": 1, "share": 1 / 33, "sigma": 30 + i / 1000} for i in range(33)]
    made = tuple(decoded(each, Release) for each in card["plan"])
    card["mu"] = mu_of(made)
    card["epsilon"] = card["ledger"]["epsilon"] = epsilon_of(made, card["delta"], card["eta"])
    return card


FIRST, SECOND, *REST = EXACT["plan"]
LEDGER = EXACT["ledger"]
FALSE: list[tuple[str, dict[str, Any]]] = [
    ("epsilon", with_epsilon(EXACT, 0.9)),
    ("epsilon", with_epsilon(SAMPLED, 0.9 * SAMPLED["epsilon"])),
    ("epsilon", of_more_kinds_than_are_accounted_for()),
    ("epsilon", {**EXACT, "mu": EXACT["mu"] * 1.0001}),
    ("epsilon", {**EXACT, "delta": EXACT["delta"] / 2}),
    # No room for the sampler, and not enough.
    ("epsilon", {**EXACT, "eta": EXACT["delta"]}),
    *(("releases", {**EXACT, "eta": EXACT["eta"] * factor}) for factor in (0, 0.5, 1 - 1e-8)),
    ("releases", {**EXACT, "plan": [{**FIRST, "sigma": FIRST["sigma"] * 0.999}, SECOND, *REST]}),
    ("releases", {**EXACT, "plan": [{**FIRST, "rate": 0.5}, SECOND, *REST]}),
    ("releases", {**EXACT, "plan": [{**FIRST, "shape": [4, 4]}, SECOND, *REST]}),
    ("releases", {**EXACT, "plan": [FIRST, SECOND, *REST, FIRST]}),
    (
        "releases",
        {**EXACT, "plan": [{**FIRST, "share": SECOND["share"]}, {**SECOND, "share": FIRST["share"]}, *REST]},
    ),
    ("releases", {**EXACT, "options": {**EXACT["options"], "budget_split": [0.3, 0.3, 0.4]}}),
    ("counts", {**EXACT, "facts": {**EXACT["facts"], "m": 4}}),
    ("counts", {**EXACT, "unit": "person"}),
    ("counts", {name: value for name, value in EXACT.items() if name != "ledger"}),
    ("other trainings", {**EXACT, "ledger": {**LEDGER, "epsilon": LEDGER["epsilon"] / 2}}),
    ("other trainings", {**EXACT, "ledger": {**LEDGER, "private": 0}}),
]


def test_a_card_that_contradicts_itself_is_refused(folder: Path) -> None:
    for number, (what, card) in enumerate(FALSE):
        with refuses("damaged") as refused:
            Head.load(written(folder, json.dumps(card)))
        said = refused.value.fields["contradictions"]
        assert any(each.startswith(f"{what}: ") for each in said), (number, said)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "arrays",
    [
        {"weight": np.full((2, 3), np.nan)},
        {"bias": np.array([0, np.inf, 0])},
        {"weight": np.ones((2, 3), np.int64)},
        {"weight": np.ones((2, 3), bool)},
        {"weight": np.ones(6)},
        {"weight": np.ones((2, 3, 1))},
        {"weight": np.zeros((0, 3))},
        {"weight": np.zeros((2, 0)), "bias": np.zeros(0)},
        {"weight": np.ones((3, 3)), "chain.0": np.zeros(3), "chain.1": np.eye(3)},
        {"bias": np.zeros(2)},
        {"bias": None},
        {"chain.0": np.zeros(3)},
        {"chain.1": np.full((2, 2), np.inf)},
        {"chain.1": np.zeros((2, 3))},
        {"chain.1": None},
        {"chain.2": np.zeros((9, 9))},
        {"chain.1": None, "chain.7": np.eye(2)},
    ],
)
def test_arrays_that_no_training_writes_are_refused(folder: Path, arrays: dict[str, Any]) -> None:
    with refuses("damaged"):
        Head.load(written(folder, **arrays))


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b'{"weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}', 12),
        (b'{"weight":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]}}', 6),
        (b'{"weight":{"dtype":"F99","shape":[2,3],"data_offsets":[0,6]}}', 6),
        (b'{"weight":{"dtype":"F64","shape":[1000000000,1000000000],"data_offsets":[0,8]}}', 8),
        (b'{"weight":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F64","shape":[1],'
         b'"data_offsets":[4,12]}}', 12),
        (b'{"weight":{"dtype":"F64","shape":[1],"data_offsets":[8,0]}}', 8),
        (b'{"weight":1}', 0),
        (b"[" * 100_000, 0),
    ],
)  # fmt: skip
def test_headers_that_lie_are_refused(folder: Path, header: bytes, data: int) -> None:
    metadata = json.dumps({"format": heads.FORMAT, "card": json.dumps(EXACT), "chain": "[]"}).encode()
    whole = header.replace(b"{", b'{"__metadata__":' + metadata + b",", 1)
    for text, size in ((whole, len(whole)), (whole, 100_000_001), (whole, 2**63)):
        (folder / "a.safetensors").write_bytes(size.to_bytes(8, "little") + text + bytes(data))
        assert refused_or_used(folder / "a.safetensors")


def test_what_is_no_plain_file_is_refused_at_once(folder: Path) -> None:
    """To open a pipe would wait for whoever writes to it."""
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "folder.safetensors").mkdir()
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "device.safetensors").symlink_to("/dev/zero")
    for path in folder.glob("*.safetensors"):
        with refuses("unreadable" if path.stem == "loop" else "damaged", path=str(path)):
            Head.load(path)
    ended = CliRunner().invoke(app, ["list"])
    assert ended.exit_code == 0
    assert ended.stderr.count("cannot be read as a head") == 4


def test_a_card_that_could_not_be_read_again_is_refused_before_the_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that reads heads takes 100 MB of names, and the one that writes them takes more."""
    check_card(card_of(EXACT))
    assert heads.LARGEST_HEADER == 100_000_000
    monkeypatch.setattr(heads, "LARGEST_HEADER", 200_000)
    with refuses("unsupported", parameter="classes"):
        check_card(card_of({**EXACT, "classes": [f"{i}{'x' * 40_000}" for i in range(3)]}))
