"""`--on ray`: real clusters of two nodes, real drivers, and workers that are killed."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extensions.engine.engine import Together
from dpfc_cli.extensions.engine.work import Worker
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.passes import IncompletePassError
from dpfc_cli.privacy.queries import Gram
from dpfc_cli.privacy.sums import Summed
from dpfc_cli.version import code_digest
from tests.extensions.engine.conftest import Driver
from tests.support import LOST, stored
from tests.training.requests import ledger, states

Start = Callable[..., "subprocess.Popen[str]"]

TRAININGS = """
import json, warnings
from pathlib import Path
import numpy as np
import dpfc_cli as dpfc
from dpfc_cli.evaluation.private import prepare, release
from dpfc_cli.evaluation.request import PrivateScoring
from dpfc_cli.privacy import forms, noise
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.run import run
from dpfc_cli.training.summing import summing_on
from dpfc_cli.training.train import plan

warnings.simplefilter("ignore")
records, persons = dpfc.open_features("records"), dpfc.open_features("persons")
forms.PIECE_BYTES = 300
found = []
for on in (None, "ray"):
    with summing_on(on) as summing:
        heads = [
            run(
                plan(
                    Request(of, again=True, epsilon=1.0, seed=5, folder=Path(f"heads-{on}"), summing=summing, **more),
                    Observer(),
                ),
                Observer(),
            ).head
            for of, more in (
                (records, {"method": "dp-whitened", "steps": 3}),
                (records, {"method": "dp-ls"}),
                (persons, {"method": "dp-ls"}),
                (persons, {"method": "dp-fc", "steps": 2}),
                (records, {"method": "dp-adam", "steps": 2, "sampling_rate": 0.1}),
            )
        ]
        words = np.random.default_rng(3)
        noise.urandom = lambda size: words.integers(2**64, size=size // 8, dtype=np.uint64).tobytes()
        wanted = PrivateScoring(heads[0], records, epsilon=2.0, figures="both", again=True)
        ready = prepare(wanted, summing=summing)
        figures = release(ready, confirm=lambda charge, refused: True).figures
    # Charges and heads have an id and a date.
    others = ("charge", "head", "head_sha256")
    released = {name: getattr(figures, name) for name in figures.__struct_fields__ if name not in others}
    found.append([*((head.weight.tobytes(), head.bias.tobytes()) for head in heads), released])
alone, together = found
print(json.dumps([a == b for a, b in zip(alone, together, strict=True)]))
"""


def test_heads_and_figures_are_those_of_one_process_to_the_bit(drive: Driver) -> None:
    """Gradients with what they share, pieces, persons, samples, and a private evaluation. Workers serve them all."""
    assert json.loads(drive(TRAININGS).stdout) == [True] * 6


def test_several_trainings_and_an_evaluation_are_typed_like_one(drive: Driver, made: Path) -> None:
    several = ("--epsilon", "1", "--epsilon", "2", "--method", "dp-fc", "--steps", "1", "--out", "several")
    rows = json.loads(drive("train", "--features", "records", *several, "--on", "ray", "--json").stdout)["trainings"]
    assert [Path(made, row["head"]).exists() for row in rows] == [True, True]
    words = ("evaluate", rows[1]["head"], "--features", "records", "--epsilon", "4", "--on", "ray", "--json")
    assert json.loads(drive(*words).stdout)["figures"]["top1"] > 0.5


EXTRACT = ("extract", "--classes", "c0,c1,c2", "--image-size", "8", "--population", "p")


def test_shards_and_what_is_said_of_broken_pictures_are_those_of_one_process(drive: Driver, made: Path) -> None:
    ways = {"alone": (), "on": ("--on", "ray")}
    said = [
        drive(*EXTRACT, "imagefolder:broken", "--on-error", "null", "--out", name, *more) for name, more in ways.items()
    ]
    one, other = (stored(made / "features" / name) for name in ways)
    assert len(one) > 3
    assert one == other
    assert "3 of 600" in said[0].stderr
    assert [each.stderr.splitlines()[0] for each in said] == [said[0].stderr.splitlines()[0]] * 2
    for name, more in ways.items():
        drive(*EXTRACT, "imagefolder:broken", "--out", f"no-{name}", *more, ends=2)
    refused = [(made / "features" / f"no-{name}.refused.txt").read_text().splitlines() for name in ways]
    assert refused[0] == refused[1]
    assert len(refused[0]) == 3


def worker_in(folder: Path) -> int | None:
    """The process of a worker that works for a driver in this folder."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::Worker" in (each / "cmdline").read_bytes() and os.readlink(each / "cwd") == str(folder):
                return int(each.name)
        except OSError:
            continue
    return None


def killed(
    process: "subprocess.Popen[str]",
    of: Callable[[], int | None],
    due: Callable[[], object],
    how: signal.Signals = signal.SIGKILL,
) -> None:
    """Kill a process as soon as it is due, while a driver runs."""
    end = time.monotonic() + LOST
    while not (found := of() if due() else None):
        assert process.poll() is None
        assert time.monotonic() < end
    os.kill(found, how)


KILLED = (
    "train",
    "--features",
    "records",
    "--epsilon",
    "1",
    "--method",
    "dp-adam",
    "--steps",
    "60",
    "--on",
    "ray",
    "-q",
)


def test_a_training_whose_worker_and_then_its_driver_are_killed_goes_on_and_is_charged_once(
    start: Start, made: Path
) -> None:
    features = FeatureSet(made / "features" / "records")
    before = len(states(features))

    def answered() -> int:
        ended = [each for each in (made / "features").glob("ledger.sqlite*") if each.exists()]
        return len(states(features)) - before if ended else 0

    with start(*KILLED, "--out", "killed") as first:
        killed(first, lambda: worker_in(made), answered)
        killed(first, lambda: first.pid, answered)
        first.communicate(timeout=LOST)
    with start(*KILLED, "--out", "killed") as second:
        killed(second, lambda: worker_in(made), lambda: len(ledger(features).known) > before)
        assert second.wait(LOST) == 0
    assert (states(features)[before:], (made / "killed.safetensors").exists()) == (["written"], True)


def test_a_worker_that_stands_still_holds_no_training_up(start: Start, made: Path) -> None:
    features = FeatureSet(made / "features" / "records")
    before = len(states(features))
    with start(*KILLED, "--delta", "1e-6", "--out", "slow") as driver:
        killed(driver, lambda: worker_in(made), lambda: len(states(features)) > before, signal.SIGSTOP)
        assert driver.wait(LOST) == 0
    assert (states(features)[before:], (made / "slow.safetensors").exists()) == (["written"], True)


def test_an_extraction_whose_worker_and_then_its_driver_are_killed_makes_each_shard_once(
    start: Start, made: Path, drive: Driver
) -> None:
    drive(*EXTRACT, "imagefolder:pictures", "--out", "whole")
    partial = made / "features" / "parts.partial"
    words = (*EXTRACT, "imagefolder:pictures", "--out", "parts", "--on", "ray")
    with start(*words) as first:
        killed(first, lambda: worker_in(made), lambda: partial.exists())
        killed(first, lambda: first.pid, lambda: any(partial.glob("*.h5")))
        first.communicate(timeout=LOST)
    kept = {each.name: each.stat().st_ino for each in partial.glob("*.h5")}
    assert kept
    drive(*words)
    whole, parts = (stored(made / "features" / name) for name in ("whole", "parts"))
    assert whole == parts
    assert {name: (made / "features" / "parts" / name).stat().st_ino for name in kept} == kept


def test_ctrl_c_ends_an_extraction_with_what_is_kept(start: Start, made: Path) -> None:
    partial = made / "features" / "stopped.partial"
    with start(*EXTRACT, "imagefolder:pictures", "--out", "stopped", "--on", "ray") as process:
        end = time.monotonic() + LOST
        while not any(partial.glob("*.h5")):
            assert process.poll() is None
            assert time.monotonic() < end
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LOST)
    assert process.returncode == 143
    assert "kept in" in said


