"""Several processes of one training, on JAX's own runtime (`jax.distributed`).

What is small goes through the coordination service that JAX runs in process 0: what to do next, which records were
summed, and whether a process has failed. Arrays are added by the devices (`adding`). A process that fails
says why. A process that is gone is missed: each of them says every few seconds that it is there.

JAX has no public interface to its coordination service, nor to where its sockets listen. What is used of these is in
`_Service`, `_launched` and `_use_network_of` alone.
"""

import contextlib
import ipaddress
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from dpfc_cli.errors import UserError, conflict, missing, parameter, printable, sentence, unsupported
from dpfc_cli.version import __version__, code_digest

ALIVE = 2.0
"""Seconds between two signs of life."""
LOST = 60.0
"""Seconds without a sign of life after which a process counts as gone."""
WAIT = 1000
"""Milliseconds that one question to the service waits."""
LEAVE = 10
"""Seconds that a process waits for another one to leave, too."""
TRUSTED = "DPFC_TRUSTED_NETWORK"
"""Set to 1 where the processes may use a network with public addresses."""
MEET = 300
"""Seconds that a launcher is asked where process 0 is. JAX waits as long for the processes to meet."""
_HOW_TO_START = (
    f"Without {parameter('distributed')} one process trains alone. With it, start all of them with srun, mpirun or a "
    "Kubernetes JobSet. Or set JAX_COORDINATOR_ADDRESS in all of them to the address of process 0 with a free port, "
    "such as 192.168.1.10:4000, and JAX_NUM_PROCESSES and JAX_PROCESS_ID. (Open MPI from 5 on says the last two.)"
)
LAUNCHED = {
    "JAX_NUM_PROCESSES": "JAX_PROCESS_ID",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
}
"""Where launchers say how many processes they have started, and which of them this one is, from 0 on."""


class LostError(UserError):
    """Another process of the training has failed or is gone."""


class _Service:
    """The coordination service: a table of texts that all processes share."""

    def __init__(self) -> None:
        from jax._src import distributed

        state: Any = distributed.global_state
        self._client = state.client

    def put(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value)

    def wait(self, key: str) -> str | None:
        """The text at a key. None if it does not come soon."""
        from jax.errors import JaxRuntimeError

        try:
            return str(self._client.blocking_key_value_get(key, WAIT))
        except JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def under(self, folder: str) -> dict[str, str]:
        """All texts at keys of a folder."""
        return dict(self._client.key_value_dir_get(folder))

    def count(self, key: str) -> None:
        """Count up the number at a key."""
        self._client.key_value_increment(key, 1)

    def close(self) -> None:
        """Wait until all processes have come here, or `LEAVE` seconds."""
        import jax

        # Process 0 answers the others before it goes. The runtime aborts one whose question is lost.
        jax.distributed.shutdown()  # type: ignore[no-untyped-call]


