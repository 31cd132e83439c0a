"""What commands make and say, as digests, so that a move of code is seen to be one.

    python scripts/goldens.py BEFORE AFTER     the differences between two checkouts; status 1 if there are any
    python scripts/goldens.py TREE             the digests of one

Both run on one machine, in one environment: floating-point results differ between machines. The clock stands still, and
random ids are counted. Files count as they are, a ledger by its facts, and what a command says with `--json` as text.
"""

import datetime
import hashlib
import itertools
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

METHODS = ("dp-whitened", "dp-fc", "dp-ls", "dp-newton", "dp-sgd", "dp-momentum", "dp-adam")
ADJACENCIES = ("zero-out", "replace-one")
SETS = ("records", "persons")
KINDS = (("onnx", ".onnx"), ("torch", ".safetensors"), ("sklearn", ".npz"), ("npz", ".npz"))


def lines() -> list[str]:
    """The commands, in their order."""
    found = ["extract digits --limit 300 --json", "import x --classes 3 --out records --population us --json"]
    found += [
        "import x --classes 3 --group-column who --out persons --population us --json",
        "import y --classes 3 --out public --json",
    ]
    found += ["population elsewhere --features public --json", "cap 9 --features public --json"]
    for method, adjacency, name in itertools.product(METHODS, ADJACENCIES, SETS):
        way = f"--method {method} --adjacency {adjacency} --features {name} --seed 1"
        found.append(f"train --epsilon 2 {way} --out heads/{method}-{adjacency}-{name} --json")
    for name in SETS:
        found.append(
            f"train --epsilon 1 --seed 2 --features {name} --public-head start.safetensors "
            f"--out heads/start-{name} --json"
        )
        found.append(
            f"train --epsilon 1 --seed 3 --features {name} --public-features public --out heads/mean-{name} --json"
        )
        found.append(f"train --non-private --features {name} --out heads/plain-{name} --json")
    digits = "heads/digits.nonprivate.safetensors"
    found.append(f"train --non-private --features digits-scattering-limit300 --out {digits} --json")
    head = "heads/dp-whitened-zero-out-records.research.safetensors"
    found += [f"evaluate {head} --json", f"evaluate {head} --full --json", f"statement {head} --json"]
    found += [
        f"verify {head} --json",
        f"report {head} --out report.html --json",
        f"predict {digits} photos --out said.csv",
    ]
    found += [f"export {head} --to {kind} --out made-{kind}{end} --json" for kind, end in KINDS]
    found += ["list --json", "budget --json", "budget --full --json", "budget --sigma 10 --steps 10 --json"]
    return [*found, "forecast --records 1000 --classes 10 --dimensions 50 --json"]


def inputs() -> None:
    """Arrays of three classes, of 40 persons, and class vectors."""
    import numpy as np
    from PIL import Image
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8))
    for folder, split, n in (("x", "train", 240), ("x", "test", 60), ("y", "train", 90)):
        y = rng.integers(0, 3, n)
        Path(folder).mkdir(exist_ok=True)
        np.save(f"{folder}/{split}_x.npy", (centres[y] + rng.normal(size=(n, 8))).astype(np.float32))
        np.save(f"{folder}/{split}_y.npy", y)
        np.save(f"{folder}/{split}_who.npy", rng.integers(0, 40, n) + (1000 if split == "test" else 0))
    Path("photos").mkdir()
    for i in range(5):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(f"photos/{i}.png")
    save_file({"vectors": centres.astype(np.float32)}, "start.safetensors", {"classes": '["0", "1", "2"]'})


def ledger(path: Path) -> bytes:
    with sqlite3.connect(path) as book:
        tables = [name for (name,) in book.execute("select name from sqlite_master where type = 'table' order by name")]
        return repr([(name, book.execute(f"select * from {name}").fetchall()) for name in tables]).encode()


def digests(tree: Path) -> dict[str, str]:
    """By what it is of."""
    counter, now = itertools.count(1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    class Standing(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return now

    datetime.datetime = Standing  # type: ignore[misc]
    # Names of temporary files are shorter, and are not counted.
    secrets.token_hex = lambda size=16: f"{next(counter):032x}" if size == 16 else os.urandom(size).hex()  # type: ignore[assignment]
    sys.path.insert(0, str(tree))
    from typer.testing import CliRunner

    import dpfc_cli.__main__  # noqa: F401
    from dpfc_cli.cli import app as commands

    if hasattr(commands, "register"):
        commands.register()
    else:
        for module in commands.COMMANDS.values():
            __import__(f"dpfc_cli.cli.{module}")
    app = commands.app
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        inputs()
        for line in lines():
            ended = CliRunner().invoke(app, line.split())
            said = f"{ended.exit_code}\n{ended.stdout}".replace(folder, "")
            found[f"dpfc {line}"] = hashlib.sha256(said.encode()).hexdigest()
            if ended.exit_code:
                print(f"{ended.exit_code}: dpfc {line}\n{ended.stderr}", file=sys.stderr)
        for path in sorted(
            path for path in Path().rglob("*") if path.is_file() and path.parts[0] not in ("x", "y", "photos")
        ):
            data = ledger(path) if path.suffix == ".sqlite" else path.read_bytes()
            found[str(path)] = hashlib.sha256(data).hexdigest()
        os.chdir("/")
    return found


def of(tree: str) -> dict[str, str]:
    ended = subprocess.run([sys.executable, __file__, tree], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(ended.stdout))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(digests(Path(sys.argv[1]).resolve()), indent=1))
    else:
        before, after = map(of, sys.argv[1:])
        others = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        print("\n".join(others) or f"All {len(before)} are the same.")
        sys.exit(bool(others))
