"""Workers of a Ray cluster, which do tasks in any order (`workers`).

A worker that is gone is started again, by Ray, and so is its task. A task that takes far longer than others is given to
a second worker, and the first answer counts. So tasks must be ones that may be done twice.
"""

import logging
import os
import secrets
import signal
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dpfc_cli.errors import UserError, conflict, counted, sentence, unsupported
from dpfc_cli.extensions.engine.work import Worker
from dpfc_cli.threads import MOST, cores
from dpfc_cli.version import code_digest

TRUSTED = "DPFC_TRUSTED_NETWORK"
"""Set to 1 where nobody else can read the network between the machines."""
START = 300.0
"""Seconds in which one worker must have started."""
REACHED = 20.0
"""Seconds in which a cluster must answer."""
TRIES = 10
"""So often a task is begun whose worker ends each time."""
LATE = 2.0
"""A task is late that takes so many times as long as half of the others. It has a second at least."""
STORE = 4
"""The part of a machine's store of objects that answers may take. Ray writes to disk what is above 0.8 of it."""
Job = tuple[int, list[Any], str]
"""What workers do with tasks: its number, what makes the function, as a list with Ray's reference, and a digest of the
source of dpfc.
"""


class _Task(NamedTuple):
    key: Hashable
    worker: int
    run: int
    since: float