class Processes:
    """The processes of one training, seen from one of them. `privacy.parts` uses it as a channel. number: which process
    this is. 0 has the curator, the ledger and the head. count: how many there are.
    """

    def __init__(
        self,
        number: int,
        count: int,
        service: _Service,
        add: Callable[[np.ndarray], np.ndarray],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number, self.count = number, count
        self._service, self._add, self._clock = service, add, clock
        self._told = self._met = 0
        self._seen: dict[str, tuple[str, float]] = {}
        self._stop = threading.Event()
        self._pulse = threading.Thread(target=self._beat, daemon=True)
        self._pulse.start()

    def _beat(self) -> None:
        with contextlib.suppress(Exception):
            # If the service is gone, the main thread finds out.
            while not self._stop.wait(ALIVE):
                self._service.count(f"alive/{self.number}")

    def tell(self, message: bytes) -> None:
        """Tell all other processes something. For process 0."""
        self._told += 1
        self._service.put(f"told/{self._told}", str(len(message)))
        self._broadcast(message, len(message))

    def told(self) -> bytes:
        """What process 0 tells next. For the others. LostError when process 0 has ended."""
        self._told += 1
        length = int(self._waited(f"told/{self._told}"))
        return self._broadcast(b"", length)

    def _broadcast(self, message: bytes, length: int) -> bytes:
        padded = np.zeros(-(-length // 8), np.int64)
        padded.view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
        return self._added(padded).tobytes()[:length]

    def gathered(self, value: str) -> list[str]:
        """The values of all processes, in order. It returns when all have come here. LostError: a process has failed or
        is gone.
        """
        self._met += 1
        self._service.put(f"met/{self._met}/{self.number}", value)
        if self.number == 0:
            values = [self._waited(f"met/{self._met}/{number}") for number in range(self.count)]
            self._service.put(f"all/{self._met}", json.dumps(values))
            return values
        return [str(each) for each in json.loads(self._waited(f"all/{self._met}"))]

    def added(self, array: np.ndarray) -> np.ndarray:
        """The sum of the arrays of all processes. They must have met (`gathered`) just before."""
        return self._added(np.ascontiguousarray(array))

    def _added(self, array: np.ndarray) -> np.ndarray:
        try:
            return self._add(array)
        except Exception as error:
            raise self._lost(f"The processes could not add their sums: {sentence(error)}") from error

    def failed(self, error: BaseException) -> None:
        """Say why this process ends early. For all but process 0."""
        said = f"{error.what} {error.remedy}" if isinstance(error, UserError) else f"a {type(error).__name__}"
        with contextlib.suppress(Exception):
            self._service.put(f"failed/{self.number}", said)

    def leave(self, together: bool) -> None:
        """Leave the others. The process must end at once then (`os._exit`): the runtime would wait for those that are
        gone.

        together: whether all leave now, at the end of the training. They wait for one another then. Else process 0
        tells the others to end, and gives them some time.
        """
        self._stop.set()
        with contextlib.suppress(Exception):
            if together:
                self._service.close()
                return
            self._service.put(f"left/{self.number}", "")
            for number in range(1, self.count if self.number == 0 else 0):
                # One that does not answer is gone.
                tries = (self._service.wait(f"left/{number}") for _ in range(LEAVE))
                next((found for found in tries if found is not None), None)
            if self.number == 0:
                # They end at once then. The runtime would abort one that outlives process 0.
                self._service.wait("gone")

    def _waited(self, key: str) -> str:
        """The text at a key, whenever it comes. LostError if it cannot come any more."""
        while (found := self._service.wait(key)) is None:
            self._check()
        return found

    def _check(self) -> None:
        """LostError if another process has failed or is gone."""
        if self.number and any(key.endswith("/0") for key in self._service.under("left")):
            raise LostError("Process 0 has ended the training.", "It says why.", code="lost")
        for key, said in self._service.under("failed").items():
            raise self._lost(f"Process {key.rpartition('/')[2]} has failed: {said}")
        alive = self._service.under("alive")
        for number in range(self.count):
            if number == self.number:
                continue
            key, now = str(number), self._clock()
            value = next((found for name, found in alive.items() if name.rpartition("/")[2] == key), "")
            if key not in self._seen or self._seen[key][0] != value:
                self._seen[key] = value, now
            elif now - self._seen[key][1] > LOST:
                raise self._lost(f"Process {number} has given no sign of life for {LOST:.0f} seconds")

    def _lost(self, what: str) -> LostError:
        return LostError(
            f"{printable(what).rstrip('.')}.",
            "All processes end. Start them again: a training that was charged resumes, if its answers were kept.",
            code="lost",
        )


def joined(environment: Mapping[str, str] = os.environ) -> Processes:
    """Join the other processes of a training, as the launcher has set them up. UserError: the launcher is not known,
    the processes do not meet, or their network is not private.
    """
    import jax

    # JAX would take the signals by which a training is stopped.
    jax.config.update("jax_enable_preemption_service", False)  # type: ignore[no-untyped-call]
    try:
        launched = _launched(environment)
        address = launched["coordinator_address"]
        if address is None:
            raise unsupported("No launcher says where the processes meet.", _HOW_TO_START)
        check_address(address, environment)
        # By default process 0 listens on all addresses of its machine.
        bind = environment.get("JAX_COORDINATOR_BIND_ADDRESS") or address
        if launched["process_id"] == 0:
            check_listen(bind)
        jax.distributed.initialize(**launched, coordinator_bind_address=bind, shutdown_timeout_seconds=LEAVE)
    except (RuntimeError, ValueError) as error:
        raise unsupported(f"The processes did not meet: {sentence(error)}", _HOW_TO_START) from error
    _use_network_of(address, environment)
    from dpfc_cli.extensions.engine import adding

    found = Processes(jax.process_index(), jax.process_count(), _Service(), adding.added)
    with _quiet():
        meet(found)
    return found


def _launched(environment: Mapping[str, str]) -> dict[str, Any]:
    """Where process 0 is (None: no launcher says so), how many there are, and which one this is."""
    address = environment.get("JAX_COORDINATOR_ADDRESS")
    if address is None:
        # JAX asks the launcher when it joins. That is too late to check where.
        from jax._src.clusters import ClusterEnv

        detect: Any = ClusterEnv.auto_detect_unset_distributed_params
        found = detect(None, None, None, None, None, MEET)
    elif (part := part_of(environment)) is not None:
        found = (address, part[1], part[0])
    else:
        raise unsupported(
            "JAX_COORDINATOR_ADDRESS is set, and the number of processes is not known.",
            "Set JAX_NUM_PROCESSES, and JAX_PROCESS_ID to 0, 1, … in each of them.",
        )
    return dict(zip(("coordinator_address", "num_processes", "process_id"), found, strict=False))


def _use_network_of(address: str, environment: Mapping[str, str]) -> None:
    """Let Gloo, which adds arrays of processors, listen at our address on the way to process 0, and nowhere else.

    By default it takes the address that the name of the machine has, which may be on another network.
    """
    from jax._src import config, distributed, xla_bridge
    from jaxlib import _jax

    bridge, library, state, settings = (cast(Any, each) for each in (xla_bridge, _jax, distributed, config))
    if settings.cpu_collectives_implementation.value != "gloo":
        return
    family, place = _at(address)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        # Nothing is sent.
        way.connect(place)
        own = way.getsockname()[0]
    check_address(f"[{own}]:0", environment)
    gloo = library.make_gloo_tcp_collectives(distributed_client=state.global_state.client, hostname=own)
    bridge.register_backend_factory("cpu", lambda: bridge.make_cpu_client(gloo), fail_quietly=False)


def meet(processes: Processes) -> None:
    """Wait until all processes are there. UserError if they run different code, or do not add exactly."""
    versions = sorted(set(processes.gathered(f"{__version__} ({code_digest('dpfc_cli')[:16]})")))
    if len(versions) > 1:
        raise conflict(
            f"The processes run different code of dpfc: {', '.join(map(printable, versions))}.",
            "Install the same on all machines.",
        )
    # Near 2⁵³, as the largest sums.
    count = processes.count
    each = [2**53 // count - count + number for number in range(count)]
    if processes.added(np.array([float(each[processes.number])]))[0] != sum(each):
        raise unsupported("The devices of the processes do not add exactly in float64.", "Try JAX_PLATFORMS=cpu.")


def started_with_others(environment: Mapping[str, str] = os.environ) -> str | None:
    """The variable by which a launcher says that this process is one of several. None if it is alone."""
    counts = ((name, environment.get(name, "")) for name in LAUNCHED)
    return next((name for name, count in counts if count.isdecimal() and int(count) > 1), None)


def part_of(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Which process this is, from 0 on, and how many there are, as a launcher says. None if none does."""
    said = ((environment.get(number, ""), environment.get(count, "")) for count, number in LAUNCHED.items())
    whole = ((int(number), int(count)) for number, count in said if number.isdecimal() and count.isdecimal())
    return next(((number, count) for number, count in whole if number < count), None)


def check_address(address: str, environment: Mapping[str, str]) -> None:
    """UserError where processes would meet at a public address: what they tell one another is not encrypted.

    The address that stands for all of a machine counts as public.
    """
    found = {
        each: ipaddress.ip_address(each.partition("%")[0]) for each in (str(place[0]) for _, place in _at(address))
    }
    public = sorted(name for name, each in found.items() if not each.is_private or each.is_unspecified)
    if public and environment.get(TRUSTED) != "1":
        raise unsupported(
            f"The processes would meet at a public address ({', '.join(public)}). They send sums of records without "
            "noise and without encryption.",
            f"Use a private network. If nobody else can read this one, set {TRUSTED}=1.",
        )


def check_listen(address: str) -> None:
    """UserError where no process of this machine can listen at an address. The runtime would crash."""
    for family, place in _at(address):
        with contextlib.suppress(OSError), socket.socket(family) as tried:
            # As a server does it: what an earlier process has left there is no hindrance.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
            return
    raise conflict(
        f"Process 0 cannot listen at '{address}': it is no address of this machine, or its port is taken.",
        "Check JAX_COORDINATOR_ADDRESS. If the others reach this machine under an address that it does not have, set "
        "JAX_COORDINATOR_BIND_ADDRESS in process 0 to one that it has, with the port.",
    )


def _at(address: str) -> list[tuple[socket.AddressFamily, Any]]:
    """What HOST:PORT stands for, as sockets take it."""
    host, _, port = address.rpartition(":")
    try:
        return [(each[0], each[4]) for each in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)]
    except (OSError, ValueError) as error:
        raise missing(
            f"The address of process 0, '{address}', is not known: {sentence(error)}",
            "Check JAX_COORDINATOR_ADDRESS. It is HOST:PORT.",
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What libraries print to stdout is dropped: stdout is for results."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
