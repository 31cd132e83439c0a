"""What the page on importing shows works with the real libraries."""

import re
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.features.reader import FeatureSet

PAGE = (Path(__file__).parents[3] / "docs/extensions/importing.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_tensors_of_pytorch_become_a_set_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    x = torch.arange(240.0).reshape(60, 4)
    names = {"x": x, "y": torch.arange(60) % 2, "patient": [f"p{i // 2}" for i in range(60)]}
    exec(BLOCKS[0], names)
    found: FeatureSet = names["made"].features
    assert (sum(found.splits.values()), found.split("train").groups is not None) == (60, True)


def test_a_saved_data_set_of_hugging_face_becomes_a_set_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
    monkeypatch.chdir(tmp_path)
    kinds = {
        "embedding": datasets.Sequence(datasets.Value("float32")),
        "label": datasets.ClassLabel(names=["elk", "cat"]),
        "patient": datasets.Value("string"),
    }
    x, y = np.arange(240, dtype=np.float32).reshape(60, 4), np.arange(60) % 2
    persons = [f"p{i // 2}" for i in range(60)]
    whole = datasets.Dataset.from_dict({"embedding": x, "label": y, "patient": persons}, datasets.Features(kinds))
    parts = whole.train_test_split(0.2, shuffle=False)
    datasets.DatasetDict(train=parts["train"], validation=parts["test"]).save_to_disk("embedded")
    names: dict[str, FeatureSet] = {}
    exec(BLOCKS[1], names)
    found = names["features"]
    assert (found.classes, found.splits) == (("elk", "cat"), {"train": 48, "test": 12})
    assert [found.split(split).groups for split in ("train", "test")] == [24, 6]
    np.testing.assert_array_equal(np.sort(found.arrays("test")[0], axis=0), x[48:])
    np.testing.assert_array_equal(np.sort(found.arrays("train")[0], axis=0), x[:48])
