"""`dpfc train --distributed`, with real processes on JAX's runtime."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dpfc_cli as library
from dpfc_cli.cli import stop
from dpfc_cli.extensions.engine import processes
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.file import ledger_path
from tests.cli.conftest import Dpfc
from tests.extensions.engine.test_leader import Alone
from tests.support import LOST, feature_set

N, D, M = 9000, 4, 3
"""More than one block, so that both processes have records."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 4,500 persons with two records each."""
    folder, rng = tmp_path_factory.mktemp("distributed"), np.random.default_rng(0)
    y = rng.integers(0, M, N)
    np.savez(
        folder / "raw.npz",
        train_x=(np.eye(M, D)[y] + rng.normal(size=(N, D))).astype(np.float32),
        train_y=y,
        train_groups=np.repeat(np.arange(N // 2), 2),
    )
    feature_set(folder / "raw.npz", folder / "features" / "made", classes=("a", "b", "c"), labels_per_record=1)
    return folder


JOBS = range(2**16 - 2**12, 2**16)
"""Ports that JAX takes from the number of a job of Slurm."""


def by_hand(number: int, port: int) -> dict[str, str]:
    return {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}


def by_srun(number: int, port: int) -> dict[str, str]:
    """What srun sets."""
    return {
        "SLURM_JOB_ID": str(len(JOBS) + port - JOBS.start),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
    }


Launcher = Callable[[int, int], dict[str, str]]


def started(folder: Path, launched: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    environment = os.environ | launched
    command = [sys.executable, "-m", "dpfc_cli", "-q", "train", "--distributed", "--epsilon", "1", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def is_free(port: int) -> bool:
    with socket.socket() as free:
        return free.connect_ex(("127.0.0.1", port)) != 0


def free_port() -> int:
    """Where two runs of these tests begin at once, they take different ones."""
    return next(filter(is_free, range(JOBS.start + os.getpid() % (len(JOBS) // 2), JOBS.stop)))


def trained(folders: list[Path], *arguments: str, launcher: Launcher = by_hand) -> list[tuple[int, str, str]]:
    """How each of two processes ended: exit code, stdout, stderr."""
    port = free_port()
    every = [started(folder, launcher(number, port), *arguments) for number, folder in enumerate(folders)]
    ended = [process.communicate(timeout=LOST) for process in every]
    return [(process.returncode, *said) for process, said in zip(every, ended, strict=True)]


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
def test_two_processes_that_srun_has_started_make_the_head_of_one(made: Path) -> None:
    features = library.open_features(made / "features/made")
    library.train(features, epsilon=1.0, method="dp-fc", seed=5, steps=1, out=made / "one.research.safetensors")
    given = ("--again", "--json", "--method", "dp-fc", "--seed", "5", "--steps", "1", "--out")
    first, second = trained([made, made], *given, "two.research.safetensors", launcher=by_srun)
    assert (first[0], second) == (0, (0, "", "")), (first, second)
    assert first[1].startswith("{")
    one, two = (load_file(made / f"{name}.research.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_a_part_that_is_damaged_ends_all_processes_and_charges_nothing(made: Path, tmp_path: Path) -> None:
    """The damage is in the shards of the second process alone: the first one has another copy."""
    shutil.copytree(made / "features", tmp_path / "features", ignore=shutil.ignore_patterns("*.sqlite*"))
    shard = next((tmp_path / "features" / "made").glob("train-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    before = ledger_path(made / "features" / "made").read_bytes()
    first, second = trained([made, tmp_path], "--out", "never.safetensors")
    assert (first[0], second[0]) == (4, 5)
    assert shard.name in first[2]
    assert shard.name in second[2]
    assert ledger_path(made / "features" / "made").read_bytes() == before
    assert not (made / "never.safetensors").exists()


def by_hand_over_ipv6(number: int, port: int) -> dict[str, str]:
    return {**by_hand(number, port), "JAX_COORDINATOR_ADDRESS": f"[::1]:{port}"}


LISTENING = """
import os
import numpy as np
from dpfc_cli.extensions.engine.processes import joined

found = joined()
large = 2.0**51 + np.arange(2**22 + 5)
assert (found.added(large.copy()) == 2 * large).all()
mine = {os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.islink(each.path)}
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/self/net/{table}"):
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
            print(fields[1].rpartition(":")[0], flush=True)
found.leave(together=True)
os._exit(0)
"""
"""It joins the others, adds more numbers than cross at a time, and prints where it listens, as Linux writes it."""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
LOOPBACK_6 = {"00000000000000000000000001000000"}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says where a process listens")
@pytest.mark.parametrize(
    ("launcher", "allowed"),
    [
        pytest.param(by_hand, LOOPBACK, id="IPv4"),
        pytest.param(by_hand_over_ipv6, LOOPBACK_6, id="IPv6", marks=pytest.mark.long),
    ],
)
def test_all_processes_listen_on_the_network_of_process_0_alone_and_add_each_number_once(
    launcher: Launcher, allowed: set[str]
) -> None:
    """Sums of records cross it. Another network of the machine may be public."""
    if allowed == LOOPBACK_6 and "::1" not in Path("/proc/net/if_inet6").read_text().replace("0" * 31 + "1", "::1"):
        pytest.skip("no IPv6")
    port = free_port()
    every = [
        subprocess.Popen(
            [sys.executable, "-c", LISTENING], env=os.environ | launcher(n, port), stdout=subprocess.PIPE, text=True
        )
        for n in range(2)
    ]
    listening = [set(process.communicate(timeout=LOST)[0].split()) for process in every]
    assert [process.returncode for process in every] == [0, 0]
    assert all(found and found <= allowed for found in listening), listening


def test_a_process_of_several_does_not_train_by_itself(
    dpfc: Dpfc, typed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    ended = dpfc("train", "--epsilon", "1", ends=2)
    assert "--distributed" in ended.stderr
    assert not Path("heads").exists()


class Leaving(Alone):
    """Ctrl-C is pressed while the others leave."""

    def leave(self, together: bool) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("asks", ["nothing", "sum"])
def test_ctrl_c_while_the_others_leave_changes_nothing_of_what_is_said(
    dpfc: Dpfc, typed: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    # The process ends with the command otherwise.
    monkeypatch.setattr(stop, "at_once", False)
    monkeypatch.setattr(processes, "joined", lambda: Leaving(asks))
    ended = dpfc("train", "--distributed", "--epsilon", "1", "--method", "dp-ls", "--out", "left.safetensors")
    whole = asks == "nothing"
    assert (ended.exit_code, Path("left.safetensors").exists()) == ((0, True) if whole else (4, False))
    assert "left.safetensors" in ended.stdout if whole else LEDGER in ended.stderr
    assert "Nothing" not in ended.stderr
