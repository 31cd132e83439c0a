"""Processes of one training: who has failed or is gone ends the training of all, and nobody waits for ever."""

import socket
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extensions.engine import processes as module
from dpfc_cli.extensions.engine.processes import (
    LOST,
    LostError,
    Processes,
    check_address,
    joined,
    meet,
    part_of,
    started_with_others,
)
from dpfc_cli.version import __version__, code_digest
from tests.support import refuses


class Table:
    """The table of texts that processes share, in one process. steps: what happens at each question in vain."""

    def __init__(self, steps: Iterator[tuple[str, str]] | None = None) -> None:
        self.texts: dict[str, str] = {}
        self.time, self._steps = 0.0, steps or iter(())

    def put(self, key: str, value: str) -> None:
        self.texts[key] = value

    def wait(self, key: str) -> str | None:
        if key not in self.texts:
            self.time += module.WAIT / 1000
            self.texts |= dict([next(self._steps, ("", ""))])
        return self.texts.get(key)

    def under(self, folder: str) -> dict[str, str]:
        return {key: value for key, value in self.texts.items() if key.startswith(f"{folder}/")}

    def close(self) -> None:
        self.texts["closed"] = ""

    def count(self, key: str) -> None:
        self.texts[key] = str(int(self.texts.get(key, "0")) + 1)


def seen_from(number: int, table: Table) -> Processes:
    found = Processes(number, 2, table, lambda array: array, lambda: table.time)  # type: ignore[arg-type]
    # Signs of life are written by the tests.
    found._stop.set()
    return found


MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
"""What Open MPI sets from version 5 on. JAX finds the address of process 0 in what earlier versions set."""


def test_open_mpi_says_how_many_there_are_and_the_user_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def stopped(**values: Any) -> None:
        given.append(values)
        raise ValueError("nobody is there")

    monkeypatch.setattr(jax.distributed, "initialize", stopped)
    for environment in (MPI, dict[str, str]()):
        with refuses("unsupported", parameter="distributed") as refused:
            joined(environment)
        assert "JAX_COORDINATOR_ADDRESS" in refused.value.remedy
    with refuses("unsupported", match="Nobody is there", parameter="distributed"):
        joined({**MPI, "JAX_COORDINATOR_ADDRESS": "127.0.0.1:4000"})
    assert given[0].items() >= {"coordinator_address": "127.0.0.1:4000", "num_processes": 4, "process_id": 3}.items()


def test_process_0_gets_the_values_of_all_in_order() -> None:
    table = Table(iter([("alive/1", "1"), ("met/1/1", "of 1")]))
    assert seen_from(0, table).gathered("of 0") == ["of 0", "of 1"]
    assert seen_from(1, table).gathered("of 1") == ["of 0", "of 1"]


CODE = f"{__version__} ({code_digest('dpfc_cli')[:16]})"


def met(table: Table, rounded: type[np.floating] = np.float64) -> None:
    """Two processes meet, and the second one adds what it should."""
    found = seen_from(0, table)
    found._add = lambda array: (array.astype(rounded) + rounded(2**52 - 1)).astype(np.float64)
    meet(found)


def test_processes_go_on_with_the_same_code_if_they_add_exactly() -> None:
    """Other code may make other integers of a record, and a sum of both is neither."""
    met(Table(iter([("met/1/1", CODE)])))
    for other in ("9.9", f"{__version__} (0123456789abcdef)"):
        with refuses("conflict") as refused:
            met(Table(iter([("met/1/1", other)])))
        assert other in refused.value.what
    with refuses("unsupported"):
        met(Table(iter([("met/1/1", CODE)])), np.float32)


def test_a_process_that_fails_says_why() -> None:
    table = Table(iter([("alive/1", "1")]))
    seen_from(1, table).failed(UserError("'x.h5' is damaged.", "Make it again."))
    with pytest.raises(LostError, match=r"Process 1 .* 'x.h5' is damaged. Make it again"):
        seen_from(0, table).gathered("")


def test_of_a_defect_only_its_type_is_told() -> None:
    """Its text could have a value of a record."""
    table = Table()
    seen_from(1, table).failed(ValueError("0.123"))
    with pytest.raises(LostError, match="ValueError") as told:
        seen_from(0, table).gathered("")
    assert "0.123" not in str(told.value)


