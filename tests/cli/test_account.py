"""What is spent on the same records is found from each of their sets, and what the ledgers cannot know is told."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.privacy.accounting import epsilon_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gradient
from dpfc_cli.training import ledger
from dpfc_cli.training.account import Account, account_of
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.inventory import inventory
from dpfc_cli.training.ledger import ledger_path, read, totals
from dpfc_cli.training.other_ledgers import newest_ledger
from dpfc_cli.training.request import Privacy
from dpfc_cli.trust.statement import rows
from tests.cli.conftest import Dpfc
from tests.hostile import calibrated, card_as_written
from tests.support import CHAIN, blobs, calibrated_at, plan_of

AT = "2026-01-02T03:04:05+00:00"


def made(folder: Path, like: Path | None = None, seed: int = 0) -> Path:
    """A small feature set; `like`: of the same records."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if like is not None:
        return Path(shutil.copytree(like, folder))
    x, y = blobs(30, 3, 2, seed=seed)
    np.savez(folder.with_suffix(".npz"), train_x=x, train_y=y)
    import_features(folder.with_suffix(".npz"), folder, classes=("a", "b"))
    return folder


def charged(folder: Path, mu: float) -> None:
    facts = Facts(n=30, m=2, d=3)
    plan = plan_of(facts, (Gradient(CHAIN, np.zeros((4, 2)), clip=1.0), 1.0))
    calibrated = calibrated_at(facts, plan, mu, epsilon=epsilon_for(mu, 1e-5))
    ledger.charge(ledger_path(folder), entry_of(calibrated, FeatureSet(folder), "h.safetensors", AT))


def spent(*mus: float) -> Any:
    return pytest.approx(epsilon_for(math.hypot(*mus), 1e-5), rel=1e-6)


def account(named: str) -> Account:
    return account_of(ledger_path(Path(named)), Path(named))


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sets of the same records on two disks, linked into `features`, and trainings on both."""
    monkeypatch.chdir(tmp_path)
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.delenv(variable, raising=False)
    made(tmp_path / "disk1" / "a")
    made(tmp_path / "disk2" / "b", like=tmp_path / "disk1" / "a")
    Path("features").mkdir()
    for link, disk in (("a", "disk1"), ("b", "disk2")):
        (Path("features") / link).symlink_to(tmp_path / disk / link)
    charged(Path("features/a"), 0.3)
    charged(Path("features/b"), 0.4)
    return tmp_path


def test_sets_that_are_links_to_other_disks_are_summed_however_they_are_named(disks: Path) -> None:
    for named in ("features/a", "features/b", str(disks / "disk1" / "a"), "disk2/b", "features/../features/a"):
        found = account(named)
        assert found.epsilon(1e-5) == spent(0.3, 0.4)
        assert {name for name, _ in found.rows} == {"a", "b"}
        assert found.not_counted == ()
        assert {disks / each for each in ("features", "disk1", "disk2")} == set(found.folders)
    listed = inventory(Path("features"), Path("heads")).sets
    assert [each.epsilon for each in listed] == [spent(0.3, 0.4)] * 2
    assert account_of(newest_ledger(Path("features"))).epsilon(1e-5) == spent(0.3, 0.4)


def test_so_says_budget(dpfc: Dpfc, disks: Path) -> None:
    for asked in ([], ["--features", "a"], ["--features", "b"], ["--features", "disk1/a"]):
        told = dpfc("budget", "--json", "--delta", "1e-5", *asked)
        found = json.loads(told.stdout)["spent"]
        assert found["epsilon"]["1e-05"] == spent(0.3, 0.4)
        assert found["feature_sets"] == ["a", "b"]
    assert "disk1" in dpfc("budget").stdout.splitlines()[0]


def test_sets_are_found_from_one_another_over_several_folders(disks: Path) -> None:
    """`c` is not in `features`, but lies beside `b`; `d` is found from `c`'s folder."""
    made(disks / "disk2" / "c", like=disks / "disk1" / "a")
    made(disks / "disk3" / "d", like=disks / "disk1" / "a")
    (disks / "disk2" / "d").symlink_to(disks / "disk3" / "d")
    charged(disks / "disk2" / "c", 0.5)
    charged(disks / "disk3" / "d", 0.6)
    for named in ("features/a", "features/b", "disk2/c", "disk2/d"):
        assert account(named).epsilon(1e-5) == spent(0.3, 0.4, 0.5, 0.6)


def test_a_ledger_counts_once_however_many_names_lead_to_it(disks: Path) -> None:
    Path("features/again").symlink_to(disks / "disk1" / "a")
    Path("features/x.ledger.sqlite").symlink_to(disks / "disk2" / "b.ledger.sqlite")
    for named in ("features/a", "features/b", "features/again"):
        assert account(named).epsilon(1e-5) == spent(0.3, 0.4)


