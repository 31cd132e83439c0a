"""What is listed of feature sets and heads, and of files that are neither."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from dpfc_cli.training.ledger import ledger_path, records_of

from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.privacy.accounting import default_delta, epsilon_for
from dpfc_cli.training import ledger
from dpfc_cli.training.inventory import Inventory, ListedSet, inventory
from dpfc_cli.training.request import Privacy
from tests.hostile import DATE, calibrated, card_as_written
from tests.support import blobs
from tests.training.rows import row


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sets: `plain` with two splits, and `persons`, whose records belong to 20 persons."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    for name, seed in (("plain", 0), ("persons", 1)):
        x, y = blobs(60, 3, 2, seed=seed)
        arrays = {"train_x": x[:40], "train_y": y[:40]}
        arrays |= {"test_x": x[40:], "test_y": y[40:]} if name == "plain" else {"train_groups": np.arange(40) // 2}
        np.savez(tmp_path / f"{name}.npz", allow_pickle=True, **arrays)
        import_features(tmp_path / f"{name}.npz", tmp_path / "features" / name, classes=("a", "b"))
    return tmp_path


def found(folder: Path) -> Inventory:
    return inventory(folder / "features", folder / "heads")


def listed(folder: Path, name: str) -> ListedSet:
    return next(each for each in found(folder).sets if each.name == name)


def charged(folder: Path, name: str, mu: float = 0.3, seeded: bool = False) -> None:
    place = folder / "features" / name
    records = records_of(FeatureSet(place).manifest)
    ledger.charge(ledger_path(place), replace(row(mu, "research" if seeded else "private"), records=records))


def head_in(folder: Path, name: str, privacy: Privacy, features: str = "plain", **said: object) -> Path:
    """A head whose card says that it was trained on that set."""
    card = card_as_written(calibrated("dp-fc", privacy)) | said
    manifest = FeatureSet(folder / "features" / features).manifest
    card["features"] |= {"name": features, "fingerprint": manifest.fingerprint}
    path = folder / "heads" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encoded(Head(chain=(), weight=np.zeros((2, 3)), bias=np.zeros(3), card=card)))
    return path


def test_a_set_is_listed_with_its_counts_and_nothing_spent(folder: Path) -> None:
    persons, plain = found(folder).sets
    assert asdict(plain) == {
        **{"path": str(folder / "features" / "plain"), "name": "plain", "backbone": "imported", "classes": 2, "dim": 3},
        **{"records": {"train": 40, "test": 20}, "persons": None, "unit": "record", "delta": default_delta(40)},
        **{"trainings": 0, "epsilon": 0.0, "unprotected": 0, "warning": None},
    }
    assert (persons.records, persons.persons, persons.unit) == ({"train": 40}, {"train": 20}, "person")
    assert found(folder).unreadable == ()


def test_what_was_spent_is_the_total_of_the_private_trainings(folder: Path) -> None:
    charged(folder, "plain", seeded=True)
    only = listed(folder, "plain")
    assert (only.trainings, only.unprotected, only.epsilon) == (1, 1, 0.0)
    for mu in (0.3, 0.4):
        charged(folder, "plain", mu)
    both = listed(folder, "plain")
    assert (both.trainings, both.unprotected) == (3, 1)
    assert both.epsilon == pytest.approx(epsilon_for(0.5, both.delta), rel=1e-6)
    assert listed(folder, "persons").trainings == 0


def test_a_total_that_protects_records_says_so_of_a_set_with_persons(folder: Path) -> None:
    charged(folder, "persons")
    assert listed(folder, "persons").unit == "record"


def test_heads_are_listed_by_name_with_what_they_claim(folder: Path) -> None:
    head_in(folder, "b.research.safetensors", Privacy(epsilon=1.0, seed=1))
    path = head_in(folder, "a.safetensors", Privacy(epsilon=2.0, delta=1e-6), "persons")
    (folder / "heads" / "notes.txt").touch()
    private, seeded = found(folder).heads
    assert asdict(private) == {
        **{"path": str(path), "method": "dp-fc", "claim": "private", "epsilon": 2.0, "delta": 1e-6},
        **{"features": "persons", "date": DATE},
    }
    assert (seeded.claim, seeded.epsilon, seeded.delta, seeded.features) == ("research", None, None, "plain")
    old = Head.load(path)
    path.write_bytes(encoded(replace(old, card={key: old.card[key] for key in old.card if key != "date"})))
    assert found(folder).heads[0].date is None


def test_heads_without_a_row_are_told_at_their_set(folder: Path) -> None:
    head_in(folder, "a.safetensors", Privacy(epsilon=2.0))
    assert listed(folder, "plain").warning is None, "heads of earlier versions name no row"
    standing = {"training": 1, "trainings": 1, "private": 1, "unprotected": 0, "epsilon": 2.0, "exact": True}
    head_in(folder, "a.safetensors", Privacy(epsilon=2.0), ledger=standing)
    warning = listed(folder, "plain").warning
    assert warning is not None
    assert f"do not have the training of '{folder}/heads/a.safetensors'" in warning


def test_what_cannot_be_read_is_named_with_its_reason_and_hides_nothing_else(folder: Path) -> None:
    charged(folder, "plain")
    charged(folder, "persons")
    broken = ledger_path(folder / "features" / "plain")
    broken.write_bytes(b"no ledger at all, but longer than the header of one" * 20)
    damaged = Path(shutil.copytree(folder / "features" / "plain", folder / "features" / "zz"))
    (damaged / "manifest.json").write_text("{")
    (folder / "heads").mkdir()
    (folder / "heads" / "x.safetensors").write_bytes(b"no head")
    here = found(folder)
    # Both sets need the damaged ledger: it may have rows of the records of either.
    assert [(each.name, each.trainings, each.epsilon, each.unprotected) for each in here.sets] == [
        ("persons", None, None, None), ("plain", None, None, None),
    ]  # fmt: skip
    reasons = dict(here.unreadable)
    assert len(here.unreadable) == len(reasons)
    assert list(reasons) == [str(folder / "heads" / "x.safetensors"), str(broken), str(damaged)]
    assert "cannot be read as a ledger" in reasons[str(broken)]
    assert all("‹" not in reason for reason in reasons.values())


def test_sets_are_listed_by_name(folder: Path) -> None:
    names = ["7", "3", "9", "1", "5", "plain", "persons"]
    for name in names[:5]:
        (folder / "features" / name).symlink_to(folder / "features" / "plain")
    assert [each.name for each in found(folder).sets] == sorted(names)