def test_a_process_without_a_sign_of_life_is_gone() -> None:
    table = Table(iter([("alive/1", "1")]))
    with pytest.raises(LostError, match="Process 1"):
        seen_from(0, table).gathered("")
    assert LOST < table.time < LOST + 10


def test_one_that_gives_signs_of_life_may_take_as_long_as_it_needs() -> None:
    signs = [("alive/1", str(i)) for i in range(10 * int(LOST))]
    table = Table(iter([*signs, ("met/1/1", "late")]))
    assert seen_from(0, table).gathered("") == ["", "late"]
    assert table.time > 9 * LOST


def test_the_others_end_when_process_0_has_left() -> None:
    table = Table(iter([("left/0", "")]))
    with pytest.raises(LostError, match="Process 0"):
        seen_from(1, table).told()


def test_at_the_end_all_leave_together() -> None:
    for number in (0, 1):
        table = Table()
        seen_from(number, table).leave(together=True)
        assert table.texts == {"closed": ""}


def test_of_a_training_that_fails_process_0_leaves_last_and_does_not_wait_long_for_one_that_is_gone() -> None:
    """The runtime would abort a process that outlives process 0, and wait for one that is gone."""
    table = Table(iter([("", ""), ("left/1", "")]))
    seen_from(0, table).leave(together=False)
    assert set(table.texts) == {"", "left/0", "left/1"}
    assert table.time == 3
    gone = Table()
    seen_from(0, gone).leave(together=False)
    assert gone.time == (module.LEAVE + 1) * module.WAIT / 1000


def test_messages_of_all_lengths_arrive() -> None:
    table, wire = Table(), list[np.ndarray]()
    for length in (0, 1, 7, 8, 9, 1000):
        message = bytes(range(256)) * 4
        first = seen_from(0, table)
        first._add = lambda array: wire.append(array) or array
        first.tell(message[:length])
        other = seen_from(1, table)
        # What the devices add: the message, and zeros of the same shape.
        other._add = lambda array: array + wire[-1]
        assert other.told() == message[:length]


def test_sums_that_could_not_be_added_end_the_training() -> None:
    def broken(array: np.ndarray) -> np.ndarray:
        raise RuntimeError("Connection closed by peer")

    found = seen_from(0, Table())
    found._add = broken
    with pytest.raises(LostError, match="Connection closed"):
        found.added(np.zeros(3))


def test_processes_may_meet_on_a_private_network_and_on_a_public_one_that_is_insisted_on() -> None:
    for address in ("127.0.0.1:1234", "[::1]:80", "10.2.3.4:80", "192.168.7.1:80", "172.20.1.1:1"):
        check_address(address, {})
    for address in ("8.8.8.8:1234", "[2001:4860:4860::8888]:80", "172.32.0.1:80", "0.0.0.0:80", "[::]:80"):
        for environment in ({}, {module.TRUSTED: "yes"}):
            with refuses("unsupported"):
                check_address(address, environment)
        check_address(address, {module.TRUSTED: "1"})
    for address in ("127.0.0.1", "[::1]", "127.0.0.1:x", ":", ""):
        with refuses("missing"):
            check_address(address, {})


def test_process_0_listens_at_an_address_of_its_own_machine_or_says_why_not() -> None:
    """The documentation's addresses (RFC 5737) are no machine's. The runtime would crash."""
    somewhere = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", module.TRUSTED: "1"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for address in ("203.0.113.7:4000", f"127.0.0.1:{taken.getsockname()[1]}"):
            with refuses("conflict"):
                joined({**somewhere, "JAX_COORDINATOR_ADDRESS": address})


def test_what_a_launcher_says_of_other_processes() -> None:
    said: list[tuple[dict[str, str], str | None, tuple[int, int] | None]] = [
        ({}, None, None),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None, (0, 1)),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS", None),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, "SLURM_STEP_NUM_TASKS", (3, 4)),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "4"}, "SLURM_STEP_NUM_TASKS", None),
        (MPI, "OMPI_COMM_WORLD_SIZE", (3, 4)),
        ({**MPI, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}, "JAX_NUM_PROCESSES", (1, 2)),
        ({"JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "1"}, None, None),
    ]
    for environment, named, part in said:
        assert (started_with_others(environment), part_of(environment)) == (named, part)
