"""Parts of a set: a trial is spread over the listing, a part is held out by names, and the listing stays."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.annotations import split_files
from dpfc_cli.annotations.classes import coded
from dpfc_cli.geometry import Geometry
from dpfc_cli.images.pictures import Held
from dpfc_cli.images.sets import ImageSet, Listed, held_out, image_set, spread
from tests.images.pictures import SQUARE, files, open_images, request, values
from tests.support import refuses

N = 60
"""The number of pictures: 20 of each of three classes, class by class. Picture i is full of i."""
NAMES = [f"train/{'abc'[i // 20]}/{i:02d}.png" for i in range(N)]


def in_folders(path: Path) -> ImageSet:
    return open_images(files(path, *NAMES), geometry=SQUARE)


def held(images: np.ndarray, labels: np.ndarray, geometry: Geometry | None = None) -> ImageSet:
    """Pictures that are pixels already."""
    found = {"train": Listed(labels=coded(labels), pictures=Held(images[..., None]), entries=())}
    return image_set("held", found, request(geometry), classes=("a", "b", "c"))


def in_memory() -> ImageSet:
    images = np.repeat(np.arange(N, dtype=np.uint8), 64).reshape(N, 8, 8)
    return held(images, np.arange(N) // 20)


def test_a_trial_and_a_part_have_their_labels_their_names_and_the_listing_of_the_whole(tmp_path: Path) -> None:
    """Parts of archives and tables are those of persons, in `test_persons`."""
    for whole in (in_folders(tmp_path), in_memory()):
        train = whole.splits["train"]
        assert values(train).tolist() == list(range(N))
        names = {i: train.pixels.name(i) for i in range(N)}
        assert len(set(names.values())) == N
        for n in (1, 6, 7, 59):
            trial = train.spread(n)
            assert values(trial).tolist() == spread(n, N).tolist()
            assert trial.labels.tolist() == [i // 20 for i in values(trial)]
            assert (trial.n, trial.listing) == (n, train.listing)
            apart = np.concatenate([trial.pixels(i, i + 1) for i in range(n)])
            np.testing.assert_array_equal(trial.pixels(0, n), apart)
            with pytest.raises(IndexError):
                trial.pixels(0, n + 1)
        assert train.spread(N) is train.spread(N + 1) is train
        parts = held_out(whole, 0.3).splits
        assert sorted([*values(parts["train"]), *values(parts["test"])]) == list(range(N))
        assert 5 < parts["test"].n < 35
        for part in parts.values():
            assert values(part).tolist() == sorted(values(part))
            assert part.labels.tolist() == [i // 20 for i in values(part)]
            assert part.listing == train.listing
        trial = parts["test"].spread(3)
        assert [trial.pixels.name(i) for i in range(3)] == [names[i] for i in values(trial)]
        assert set(values(trial)) < set(values(parts["test"]))


def test_pixels_are_brought_to_a_geometry_as_the_same_picture_in_a_file_is(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 9, 7), np.uint8)
    for i, image in enumerate(images):
        path = tmp_path / f"images/train/{'ab'[i % 2]}/{i // 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    for wanted in (Geometry(resize=24, crop=16), Geometry(resize=(5, 5), crop=8, filter="bilinear")):
        in_file = open_images(f"imagefolder:{tmp_path / 'images'}", geometry=wanted).splits["train"]
        found = held(images, np.arange(6) % 2, wanted).splits["train"].pixels
        assert found.shape == (wanted.crop, wanted.crop, 3)
        by_class = [0, 2, 4, 1, 3, 5]
        np.testing.assert_array_equal(found(0, 6)[by_class], in_file.pixels(0, 6))
        np.testing.assert_array_equal(found.only(np.array([3, 1]))(0, 2), found(0, 6)[[3, 1]])
        assert found(2, 2).shape == (0, *found.shape)


def test_one_record_is_taken_of_each_of_n_equal_stretches_and_of_all_classes() -> None:
    """Of a listing that repeats its classes in turn, every k-th record would be of one class."""
    for total in (1, 2, 7, 1000, 1_281_167):
        for n in {1, 2, 3, 10, total // 2, total - 1, total} & set(range(1, total + 1)):
            records, cuts = spread(n, total), np.arange(n + 1) * total // n
            assert len(records) == n
            assert ((cuts[:-1] <= records) & (records < cuts[1:])).all()
    for period in (2, 3, 10, 50):
        labels = np.arange(200_000) % period
        for n in (len(labels) // (period * times) for times in (1, 2, 4)):
            assert np.bincount(labels[spread(n, len(labels))], minlength=period).min() >= 0.5 * n / period


def test_a_broken_picture_outside_the_trial_is_not_opened(tmp_path: Path) -> None:
    train = in_folders(tmp_path).splits["train"]
    for i in set(range(N)) - set(spread(6, N).tolist()):
        (tmp_path / NAMES[i]).write_bytes(b"")
    assert values(train.spread(6)).tolist() == spread(6, N).tolist()
    with refuses("bad-record", parameter="on_error"):
        train.pixels(0, N)


def test_other_pictures_do_not_change_where_a_picture_goes(tmp_path: Path) -> None:
    def names_in_test(whole: ImageSet) -> set[str]:
        test = held_out(whole, 0.3).splits["test"]
        return {test.pixels.name(i) for i in range(test.n)}

    before = names_in_test(in_folders(tmp_path))
    new = {"a/000.png", "a/001.png", "b/200.png"}
    files(tmp_path / "train", *sorted(new))
    (tmp_path / "train" / "b" / "31.png").unlink()
    assert names_in_test(open_images(f"imagefolder:{tmp_path}", geometry=SQUARE)) - new == before - {"b/31.png"}


def test_the_part_has_the_fraction_asked_for_whatever_the_names() -> None:
    for form in ("{}", "cat/{:05d}.png", "IMG_{:04d}\udcff.JPG"):
        for fraction in (0.01, 0.1, 0.5, 0.85):
            out = split_files.held_out("x", {"train": 20_000}, fraction, "image", form.format)["test"]
            assert len(out) / 20_000 == pytest.approx(fraction, abs=5 * (fraction / 20_000) ** 0.5)
            # Neighbours go their own ways.
            assert (np.diff(out) == 1).mean() == pytest.approx(fraction, abs=0.1)


def test_a_set_with_a_test_split_and_one_too_small_are_refused(tmp_path: Path) -> None:
    with refuses("conflict", parameter="hold_out"):
        held_out(open_images("digits"), 0.1)
    with refuses("bad-value", parameter="hold_out"):
        held_out(in_folders(tmp_path), 1e-9)
