"""Methods of other packages: what docs/method.md says, word for word, and what a package that is broken says."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dpfc_cli
from dpfc_cli import points, version
from dpfc_cli.cli.app import app, register
from dpfc_cli.methods import _added, known
from dpfc_cli.records.findings import findings
from tests.support import refuses

PAGE = (Path(__file__).parents[2] / "docs/method.md").read_text("utf-8")
CACHES = (points.installed, points.added, _added, version.code_digest)
FILE, TOML, FIRST, SHOWN, AUDIT, ERROR = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.M | re.S)


def installed(folder: Path, source: str) -> None:
    """What pip leaves of a package with this file."""
    entry = re.search(r"^prototypes = \"(.*)\"$", TOML, re.M)
    assert entry is not None
    (folder / "prototypes.py").write_text(source)
    about = folder / "dpfc_prototypes-0.1.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dpfc-prototypes\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(f"[dpfc.methods]\nprototypes = {entry[1]}\n")
    sys.modules.pop("prototypes", None)
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, in which the method of the page is installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    installed(folder, FILE)
    yield folder
    sys.modules.pop("prototypes", None)
    for cache in CACHES:
        cache.cache_clear()


def dpfc(*words: str) -> tuple[int, str]:
    register()
    ended = CliRunner().invoke(app, words)
    return ended.exit_code, " ".join(ended.output.split())


def test_the_page_goes_from_a_file_to_an_audit(site: Path) -> None:
    audit = AUDIT.splitlines() if "audit" in points.added("dpfc.commands") else []
    for line in [*FIRST.splitlines(), *audit]:
        # The audit is shorter here.
        code, said = dpfc(*line.replace("--runs 1000 --trainings 200", "--runs 100 --trainings 20").split()[1:])
        assert code == 0, (line, said)
        if "statement" in line:
            for part in SHOWN.split("…"):
                assert " ".join(part.split()) in said
    (head,) = Path("heads").iterdir()
    found = dpfc_cli.evaluate(dpfc_cli.Head.load(head), dpfc_cli.open_features("digits-scattering"))
    assert found.top1 > 0.6
    assert "prototypes" in points.added("dpfc.methods")


def test_a_head_is_checked_where_the_same_source_is_installed_and_nothing_is_said_elsewhere(site: Path) -> None:
    assert dpfc("extract", "digits")[0] == 0
    assert dpfc("train", "--method", "prototypes", "--epsilon", "1")[0] == 0
    (path,) = Path("heads").iterdir()

    def releases() -> str:
        (found,) = [each for each in findings(dpfc_cli.Head.load(path).card) if each.what == "releases"]
        return found.result

    assert releases() == "ok"
    held = json.loads(dpfc_cli.Head.load(path).card.json)
    assert held["method_source"] == {"package": "dpfc-prototypes 0.1", "sha256": version.code_digest("prototypes")}
    installed(site, FILE.replace("(0.1, 0.9)", "(0.2, 0.8)"))
    assert releases() == "unknown"
    (site / "dpfc_prototypes-0.1.dist-info/entry_points.txt").unlink()
    for cache in CACHES:
        cache.cache_clear()
    assert releases() == "unknown"


def test_a_plan_that_is_not_followed_is_refused_before_the_charge_and_says_what_differs(site: Path) -> None:
    installed(site, FILE.replace("chain = (UNIT, Centre(mean), UNIT)", "chain = (UNIT, Centre(mean))"))
    assert dpfc("extract", "digits")[0] == 0
    code, said = dpfc("train", "--method", "prototypes", "--epsilon", "1")
    assert code != 0
    assert " ".join(ERROR.split()) in said
    assert "Nothing was charged" in said
    assert dpfc("budget")[1].count("prototypes") == 0


def test_a_package_that_cannot_be_used_says_why_and_hides_no_other_method(site: Path) -> None:
    for source, why in (("import missing_module", "missing_module"), ("METHOD = 1", "TypeError")):
        installed(site, source)
        with refuses("unsupported", match=why, name="prototypes"):
            known("prototypes")
        assert known("dp-ls") is not None


def test_a_method_in_a_namespace_of_several_packages_is_known_by_its_own(site: Path) -> None:
    for name in ("heads", "other"):
        (site / "lab" / name).mkdir(parents=True)
        (site / "lab" / name / "__init__.py").touch()
    (site / "lab/heads/made.py").write_text(FILE)
    entries = site / "dpfc_prototypes-0.1.dist-info/entry_points.txt"
    entries.write_text(entries.read_text().replace("prototypes:", "lab.heads.made:"))
    found = list[Any]()
    for changed in ("other", "other", "heads"):
        (site / "lab" / changed / "more.py").write_text(f"x = {len(found)}")
        for cache in CACHES:
            cache.cache_clear()
        method = known("prototypes")
        assert method is not None
        found.append(method.source)
    assert found[0] == found[1] != found[2]
