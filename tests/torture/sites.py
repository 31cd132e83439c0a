"""Sites and their coordinator are killed at random, and started again, until all have the head.

    python -m tests.torture.sites --kills 40
    python -m tests.torture.sites --kills 10 --over flower --programs FOLDER

FOLDER has the programs of a carrier, Flower or NVFlare (`bin` of an environment with examples/hospitals/relay). Then
all messages go over it, with TLS and keys, and its nodes at the sites are killed as well.

It says what broke: a ledger with two charges, a release with two answers, a site without the head.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.extensions.federation import coordinator, plan
from dpfc_cli.extensions.federation.coordinator import Remote
from dpfc_cli.extensions.federation.site import serve, site_of
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training.observer import Observer
from tests.support import blobs

NAMES = ("north", "south", "west")
START, LONGEST = 0.2, 60.0
"""Seconds before the first kill at least; seconds that one federation may take."""
SLOW = 10
"""How many times as long everything may take over a carrier."""
PORT = 9640
"""Of the carrier's server. SuperNodes have the next ones."""
HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals"


def site(name: str) -> None:
    features = FeatureSet(Path(name, "set"))
    serve(site_of(plan.load(Path("plan.json")), name, features, Path(name, "heads")), Path(f"{name}.sock"), Observer())


def coordinate(sockets: str, patience: float) -> None:
    """The coordinator. Each answer that it gets is written down."""
    real = Remote._part

    def watched(self: Remote, number: int, part: int, query: Query) -> np.ndarray:
        answer = real(self, number, part, query)
        digest = hashlib.sha256(answer.tobytes()).hexdigest()
        with Path("seen.jsonl").open("a") as file:
            file.write(json.dumps([self.name, number, part, digest]) + "\n")
        return answer

    Remote._part = watched  # type: ignore[method-assign]
    coordinator.run(plan.load(Path("plan.json")), Path(sockets), Path("joint.safetensors"), Observer(), patience)


def flower_has(programs: Path, name: str) -> dict[str, str]:
    """The environment of Flower's programs, with a folder of their own."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return os.environ | quiet | {"PATH": f"{programs}:{os.environ['PATH']}", "FLWR_HOME": f"{Path.cwd()}/flower-{name}"}


def supernode(name: str, programs: Path) -> None:
    """It takes the place of this process."""
    keys = ["--root-certificates", "server.pem", "--auth-supernode-private-key", f"{name}.key"]
    place = ["--superlink", f"localhost:{PORT}", "--port", str(PORT + 1 + NAMES.index(name))]
    line = ["flower-supernode", *place, *keys, "--node-config", f'socket="{Path.cwd()}/{name}.sock"']
    become(line, flower_has(programs, name))


def become(line: list[str], environment: dict[str, str]) -> None:
    """Another program takes the place of this process."""
    log = os.open("carrier.log", os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execvpe(line[0], line, environment)


@contextlib.contextmanager
def superlink(programs: Path) -> Iterator[None]:
    """A SuperLink at which all sites are registered, and the relay."""
    script = f"""
        mkdir link $FLWR_HOME
        sed "s|localhost:8000|localhost:{PORT}|; s|/keys/federation.pem|$PWD/server.pem|" \
            {HOSPITALS}/flower/config.toml > $FLWR_HOME/config.toml
        openssl req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.pem -subj /CN=localhost \
            -addext subjectAltName=DNS:localhost,IP:127.0.0.1
        flower-superlink --port {PORT} --enable-supernode-auth --disable-runtime-dependency-installation \
            --ssl-ca-certfile server.pem --ssl-certfile server.pem --ssl-keyfile server.key &
        echo $! > link.pid
        for name in {" ".join(NAMES)}; do
            ssh-keygen -q -t ecdsa -b 384 -N "" -f $name.key
            until flwr supernode register $name.key.pub --name $name; do sleep 1; done
        done
        flwr run {HOSPITALS}/relay --run-config "sockets='$PWD/link'"
    """
    with serving(script, flower_has(programs, "link")):
        yield


@contextlib.contextmanager
def serving(script: str, environment: dict[str, str]) -> Iterator[None]:
    """What a script has started, and written into link.pid."""
    with Path("carrier.log").open("ab") as log:
        subprocess.run(["bash", "-ec", script], env=environment, stdout=log, stderr=log, check=True)
    try:
        yield
    finally:
        for each in Path("link.pid").read_text().split():
            os.kill(int(each), signal.SIGTERM)


def nvflare_has(programs: Path) -> dict[str, str]:
    """The environment of NVFlare's programs."""
    here = {"DPFC_SITE": f"{Path.cwd()}", "DPFC_SOCKETS": f"{Path.cwd()}/link", "HOME": f"{Path.cwd()}"}
    return os.environ | here | {"PATH": f"{programs}:{os.environ['PATH']}"}


def client(name: str, programs: Path) -> None:
    """A client of NVFlare takes the place of this process."""
    become(["bash", f"kits/federation/prod_00/{name}/startup/sub_start.sh", "--once"], nvflare_has(programs))