def test_a_cluster_of_several_nodes_needs_a_network_that_others_cannot_read(drive: Driver) -> None:
    ended = drive("train", "--epsilon", "1", "--features", "records", "--on", "ray", ends=2, DPFC_TRUSTED_NETWORK="")
    assert "RAY_USE_TLS" in ended.stderr


def test_a_worker_that_lacks_the_folder_of_the_command_uses_no_other_one(tmp_path: Path) -> None:
    """A folder of pictures of the same name may have other ones there."""
    _, refused = Worker(str(tmp_path / "gone"), "1").do((1, [None], code_digest("dpfc_cli")), set())
    assert isinstance(refused, UserError)
    assert "gone" in refused.what


class Lying:
    """Workers of whom each says the same."""

    def __init__(self, sum_: np.ndarray) -> None:
        self._sum = sum_

    def __len__(self) -> int:
        return 1

    def shared(self, value: object) -> object:
        return value

    def job(self, make: object) -> object:
        return make

    def each(self, job: object, tasks: Iterable[tuple[int, int]], *_: object, **__: object) -> Iterator[Any]:
        return ((task, (self._sum, range(4))) for task in tasks)


@pytest.mark.parametrize("wrong", [np.ones(1), np.full((2, 2), 0.5), np.full((2, 2), np.nan)])
def test_a_sum_that_cannot_be_of_the_query_is_not_added(wrong: np.ndarray) -> None:
    facts, grid = Facts(n=4, m=3, d=2), Lattice(10)
    over = Summed(lambda rows: iter(()), facts, grid)
    with Together(Lying(wrong)).begun(None, "train", facts, grid) as summed, pytest.raises(IncompletePassError):  # type: ignore[arg-type]
        summed(Gram((Clip(1.0),)), over, None)
    with Together(Lying(np.eye(2))).begun(None, "train", facts, grid) as summed:  # type: ignore[arg-type]
        assert np.array_equal(summed(Gram((Clip(1.0),)), over, None), np.eye(2))


