"""A part of the training pictures is held out for test. Each picture's own name decides, and the listing stays."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import ImageSet, held_out, open_images
from tests.images.pictures import SQUARE, png
from tests.images.test_spread import N, folder, idx, imagenet, parquet, values, webdataset


def opened(path: Path, name: str) -> ImageSet:
    return open_images(name, None if ":" in name else path, None if name == "mnist" else SQUARE)


@pytest.mark.parametrize("make", [folder, webdataset, parquet, imagenet, idx])
def test_the_two_parts_are_the_whole_with_its_labels_and_its_listing_in_every_format(
    make: Callable[[Path], str], tmp_path: Path
) -> None:
    whole = opened(tmp_path, make(tmp_path))
    parts = held_out(whole, 0.3).splits
    assert sorted(values(parts["train"]) + values(parts["test"])) == list(range(N))
    assert 5 < parts["test"].n < 35
    for part in parts.values():
        assert values(part) == sorted(values(part))
        assert part.labels.tolist() == [i // 20 for i in values(part)]
        assert part.listing == whole.splits["train"].listing
    trial = parts["test"].spread(3)
    assert set(values(trial)) < set(values(parts["test"]))
    # Each picture keeps its name.
    names = {i: whole.splits["train"].name(i) for i in range(N)}
    assert len(set(names.values())) == N
    assert [trial.name(i) for i in range(3)] == [names[i] for i in values(trial)]


def test_other_pictures_do_not_change_where_a_picture_goes(tmp_path: Path) -> None:
    name = folder(tmp_path)

    def names_in_test() -> set[str]:
        test = held_out(opened(tmp_path, name), 0.3).splits["test"]
        return {test.name(i) for i in range(test.n)}

    before = names_in_test()
    assert 5 < len(before) < 35
    new = {"a/000.png", "a/001.png", "b/200.png"}
    for name_of_new in new:
        (tmp_path / "train" / name_of_new).write_bytes(png(0))
    (tmp_path / "train" / "0").mkdir()
    assert names_in_test() - new == before
    (tmp_path / "train" / "a" / "00.png").unlink()
    assert names_in_test() - new == before - {"a/00.png"}


def test_the_part_has_the_fraction_asked_for_whatever_the_names() -> None:
    from dpfc_cli.sources.held_out import _hashed

    for form in ("{}", "cat/{:05d}.png", "IMG_{:04d}\udcff.JPG"):
        at = np.array([_hashed(form.format(i)) for i in range(20_000)])
        assert at.min() >= 0
        assert at.max() < 1
        for fraction in (0.01, 0.1, 0.5, 0.85):
            assert (at < fraction).mean() == pytest.approx(fraction, abs=5 * (fraction / 20_000) ** 0.5)
        assert abs(np.corrcoef(at[:-1], at[1:])[0, 1]) < 0.04


def test_a_set_with_a_test_split_and_one_too_small_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'digits' has a test split already, of 397 images"):
        held_out(open_images("digits"), 0.1)
    whole = opened(tmp_path, folder(tmp_path))
    with pytest.raises(UserError, match="one of the two splits empty"):
        held_out(whole, 1e-9)