def test_sets_of_one_name_are_told_apart(disks: Path) -> None:
    made(disks / "disk3" / "a", like=disks / "disk1" / "a")
    made(disks / "disk4" / "a", seed=1)
    for disk in ("disk3", "disk4"):
        charged(disks / disk / "a", 0.5)
        (Path("features") / disk).symlink_to(disks / disk / "a")
    found = account("features/a")
    assert found.epsilon(1e-5) == spent(0.3, 0.4, 0.5)
    assert {name for name, _ in found.rows} == {str(disks / "disk1/a"), str(disks / "disk3/a"), "b"}
    assert found.not_counted == (str(disks / "disk4/a"),)


def test_a_link_that_leads_nowhere_is_not_passed_over(disks: Path) -> None:
    """A disk that is not there may hold a ledger of the same records."""
    (disks / "disk2").rename(disks / "unplugged")
    assert account("features/a").not_counted == ("b",)
    Path("features/a.ledger.sqlite").symlink_to(disks / "nowhere.sqlite")
    with pytest.raises(UserError, match="is a link that leads nowhere"):
        account("features/a")


def test_a_set_that_got_another_name_keeps_its_account(disks: Path) -> None:
    (disks / "disk1" / "a").rename(disks / "disk1" / "renamed")
    Path("features/a").unlink()
    Path("features/renamed").symlink_to(disks / "disk1" / "renamed")
    found = account("features/renamed")
    assert (found.own, found.epsilon(1e-5)) == ((), spent(0.3, 0.4))


# Heads know their training


def test_a_head_is_the_row_of_its_number(disks: Path) -> None:
    """Two trainings may be alike in all but their numbers."""
    charged(Path("features/b"), 0.4)
    row = account("features/a").linked[0][1]
    card = {"date": row.at, "method": row.method, "claim": row.claim, "plan": json.loads(row.releases)}
    card["features"] = {"fingerprint": FeatureSet(Path("features/a")).manifest.fingerprint}
    known = [(Path(str(number)), {**card, "ledger": {"training": number}}) for number in (1, 2, 3)]
    other = {"date": "other", "method": "other", "claim": "other", "plan": card["plan"][1:]}
    changed = [(Path(name), {**known[0][1], name: value}) for name, value in other.items()]
    others = [(Path("other set"), {**known[2][1], "features": {"fingerprint": "other"}})]
    for named in ("features/a", "features/b"):
        found = account_of(ledger_path(Path(named)), Path(named), [*known, *changed, *others])
        assert found.lost == ("3", "date", "method", "claim", "plan")
    assert found.warning is not None
    assert "'3' and 4 more" in found.warning


LS = ("train", "--method", "dp-ls", "--epsilon", "1")


def warned(said: str) -> bool:
    return "do not have the training of" in " ".join(said.split())


def tells(dpfc: Dpfc) -> set[bool]:
    """Whether budget and list say that a head has no row."""
    spent = json.loads(dpfc("budget", "--features", "blobs", "--json").stdout)["spent"]
    told = spent["heads_without_row"] or spent["ledgers_gone"]
    listed = json.loads(dpfc("list", "--json").stdout)["sets"]
    return {bool(told), any(each["warning"] for each in listed)}


def warns(dpfc: Dpfc) -> set[bool]:
    """Whether train, budget and list warn of it."""
    lines = ([*LS, "--features", "blobs", "--dry-run"], ["budget", "--features", "blobs"], ["list"])
    return {warned(dpfc(*line).stderr) for line in lines}


def test_a_ledger_that_is_gone_or_older_is_told_while_heads_name_it(dpfc: Dpfc, features: Path, tmp_path: Path) -> None:
    kept = Path("features/blobs.ledger.sqlite")
    assert dpfc(*LS).exit_code == 0
    older = kept.read_bytes()
    assert dpfc(*LS).exit_code == 0
    newer = kept.read_bytes()
    assert tells(dpfc) == {False}
    # Put back from a backup.
    kept.write_bytes(older)
    assert tells(dpfc) == warns(dpfc) == {True}
    # The number of the lost training goes to another one.
    assert dpfc(*LS, "--seed", "1").exit_code == 0
    assert tells(dpfc) == {True}
    kept.unlink()
    assert tells(dpfc) == {True}
    kept.write_bytes(newer)
    (Path("heads") / "blobs-dp-ls-eps1.research.safetensors").unlink()
    assert tells(dpfc) == warns(dpfc) == {False}
    # The set was moved without its ledger.
    features.rename(tmp_path / "blobs")
    Path("features/blobs").symlink_to(tmp_path / "blobs")
    assert tells(dpfc) == {False}, "the ledger is in the folder where the set is named"
    Path("features/blobs").unlink()
    kept.rename(tmp_path / "away")
    assert warned(dpfc(*LS, "--features", "./blobs", "--dry-run").stderr)