def test_a_cluster_that_is_not_there_is_a_refusal_before_the_charge(drive: Driver, made: Path) -> None:
    before = len(states(FeatureSet(made / "features" / "records")))
    words = ("train", "--epsilon", "1", "--features", "records", "--on", "ray", "--again")
    assert "127.0.0.1:1" in drive(*words, ends=4, RAY_ADDRESS="127.0.0.1:1").stderr
    assert "ray job submit" in drive(*words, ends=2, RAY_ADDRESS="ray://127.0.0.1:1").stderr
    assert "Known: ray" in drive(*words[:-2], "rays", ends=2).stderr
    assert len(states(FeatureSet(made / "features" / "records"))) == before


def test_a_damaged_shard_is_found_by_a_worker_before_the_charge(drive: Driver, made: Path) -> None:
    """Without a cluster, one is started on this machine."""
    shutil.copytree(made / "features", made / "damaged")
    shard = min((made / "damaged" / "records").glob("train-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    words = ("train", "--epsilon", "1", "--features", "records", "--on", "ray", "--json")
    said = json.loads(drive(*words, ends=5, RAY_ADDRESS="", DPFC_FEATURES="damaged").stderr)["error"]
    assert (said["code"], said["fields"]["path"]) == ("damaged", str(shard.relative_to(made)))


OWN = """
import os, subprocess, sys
from pathlib import Path
from dpfc_cli.extensions.engine.cluster import workers
before = set(Path("/tmp").iterdir())
with workers():
    import ray
    at = ray.get_runtime_context().gcs_address
    said = [at.split(":")[0], (Path.home() / ".ray").exists()]
    [made] = [each for each in set(Path("/tmp").iterdir()) - before if each.name.startswith("dpfc-")]
    said.append(oct(made.stat().st_mode & 0o777))
    port = f":{int(at.split(':')[1]):04X}"
    lines = Path("/proc/net/tcp6").read_text() + Path("/proc/net/tcp").read_text()
    doors = (line.split() for line in lines.splitlines())
    said += {door[1].removesuffix(port) for door in doors if door[1].endswith(port) and door[3] == "0A"}
    other = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    join = [sys.executable, "-c", f"import ray; ray.init('{at}')"]
    other["RAY_gcs_rpc_server_reconnect_timeout_s"] = "1"
    said.append(subprocess.run(join, env=other, capture_output=True).returncode)
print(*said, made.exists())
"""


def test_nobody_else_reaches_joins_or_looks_into_a_cluster_that_is_started_here(drive: Driver, tmp_path: Path) -> None:
    said = drive(OWN, RAY_ADDRESS="", HOME=str(tmp_path)).stdout.split()
    assert said[:3] == ["127.0.0.1", "False", "0o700"]
    # The loopback, as the kernel writes it.
    assert said[3] in ("0100007F", "0000000000000000FFFF00000100007F")
    assert said[4] != "0"
    assert said[5] == "False"
