"""The pictures of a trial come from all over the listing, in every format, and are the same every time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import Split, open_images
from dpfc_cli.images.sets import spread
from tests.images.conftest import idx_bytes
from tests.images.pictures import SQUARE, png, tar

N = 60
"""The number of pictures: 20 of each of three classes, class by class. Picture i is full of 4i."""


def folder(path: Path) -> str:
    for i in range(N):
        file = path / "train" / "abc"[i // 20] / f"{i:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(4 * i))
    return f"imagefolder:{path}"


def webdataset(path: Path) -> str:
    for part in range(4):
        members = []
        for i in range(15 * part, 15 * part + 15):
            members += [(f"{i}.png", png(4 * i)), (f"{i}.cls", b"%d" % (i // 20))]
        tar(path / f"train-{part}.tar", members)
    return f"webdataset:{path}"


def parquet(path: Path) -> str:
    pictures = pa.array([{"bytes": png(4 * i)} for i in range(N)], pa.struct([("bytes", pa.binary())]))
    pq.write_table(pa.table({"image": pictures, "label": np.arange(N) // 20}), path / "train.parquet", row_group_size=7)
    return f"parquet:{path}"


def imagenet(path: Path) -> str:
    inner = []
    for j, wnid in enumerate(("n01440764", "n01443537", "n02084071")):
        members = [(f"{wnid}_{i:02d}.JPEG", png(4 * i)) for i in range(20 * j, 20 * j + 20)]
        inner.append((f"{wnid}.tar", tar(path / "inner.tar", members).read_bytes()))
    tar(path / "ILSVRC2012_img_train.tar", inner)
    return "imagenet"


def idx(path: Path) -> str:
    images = np.broadcast_to(4 * np.arange(N, dtype=np.uint8)[:, None, None], (N, 8, 8))
    for kind, values in (("images-idx3", images), ("labels-idx1", (np.arange(N) // 20).astype(np.uint8))):
        (path / f"train-{kind}-ubyte").write_bytes(idx_bytes(np.ascontiguousarray(values)))
    return "mnist"


def values(split: Split) -> list[int]:
    return [int(split.pixels(i, i + 1)[0, 0, 0, 0]) // 4 for i in range(split.n)]


@pytest.mark.parametrize("make", [folder, webdataset, parquet, imagenet, idx])
def test_a_trial_has_pictures_of_the_whole_listing_with_their_labels_in_every_format(
    make: Callable[[Path], str], tmp_path: Path
) -> None:
    name = make(tmp_path)
    place = None if ":" in name else tmp_path
    train = open_images(name, place, None if name == "mnist" else SQUARE).splits["train"]
    assert values(train) == list(range(N))
    for n in (1, 6, 7, 59):
        trial = train.spread(n)
        assert values(trial) == spread(n, N).tolist()
        assert trial.labels.tolist() == [i // 20 for i in values(trial)]
        assert (trial.n, trial.listing, trial.prepared) == (n, train.listing, train.prepared)
        np.testing.assert_array_equal(trial.pixels(0, n), np.concatenate([trial.pixels(i, i + 1) for i in range(n)]))
        with pytest.raises(IndexError):
            trial.pixels(0, n + 1)
    assert train.spread(N) is train
    assert train.spread(N + 1) is train
    assert np.bincount(train.spread(6).labels).tolist() == [2, 2, 2]


@pytest.mark.parametrize("total", [1, 2, 7, 1000, 1_281_167])
def test_one_record_is_taken_of_each_of_n_equal_stretches(total: int) -> None:
    for n in {1, 2, 3, 10, total // 2, total - 1, total}:
        if not 0 < n <= total:
            continue
        records = spread(n, total)
        cuts = np.arange(n + 1) * total // n
        assert len(records) == n
        assert (cuts[:-1] <= records).all()
        assert (records < cuts[1:]).all()


@pytest.mark.parametrize("period", [2, 3, 10, 50])
def test_a_listing_that_repeats_its_classes_in_turn_gives_all_classes(period: int) -> None:
    """Every k-th record would be of one class."""
    labels = np.arange(200_000) % period
    for stride in (period, 2 * period, 4 * period):
        n = len(labels) // stride
        counts = np.bincount(labels[spread(n, len(labels))], minlength=period)
        assert counts.min() >= 0.5 * n / period


def test_a_broken_picture_outside_the_trial_is_not_opened(tmp_path: Path) -> None:
    name = folder(tmp_path)
    for i in set(range(N)) - set(spread(6, N).tolist()):
        (tmp_path / "train" / "abc"[i // 20] / f"{i:02d}.png").write_bytes(b"")
    train = open_images(name, geometry=SQUARE).splits["train"]
    assert values(train.spread(6)) == spread(6, N).tolist()
    with pytest.raises(UserError, match=r"\.png"):
        train.pixels(0, N)
