"""Names of classes as labels mean the same in every format that may have them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images import ImageSet, open_images
from tests.images.pictures import SQUARE, files, png, tar, values

NAMED = ["flu", "rare", "flu", "cold"]


def in_parquet(folder: Path, labels: list[str]) -> str:
    image = pa.array([{"bytes": png(i)} for i in range(len(labels))])
    pq.write_table(pa.table({"image": image, "label": labels}), folder / "train.parquet")
    return f"parquet:{folder}"


def in_a_table(folder: Path, labels: list[str]) -> str:
    names = [f"{i}.png" for i in range(len(labels))]
    lines = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,label", *reversed(lines)]))
    return files(folder, *names)


def in_archives(folder: Path, labels: list[str]) -> str:
    members = []
    for i, label in enumerate(labels):
        members += [(f"{i}.png", png(i)), (f"{i}.json", json.dumps({"width": 6, "label": label}).encode())]
    tar(folder / "train.tar", members)
    return f"webdataset:{folder}"


def opened(source: str, **options: Any) -> ImageSet:
    return open_images(source, geometry=SQUARE, **options)


@pytest.mark.parametrize("place", [in_parquet, in_a_table, in_archives])
def test_names_of_classes_are_labels(tmp_path: Path, place: Callable[[Path, list[str]], str]) -> None:
    found = opened(place(tmp_path, NAMED))
    train = found.splits["train"]
    assert (found.classes, found.origin, found.renumbered) == (("cold", "flu", "rare"), "inferred", False)
    np.testing.assert_array_equal(train.labels, [1, 2, 1, 0])
    np.testing.assert_array_equal(values(train), range(4))
    # The same classes, asserted in another order, are other numbers of the same records.
    asserted = opened(place(tmp_path, NAMED), classes=("flu", "cold", "never seen", "rare"))
    assert (asserted.origin, asserted.renumbered) == ("asserted", True)
    np.testing.assert_array_equal(asserted.splits["train"].labels, [0, 3, 0, 1])
    assert asserted.splits["train"].listing == train.listing
    with pytest.raises(UserError, match="'rare' is not among the 2 classes") as refused:
        opened(place(tmp_path, NAMED), classes=("flu", "cold"))
    assert GUARDED in refused.value.what
    assert opened(place(tmp_path, NAMED[::-1])).splits["train"].listing != train.listing
    # A name that is missing is no class.
    for labels, says in ((["flu", "", "cold"], "and others do not|no label"), (["", ""], "no label")):
        with pytest.raises(UserError, match=says) as refused:
            opened(place(tmp_path, labels))
        assert GUARDED in refused.value.what