def test_the_card_says_how_many_trainings_the_ledgers_knew(
    dpfc: Dpfc, features: Path, arrays: Path, tmp_path: Path
) -> None:
    assert dpfc("import", str(arrays), "--out", "again", "--shards", "2", "--classes", "3").exit_code == 0
    first, second, third, fourth = "1.safetensors", "2.safetensors", "3.nonprivate.safetensors", "4.safetensors"
    assert dpfc(*LS, "--features", "blobs", "--out", first).exit_code == 0
    assert dpfc(*LS, "--features", "again", "--out", second).exit_code == 0
    open_line = ("train", "--method", "dp-ls", "--features", "blobs")
    assert dpfc(*open_line, "--non-private", "--out", third).exit_code == 0
    shown = dpfc(*open_line, "--epsilon", "2", "--delta", "1e-6", "--out", fourth)
    entries = read(Path("features/blobs.ledger.sqlite"))
    told = [Head.load(name).card["ledger"] for name in (first, second, third, fourth)]
    assert [set(each) for each in told] == [
        {"training", "trainings", "private", "unprotected", "epsilon", "exact", "unit"}
    ] * 4
    assert [each["training"] for each in told] == [1, 1, 2, 3]
    assert [(each["trainings"], each["private"], each["unprotected"]) for each in told] == [
        (1, 1, 0),
        (1, 1, 0),
        (2, 1, 1),
        (3, 2, 1),
    ]
    assert told[0]["epsilon"] == pytest.approx(1, rel=1e-6)
    assert told[2]["epsilon"] is None
    assert told[3]["epsilon"] == ledger.together(entries, 1e-6)
    assert all(each["exact"] for each in told)
    said = " ".join(shown.stdout.split())
    for words in (
        "This was one of 3 trainings on these records, as far as its ledger knew",
        "row 3",
        "Together the 2 private ones spent epsilon = ",
        "1 training had no guarantee (epsilon = ∞)",
        "if it was chosen among others",
        "a cap that was fixed in advance is the guarantee",
    ):
        assert words in said
    assert "This was the first training on these records" in " ".join(dpfc("statement", first).stdout.split())


def test_heads_of_earlier_versions_are_read_and_say_that_it_is_unknown(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*LS, "--out", "new.safetensors").exit_code == 0
    new = Head.load("new.safetensors")
    old = replace(new, card={name: value for name, value in new.card.items() if name != "ledger"})
    Path("heads").mkdir()
    Path("heads/old.safetensors").write_bytes(encoded(old))
    assert "It is unknown how many there are" in " ".join(dpfc("statement", "old").stdout.split())
    Path("features/blobs.ledger.sqlite").unlink()
    # They left no digests beside the ledger, either.
    assert tells(dpfc) == {True}
    Path("features/blobs.ledger.digests").unlink()
    assert tells(dpfc) == {False}


@pytest.mark.parametrize(
    "broken",
    [
        {"training": 0},
        {"training": "1"},
        {"trainings": 2},
        {"trainings": True},
        {"epsilon": "1"},
        {"epsilon": -1.0},
        {"exact": 1},
        {"private": -1, "unprotected": 2},
    ],
)
def test_a_card_that_says_nonsense_of_the_ledger_is_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    told = {"training": 1, "trainings": 1, "private": 1, "unprotected": 0, "epsilon": 1.0, "exact": True}
    card = card_as_written(calibrated("dp-ls", Privacy(epsilon=1.0)))
    head = Head(chain=(), weight=np.zeros((2, 3)), bias=np.zeros(3), card=card | {"ledger": told})
    (tmp_path / "whole.safetensors").write_bytes(encoded(head))
    assert Head.load(tmp_path / "whole.safetensors").card["ledger"] == told
    (tmp_path / "broken.safetensors").write_bytes(encoded(replace(head, card=card | {"ledger": told | broken})))
    with pytest.raises(UserError, match="in its card"):
        Head.load(tmp_path / "broken.safetensors")


def test_a_total_that_no_figure_states_is_null_in_the_card(disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has no infinity. The statement says it in words. Many trainings are not compared each with each."""
    unit_of, calls = totals.unit_of, list[int]()
    monkeypatch.setattr(totals, "unit_of", lambda rows: (calls.append(1), unit_of(rows))[1])
    found = account("features/a")
    loud = found.own[0]
    many = replace(found, own=(loud,) * 20_000)
    told = ledger.standing(many.own, 1, 1e-5)
    assert told["epsilon"] is None
    assert len(calls) < 10
    card = {
        **{"ledger": told, "claim": "private", "method": "dp-ls", "options": {}, "epsilon": 1.0, "delta": 1e-5},
        **{"unit": "record", "facts": {"n": 30, "m": 2, "k": 1, "origin": "asserted"}, "adjacency": "zero-out"},
        **{"accounting": "Gaussian differential privacy, exact composition of full passes", "mu": loud.mu, "eta": 0.0},
        **{"versions": {"dpfc": "1"}, "plan": json.loads(loud.releases)},
    }
    assert "spent more than can be stated" in dict(rows(card, "0"))["other heads"]


def test_a_name_that_the_ledger_cannot_keep_is_refused_before_the_charge(dpfc: Dpfc, features: Path) -> None:
    refused = dpfc(*LS, "--out", "heads/\udcff.safetensors")
    assert refused.exit_code == 2
    assert "has characters that cannot be seen" in refused.stderr
    assert read(Path("features/blobs.ledger.sqlite")) == []
