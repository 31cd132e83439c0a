"""Every reader gets damaged input: `python -m tests.torture.fuzz`.

With atheris (`pip install atheris`, the extra `torture`) inputs are made by libFuzzer from what code they reach.
Without it, or with --plain, they are made from the whole inputs of `targets` by changes drawn by chance: flipped bits,
numbers at the edges, lengths, pieces cut out, doubled or exchanged. A reader may return or raise a UserError.
Everything else is a find: other exceptions, more than 2 GB, more than 10 seconds, a crash. Each find is made smaller,
and kept with its reason. Inputs that broke something once lie in `corpus`, by target, and are tried first.
"""

import base64
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.torture import campaign, machine

CORPUS = Path(__file__).with_name("corpus")
LARGEST = 4096
MEMORY = 2 * 2**30
SECONDS = 10
SLICE = 20_000
"""Inputs of one process."""
EDGES: tuple[int, ...] = (
    0,
    1,
    2,
    4,
    7,
    8,
    15,
    16,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
EDGES += (2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    1e-300,
    1e308,
    2**31,
    2**63,
    2**64,
    10**400,
    "",
    "a",
    "\x1b[31m",
    "é",
    "..",
)
VALUES += ([], {}, [[]], [None], {"a": None}, float("nan"), float("inf"), -0.0, "0" * 300)


class TooLongError(BaseException):
    """An input took too long. A BaseException, so that no reader catches it."""


def mutated(rng: random.Random, seeds: list[bytes], text: str) -> bytes:
    """A whole input with some changes."""
    data = bytearray(rng.choice(seeds))
    if text == "json" and rng.random() < 0.7:
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(_changed(rng, json.loads(data))).encode()
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 8))):
        rng.choice(_CHANGES)(rng, data, seeds)
    return bytes(data)


def _flip(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    """A number at the edge of its range, or near the length of the input."""
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((*EDGES, len(data), len(data) - 1, len(data) + 1)) % (1 << 8 * size)
    at = rng.randrange(len(data) + 1)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _cut(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 4, 16, len(data)))]


def _double(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((1, 8, 64, 512))]
    at = rng.randrange(len(data) + 1)
    data[at:at] = piece * rng.choice((1, 2, 50))


