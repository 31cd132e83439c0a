"""Builds the source archive and the wheel into dist/, and checks that both are whole and that the wheel works alone.

    python scripts/package.py

The wheel is built from the archive, so the archive is known to build. It is installed into a new environment of the
same Python, outside the repository, and its commands are run there.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINES = (
    "--version",
    "--help",
    "budget --sigma 10 --steps 10",
    "extract digits",
    "train --epsilon 1",
    "evaluate",
    "predict heads/digits-scattering-dp-whitened-eps1.safetensors features/digits-scattering",
    "export heads/digits-scattering-dp-whitened-eps1.safetensors --to npz --out head.npz",
    "report heads/digits-scattering-dp-whitened-eps1.safetensors --out report.md",
    "budget",
)
"""What must work right after `pip install`."""


def build(dist: Path) -> tuple[Path, Path]:
    """The source archive and the wheel, made anew."""
    for old in dist.glob("dpfc-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)], check=True)
    (archive,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return archive, wheel


def missing(archive: Path) -> list[str]:
    """The files under version control that the archive lacks, other than hidden ones such as .gitignore."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    return sorted(path for path in set(filter(None, listed.stdout.split("\0"))) - held if path[0] != ".")


def main() -> None:
    """Build and check."""
    archive, wheel = build(ROOT / "dist")
    if lacking := missing(archive):
        sys.exit(f"{archive.name} lacks {', '.join(lacking[:5])} (of {len(lacking)}).")
    # The wheel alone: nothing of the repository, and none of the user's folders.
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DPFC_"))}
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", Path(folder, "venv")], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel], env=alone, check=True
        )
        subprocess.run([python, "-m", "pip", "check"], env=alone, check=True)
        for line in LINES:
            print(f"$ dpfc {line}", flush=True)
            words = [python.with_name("dpfc"), "-q", *line.split()]
            subprocess.run(words, cwd=folder, env=alone, check=True, stdout=subprocess.DEVNULL)
    for path in (archive, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes; Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