@contextlib.contextmanager
def server(programs: Path) -> Iterator[None]:
    """A server of NVFlare with a kit for each site, and the relay."""
    script = f"""
        mkdir link
        sed 's/federation.example.org/localhost/; s/8002/{PORT}/' {HOSPITALS}/nvflare/project.yml > project.yml
        nvflare provision -p project.yml -w kits --force
        for name in {" ".join(NAMES)}; do
            cp {HOSPITALS}/nvflare/site/*.json kits/federation/prod_00/$name/local
        done
        cd kits/federation/prod_00/localhost
        sed 's/"class_allow_list": \\[/&"relay_nvflare.Serve",/' local/resources.json.default > local/resources.json
        bash startup/sub_start.sh --once &
        echo $! > ../../../../link.pid
        cd ../../../..
        sh {HOSPITALS}/nvflare/relay.sh $PWD/kits/federation/prod_00/coordinator@example.org &
        echo $! >> link.pid
    """
    with serving(script, nvflare_has(programs)):
        yield


CARRIERS = {"flower": (supernode, superlink), "nvflare": (client, server)}
"""For each: what takes the place of a process at a site, and what the coordinator starts."""


def prepared(method: str, colluding: int | None) -> None:
    """Sets of all sites, and their plan, in the working folder."""
    x, y = blobs(600, 8, 3)
    for i, name in enumerate(NAMES):
        np.savez(f"{name}.npz", train_x=x[i::3], train_y=y[i::3])
        features = import_features(f"{name}.npz", Path(name, "set"), classes=("a", "b", "c")).features
        Path(f"{name}.json").write_bytes(plan.invitation(features, name, 2.0).data)
    Path("plan.json").write_bytes(plan.agreed([Path(f"{n}.json") for n in NAMES], method, colluding=colluding).data)


def broken() -> list[str]:
    """What broke, after all have ended."""
    found, joint = [], Head.load("joint.safetensors")
    for name in NAMES:
        book = read(ledger_path(Path(name, "set")))
        ends = [book.outcome(each.id) for each in book.charges]
        if [end and end.state for end in ends] != ["written"]:
            found.append(f"{name} has the charges {ends}")
        written = [Head.load(path) for path in sorted(Path(name, "heads").glob("*.safetensors"))]
        if len(written) != 1 or not np.array_equal(written[0].weight, joint.weight):
            found.append(f"{name} does not have the head, or has two")
    seen: dict[tuple[Any, ...], str] = {}
    for line in Path("seen.jsonl").read_text().splitlines():
        *of, digest = json.loads(line)
        if seen.setdefault(tuple(of), digest) != digest:
            found.append(f"{of} has two answers")
    return found


def one(chance: random.Random, node: tuple[Callable[..., None], Path] | None) -> tuple[int, list[str]]:
    """One federation, with kills until all have ended: how many, and what broke. node: of the carrier, its programs."""
    context = multiprocessing.get_context("forkserver")
    slow = SLOW if node else 1
    told = ("link" if node else ".", 15.0 * slow)
    tasks: dict[str, Any] = {name: (site, (name,)) for name in NAMES} | {"coordinator": (coordinate, told)}
    nodes: dict[str, Any] = {f"node of {name}": (node[0], (name, node[1])) for name in NAMES if node}
    running: dict[str, Any] = {}
    kills, begun = 0, time.monotonic()
    pause = START * slow
    try:
        while tasks or running.keys() - nodes.keys():
            for name, (target, given) in (tasks | nodes).items():
                if name not in running:
                    running[name] = context.Process(target=target, args=given)
                    running[name].start()
            time.sleep(pause)
            for name, process in list(running.items()):
                if process.exitcode is not None:
                    del running[name]
                    # It gives the head to sites that were away, too. So it is typed until all have it.
                    if process.exitcode == 0 and (name != "coordinator" or len(tasks) == 1):
                        tasks.pop(name, None)
            late = time.monotonic() - begun > LONGEST * slow
            if running and not late:
                name = chance.choice(sorted(running))
                running[name].kill()
                running.pop(name).join()
                kills += 1
            if time.monotonic() - begun > 3 * LONGEST * slow:
                return kills, [f"it does not end: {sorted(running)} are left"]
            pause = 0.5 if late else chance.uniform(0.5, 6.0) * slow
    finally:
        for process in running.values():
            process.kill()
    return kills, broken()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", choices=CARRIERS, help="what carries the messages")
    parser.add_argument("--programs", type=Path, help="the folder of its programs")
    given = parser.parse_args()
    multiprocessing.set_forkserver_preload(
        ["dpfc_cli.extensions.federation.site", "dpfc_cli.extensions.federation.coordinator"]
    )
    at_site, at_coordinator = CARRIERS.get(given.over, (None, None))
    programs = given.programs and given.programs.absolute()
    chance, kills, wrong, rounds = random.Random(given.seed), 0, list[str](), 0
    while kills < given.kills:
        with tempfile.TemporaryDirectory() as folder:
            before = Path.cwd()
            os.chdir(folder)
            method, colluding = chance.choice(["dp-whitened", "dp-fc", "dp-ls"]), chance.choice([None, 1])
            context = multiprocessing.get_context("forkserver")
            made = context.Process(target=prepared, args=(method, colluding))
            made.start()
            made.join()
            with at_coordinator(programs) if at_coordinator else contextlib.nullcontext():
                more, found = one(chance, at_site and (at_site, programs))
            os.chdir(before)
        kills, rounds, wrong = kills + more, rounds + 1, wrong + found
        print(f"{method}{' with masks' if colluding else ''}: {more} kills, {found or 'nothing broke'}", flush=True)
    print(f"{kills} kills in {rounds} federations: {len(wrong)} things broke")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