class Workers:
    """Some workers of a cluster."""

    def __init__(self, actors: list[Any], nodes: list[dict[str, Any]]) -> None:
        """Take the actors, and what Ray says of their nodes."""
        self.told = f"Ray: {counted(len(actors), 'worker')} on {counted(len(nodes), 'node')}."
        self._actors = actors
        # Bytes of the smallest store of objects.
        self._store = min(node["Resources"].get("object_store_memory", 0) for node in nodes)
        self._busy: dict[Any, _Task] = {}
        self._owners: dict[Hashable, int] = {}
        self._runs = self._jobs = 0

    def __len__(self) -> int:
        return len(self._actors)

    def shared(self, value: object) -> Any:
        """What stands for a value in the arguments of several tasks."""
        import ray

        return ray.put(value)

    def job(self, make: Callable[[], Callable[..., Any]]) -> Job:
        """What workers do. make: each calls it once, and then what it has made for each task, with the keys of the
        tasks that are its own, and what the task is given.
        """
        self._jobs += 1
        return self._jobs, [self.shared(make)], code_digest("dpfc_cli")

    def each(
        self,
        job: Job,
        tasks: Mapping[Any, Callable[[], tuple[Any, ...]]],
        size: int,
        own: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """The keys of all tasks with their answers, as they come.

        tasks: what makes the arguments of each, when its turn comes. size: bytes of an answer, about. own: whether
        tasks belong to who did them last, and go there first. UserError: a worker says why it cannot; or the cluster
        cannot.
        """
        import ray

        self._runs += 1
        left, took = set(tasks), list[float]()
        queues: dict[int | None, deque[Hashable]] = {None: deque()}
        for key in tasks:
            queues.setdefault(self._owners.get(key) if own else None, deque()).append(key)
        most = max(1, int(self._store / STORE / max(1, size)))
        while left:
            idle = set(range(len(self))) - {task.worker for task in self._busy.values()}
            for worker in sorted(idle):
                now = sum(task.run == self._runs for task in self._busy.values())
                key = self._next(worker, queues, left, took) if now < most else None
                if key is not None:
                    # A node may have joined meanwhile.
                    check_network()
                    mine = {each for each, owner in self._owners.items() if owner == worker} if own else set()
                    answer = self._actors[worker].do.remote(job, mine | {key}, *tasks[key]())
                    self._busy[answer] = _Task(key, worker, self._runs, time.monotonic())
            # Who does the work of an earlier run is late there, and no hindrance here.
            for answer in ray.wait(list(self._busy), timeout=1.0)[0]:
                task = self._busy.pop(answer)
                if task.run == self._runs and task.key in left:
                    found, refused = _answer(answer)
                    if refused is not None:
                        raise refused
                    del answer
                    left.discard(task.key)
                    took.append(time.monotonic() - task.since)
                    if own:
                        self._owners[task.key] = task.worker
                    yield task.key, found

    def _next(
        self, worker: int, queues: dict[int | None, deque[Hashable]], left: set[Hashable], took: list[float]
    ) -> Hashable | None:
        """A worker's next task: its own, one of nobody, one of who has most of them to do, or one that is late."""
        others = max(queues.values(), key=len)
        for queue in (queues.get(worker), queues[None], others):
            if queue:
                return queue.popleft()
        running = [task for task in self._busy.values() if task.run == self._runs and task.key in left]
        keys = [task.key for task in running]
        limit = max(1.0, LATE * statistics.median(took)) if took else START
        late = [task for task in running if keys.count(task.key) == 1 and time.monotonic() - task.since > limit]
        return min(late, key=lambda task: task.since).key if late else None


def _answer(answer: Any) -> tuple[Any, Exception | None]:
    import ray

    try:
        found, refused = ray.get(answer)
    except ray.exceptions.RayError as error:
        return None, UserError(
            f"A worker is gone, and another one that took its work, too: {_said(error)}",
            "Look at its memory and, of a cluster of yours, at Ray's logs. Then type the same command again.",
            code="lost",
        )
    return found, refused


def _said(error: BaseException) -> str:
    """What Ray says, in one line. It says nothing of arguments and answers."""
    return f"{next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip('.')}."


@contextmanager
def workers() -> Iterator[Workers]:
    """Workers of a cluster for as long as the block runs: that of RAY_ADDRESS, or of this machine. UserError: there is
    none, or it may not be used.
    """
    with _joined():
        import ray

        check_network()
        nodes = [node for node in _nodes() if node["Resources"].get("CPU", 0) >= 1]
        if not nodes:
            raise unsupported("The cluster of Ray has no processors for workers.", "Start nodes that have some.")
        gpus = int(sum(node["Resources"].get("GPU", 0) for node in nodes))
        cpus = min(MOST, *(int(node["Resources"]["CPU"]) for node in nodes))
        count = gpus or sum(int(node["Resources"]["CPU"]) // cpus for node in nodes)
        given: dict[str, Any] = {"num_cpus": 1 if gpus else cpus, "num_gpus": 1 if gpus else 0}
        kind: Any = ray.remote(Worker).options(max_restarts=-1, max_task_retries=TRIES - 1, **given)
        actors = [kind.remote(os.getcwd(), os.environ.get("NPROC") or str(cores())) for _ in range(count)]
        try:
            begun = ray.wait([each.do.remote(None, set()) for each in actors], timeout=START)[0]
            if not begun:
                raise UserError(
                    f"No worker has started in {START:.0f} seconds. It needs {cpus} free processors of the cluster.",
                    "Look at what else runs there: 'ray status'.",
                    code="lost",
                )
            for each in begun:
                if (refused := _answer(each)[1]) is not None:
                    raise refused
            yield Workers(actors, nodes)
        finally:
            for each in actors:
                with suppress(Exception):
                    ray.kill(each)


@contextmanager
def _joined() -> Iterator[None]:
    """Join a cluster, or start one on this machine, which then ends with the block."""
    # Ray says it when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "2")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        # A cluster of our own listens on the loopback alone, whatever the system is. Who joins it runs code in this
        # account: its token is in no file, where others might read it, and cannot be switched off.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ.pop("RAY_AUTH_MODE", None)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise unsupported(f"Ray cannot be imported: {sentence(error)}", "pip install 'dpfc[ray]'") from error
    if ray.is_initialized():
        yield
        return
    if "://" in address:
        raise unsupported(
            f"RAY_ADDRESS is '{address}', for a client outside the cluster.",
            "Run dpfc on a machine of the cluster: 'ray job submit', or RAY_ADDRESS=HOST:PORT.",
        )
    # Nothing is written to disk where memory is short. Ray lets all users write where its sockets and logs are, so
    # nobody else may come there. (The names of sockets are short: $TMPDIR may be too long.)
    private = TemporaryDirectory(prefix="dpfc-", dir="/tmp", ignore_cleanup_errors=True)
    own: dict[str, Any] = {"_temp_dir": f"{private.name}/ray", "include_dashboard": False}
    own["_system_config"] = {"automatic_object_spilling_enabled": False, "worker_niceness": 0}
    main = threading.current_thread() is threading.main_thread()
    ended = signal.getsignal(signal.SIGTERM)
    try:
        if address not in ("local", "auto"):
            # Ray would wait for minutes.
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **(own if address == "local" else {}))
    except Exception as error:
        raise UserError(
            f"The cluster of Ray at '{address}' cannot be joined: {_said(error)}",
            "Check RAY_ADDRESS, RAY_USE_TLS and RAY_AUTH_MODE, and that Python and Ray have the same versions there. "
            "Without RAY_ADDRESS a cluster is started here.",
            code="lost",
        ) from error
    finally:
        if main:
            # Ray takes the signal by which a command is stopped.
            signal.signal(signal.SIGTERM, ended)
    # Ray says on stdout which worker is lost. Results are there.
    with private, redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            ray.shutdown()


def _nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def check_network() -> None:
    """UserError where others may read what machines tell one another."""
    encrypted = os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")
    if len(nodes := _nodes()) > 1 and not encrypted and os.environ.get(TRUSTED) != "1":
        raise conflict(
            f"The cluster has {len(nodes)} nodes, and its network is not encrypted. Sums of records without noise, and "
            "pictures, would cross it.",
            "Start all nodes, and this command, with RAY_USE_TLS=1 and certificates. If nobody else can read the "
            f"network, set {TRUSTED}=1.",
        )
