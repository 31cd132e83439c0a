"""`dpfc report` from the command line: which report was written, and for whom."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Dpfc, each_is_refused
from tests.cli.test_signature import HEAD, refused
from tests.cli.test_signature import signed as signed_head  # noqa: F401
from tests.signing import key_pair


def test_a_report_says_for_whom_it_is_and_which_bytes_it_has(dpfc: Dpfc, features: Path) -> None:
    trained = ("train", "--epsilon", "2", "--method", "dp-ls", "--out", "a.safetensors", "--purpose", "figure 3")
    assert dpfc(*trained).exit_code == 0
    shown = dpfc("report", "a.safetensors", "--out", "shared.md", ends=0)
    assert hashlib.sha256(Path("shared.md").read_bytes()).hexdigest() in shown.stdout
    told = json.loads(dpfc("report", "a.safetensors", "--out", "own.md", "--kind", "internal", "--json").stdout)
    data = Path("own.md").read_bytes()
    assert told == {"report": "own.md", "kind": "internal", "sha256": hashlib.sha256(data).hexdigest(), "warnings": []}
    assert b"figure 3" in data
    assert b"figure 3" not in Path("shared.md").read_bytes()
    assert [Path(name).stat().st_mode & 0o077 for name in ("own.md", "shared.md")] == [0, 0o044]
    for more, name in (((), "a-shared.html"), (("--kind", "internal"), "a-internal.html")):
        assert ("whoever" in dpfc("report", "a.safetensors", *more, ends=0).stdout) == (not more)
        assert Path(name).exists()


def test_what_is_wrong_is_said_in_flags_and_nothing_is_written(dpfc: Dpfc, features: Path) -> None:
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", "a.safetensors").exit_code == 0
    lines = {
        "--out r.txt": "bad-value out r.txt",
        "--out r.md --features blobs": "conflict features",
        "--out r.md --ledger features/ledger.sqlite": "conflict ledger",
        "--out r.md --not-before 2026-01-01": "conflict not_before",
        "--out r.md --kind auditor --not-before 2999-01-01": "conflict not_before",
        "--out r.md --audit none.json": "missing audit none.json",
        "--out r.md --kind internal --features none": "missing none",
        "--out r.md --kind auditor --ledger none.sqlite": "missing ledger none.sqlite",
        "--out r.md --evaluation none.json": "missing evaluation none.json",
    }
    each_is_refused(dpfc, lines, "report", "a.safetensors")


@pytest.mark.usefixtures("signed_head")
def test_a_report_says_who_signed_or_that_it_was_not_checked(dpfc: Dpfc) -> None:
    def by(*more: str) -> str:
        Path("a.md").unlink(missing_ok=True)
        assert dpfc("report", str(HEAD), "--out", "a.md", *more).exit_code == 0
        (line,) = [line for line in Path("a.md").read_text().splitlines() if "| signed by |" in line]
        return line

    assert "own.pub" in by("--public-key", "own.pub")
    assert "not" in by()
    Path("a.md").unlink()
    other = key_pair(Path(), "other")[1]
    assert refused(dpfc, "report", str(HEAD), "--out", "a.md", "--public-key", str(other))
    assert not Path("a.md").exists()