def _splice(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    start = rng.randrange(len(other) + 1)
    piece = other[start : start + rng.choice((4, 32, len(other)))]
    at = rng.randrange(len(data) + 1)
    data[at : at + len(piece)] = piece


def _insert(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(
        (b"\0" * 8, b"\xff" * 8, b"[" * 3000, b'"', b"\x1b]0;x\x07", b"1e400", b"-", bytes([rng.randrange(256)]))
    )


_CHANGES = (_flip, _flip, _byte, _byte, _number, _number, _cut, _double, _splice, _insert)


def _changed(rng: random.Random, value: Any) -> Any:
    """JSON with one value at a random place exchanged, left out or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        i = rng.randrange(len(value))
        new = [_changed(rng, value[i])] if rng.random() < 0.8 else rng.choice(([], [value[i]] * 2))
        return [*value[:i], *new, *value[i + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice(
            (-value, value + 1, value * 1e300 if isinstance(value, float) else value * 10**30, str(value))
        )
    return rng.choice(VALUES)


def tried(name: str, data: bytes, place: Path) -> str | None:
    """Give a target an input: why it is a find, or None."""
    from dpfc_cli.errors import UserError
    from tests.torture.targets import TARGETS

    # Of computing: the machine may do other things, too.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        TARGETS[name].run(data, place)
    except UserError:
        return None
    except (Exception, TooLongError) as error:
        return _reason(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _cleared(place)
    return None


def _cleared(place: Path) -> None:
    for path in place.iterdir():
        if path.name == "words":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _reason(error: BaseException) -> str:
    """What was raised, and in which line of dpfc. Finds of one reason count as one."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "/dpfc_cli/" in each.filename]
    where = [f"{frame.filename.partition('/dpfc_cli/')[2]} {frame.name}" for frame in frames[:-3:-1]]
    said = str(error) if isinstance(error, AssertionError) else ""
    return " < ".join([f"{type(error).__name__}{said and ': ' + said}", *where])


def smaller(data: bytes, still: Callable[[bytes], bool], tries: int = 400) -> bytes:
    """The input without pieces that the find does not need."""
    size = max(1, len(data) // 2)
    while size and tries > 0:
        at = 0
        while at < len(data) and tries > 0:
            shorter = data[:at] + data[at + size :]
            tries -= 1
            if still(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _limits() -> None:
    """Bound memory and time of this process."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, stop)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Worker:
    """Tries inputs of one target in this process, and writes down what it finds. Its state lies in a folder.

    The input that is tried lies in `current` meanwhile, so that it is known after a crash.
    """

    def __init__(self, name: str, state: Path) -> None:
        self.name, self.state = name, state
        self.place = state / "place"
        self.place.mkdir(parents=True, exist_ok=True)
        self.known: set[str] = set()
        self._current = os.open(state / "current", os.O_RDWR | os.O_CREAT)
        self.count = 0

    def give(self, data: bytes) -> None:
        """Try one input."""
        os.pwrite(self._current, len(data).to_bytes(4, "little") + data, 0)
        self.count += 1
        reason = tried(self.name, data, self.place)
        if reason is not None and reason not in self.known:
            self.known.add(reason)
            data = smaller(data, lambda each: tried(self.name, each, self.place) == reason)
            found = {"reason": reason, "input": base64.b64encode(data).decode()}
            with (self.state / "finds").open("a") as file:
                file.write(json.dumps(found) + "\n")

    def ended(self) -> None:
        """Say that no input is being tried any more."""
        (self.state / "count").write_text(str(self.count))


def _plain(name: str, state: Path, count: int, seed: int) -> None:
    from tests.torture.targets import TARGETS

    worker, rng, target = Worker(name, state), random.Random(f"{name} {seed}"), TARGETS[name]
    seeds = [*target.seeds(), *(path.read_bytes() for path in corpus(name))]
    for data in seeds:
        worker.give(data)
    while worker.count < count:
        worker.give(mutated(rng, seeds, target.text))
        if worker.count % 100 == 0:
            worker.ended()
    worker.ended()


def _guided(name: str, state: Path, count: int, seed: int) -> None:
    import atheris

    from tests.torture.targets import TARGETS

    worker, target = Worker(name, state), TARGETS[name]
    inputs = state / "inputs"
    inputs.mkdir(exist_ok=True)
    for data in [*target.seeds(), *(path.read_bytes() for path in corpus(name))]:
        (inputs / hashlib.sha1(data).hexdigest()).write_bytes(data)

    def one(data: bytes) -> None:
        worker.give(data)
        if worker.count % 100 == 0:
            worker.ended()

    def change(data: bytes, largest: int, number: int) -> bytes:
        rng = random.Random(number)
        if target.text == "json" and rng.random() < 0.6:
            return mutated(rng, [data], target.text)[:largest]
        return bytes(atheris.Mutate(data, largest))

    options = ["", str(inputs), f"-runs={count}", f"-seed={1 + seed}", f"-max_len={4 * LARGEST}", "-timeout=3600"]
    options += ["-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0", f"-artifact_prefix={state}/"]
    atheris.Setup(options, one, custom_mutator=change)
    atheris.Fuzz()


def corpus(name: str) -> list[Path]:
    """The inputs of a target that broke something once."""
    return sorted(CORPUS.glob(f"{name}-*"))


def load(guided: bool) -> None:
    """Import the targets. If libFuzzer is to know what code an input reaches, this is where it is told."""
    if guided:
        import atheris

        with (
            contextlib.redirect_stderr(io.StringIO()),
            atheris.instrument_imports(include=["dpfc_cli", "PIL", "tarfile", "zipfile"]),
        ):
            import tests.torture.targets
    import tests.torture.targets  # noqa: F401


def batch(name: str, count: int, seed: int, guided: bool, root: Path) -> dict[str, Any]:
    """One process's inputs of a target: how many there were, and the finds."""
    state, kept = root / f"{name}-{seed}", root / f"{name}-inputs"
    state.mkdir(parents=True)
    if guided and kept.exists():
        kept.rename(state / "inputs")
    child = os.fork()
    if child == 0:
        code = 99
        try:
            # libFuzzer and the libraries of pictures write to the streams.
            said = os.open(state / "said", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(said, 1)
            os.dup2(said, 2)
            _limits()
            (_guided if guided else _plain)(name, state, count, seed)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = _watched(child, state)
    finds = (
        [json.loads(line) for line in (state / "finds").read_text().splitlines()] if (state / "finds").exists() else []
    )
    number = int((state / "count").read_text()) if (state / "count").exists() else 0
    if code != 0:
        current = (state / "current").read_bytes() if (state / "current").exists() else b"\0" * 4
        data = current[4 : 4 + int.from_bytes(current[:4], "little")]
        last = (state / "said").read_text(errors="replace").strip().splitlines()[-1:]
        reason = f"the process ended with {code} ({' '.join(last)[:200] if code > 0 else signal.Signals(-code).name})"
        finds.append({"reason": reason, "input": base64.b64encode(data).decode()})
    if guided and (state / "inputs").exists():
        (state / "inputs").rename(kept)
    shutil.rmtree(state)
    return {"inputs": number, "finds": finds}


def _watched(child: int, state: Path) -> int:
    """The exit code of a child. One that tries the same input for ten minutes is ended: it hangs outside of Python."""
    last, since, pause = b"", time.monotonic(), 0.05
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
        current = (state / "current").read_bytes() if (state / "current").exists() else b""
        if current != last:
            last, since = current, time.monotonic()
        elif time.monotonic() - since > 600:
            os.kill(child, signal.SIGKILL)


def main() -> int:
    """The campaign."""
    parser = campaign.arguments(str(__doc__), 1_000_000)
    parser.add_argument("--targets", nargs="+", metavar="TARGET", help="default: all")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--slice", type=int, default=SLICE, help="inputs of one process")
    options = parser.parse_args()
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        os.environ.pop(variable, None)
    # What libraries say of damaged files is not ours, and would be said millions of times.
    warnings.simplefilter("ignore")
    guided = not options.plain and importlib.util.find_spec("atheris") is not None
    print("Inputs are made by atheris." if guided else "Inputs are made without coverage guidance.", flush=True)
    load(guided)
    from tests.torture.targets import TARGETS

    names = options.targets or list(TARGETS)
    path = options.results or campaign.RESULTS / "fuzz.jsonl"
    rounds = -(-options.count // (len(names) * options.slice))
    cases = [
        {"job": name, "what": "guided" if guided else "plain", "count": options.slice, "seed": options.seed + number}
        for number in range(rounds)
        for name in names
    ]
    with machine.scratch() as root:

        def attempt(case: campaign.Case, place: Path) -> list[str]:
            found = batch(case["job"], case["count"], case["seed"], guided, place)
            with (path.parent / (path.stem + ".inputs.jsonl")).open("a") as file:
                file.write(json.dumps({"job": case["job"], "inputs": found["inputs"]}) + "\n")
            for each in found["finds"]:
                keep = path.parent / "finds" / f"{case['job']}-{hashlib.sha1(each['reason'].encode()).hexdigest()[:8]}"
                keep.parent.mkdir(parents=True, exist_ok=True)
                keep.write_bytes(base64.b64decode(each["input"]))
                keep.with_name(keep.name + ".reason").write_text(each["reason"] + "\n")
            return [f"{case['job']}: {each['reason']}" for each in found["finds"]]

        broke = campaign.carry_out(cases, attempt, options, path, root)
    totals: dict[str, int] = {}
    for each in campaign.tried(path.parent / (path.stem + ".inputs.jsonl")):
        totals[each["job"]] = totals.get(each["job"], 0) + each["inputs"]
    for name, number in sorted(totals.items()):
        print(f"{name:16}{number:>12,}")
    print(f"{'inputs in all':16}{sum(totals.values()):>12,}")
    return broke


if __name__ == "__main__":
    sys.exit(bool(main()))
