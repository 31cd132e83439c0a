"""Files of class vectors: what is in them, when they are refused, and how good they are said to be."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from dpfc_cli import backbones
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.extensions.starts import text
from dpfc_cli.extensions.starts.text import TextVectors
from dpfc_cli.extensions.starts.zero_shot import ZeroShot, zero_shot
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from tests.backbones.tiny import kept
from tests.support import feature_set, refuses
from tests.training.requests import ready
from tests.training.stopped import killed

CLASSES = ("red fox", "wolf", "otter", "deer")
MODEL: dict[str, Any] = {"source": "classifier", "model": "vit-ti16"}
ROWS = {"red fox": [0, 4], "wolf": [1], "otter": [3, 2]}
DIM = 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    monkeypatch.setitem(MODELS, "vit-ti16", replace(MODELS["vit-ti16"], width=DIM))


@pytest.fixture
def weights() -> str:
    """A checkpoint whose classifier has 6 rows: those of the classes lie apart, as do their records."""
    return str(kept(MODELS["vit-ti16"], Path.cwd(), {"head.weight": 3 + np.eye(6, DIM, dtype=np.float32)}))


@pytest.fixture
def rows() -> Path:
    Path("rows.json").write_text(json.dumps(ROWS))
    return Path("rows.json")


def records(seed: int, n: int = 120, m: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Records of m classes, near the rows of the classifier that they have. The last class is like no row."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((m, DIM))
    for j, found in enumerate([*ROWS.values(), [9]][:m]):
        centres[j, found] = 1
    y = np.arange(n) % m
    return (2 + centres[y] + 0.2 * rng.normal(size=(n, DIM))).astype(np.float32), y


def imported(name: str, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> FeatureSet:
    (x, y), (test_x, test_y) = records(seed, m=len(classes)), records(seed + 100, m=len(classes))
    np.savez(f"{name}.npz", train_x=x, train_y=y, test_x=test_x, test_y=test_y)
    return feature_set(f"{name}.npz", name, classes=classes)


@pytest.fixture
def features() -> FeatureSet:
    return imported("private")


def extracted(features: FeatureSet, weights: str, pooling: str = "cls") -> FeatureSet:
    """The same set, as if it had been extracted with these weights."""
    path = features.folder / MANIFEST
    said = json.loads(path.read_text())
    known = {"id": MODELS["vit-ti16"].file.id, "sha256": sha256_of(Path(weights))}
    said["backbone"] = {"name": "vit-ti16", "weights": known, "pooling": pooling}
    path.write_text(json.dumps(said))
    return FeatureSet(features.folder)


def read(path: Path) -> tuple[np.ndarray, list[str], dict[str, Any]]:
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        return file.get_tensor("vectors"), json.loads(metadata["classes"]), json.loads(metadata["origin"])


# What is in the file


def test_a_class_has_the_mean_of_its_rows_minus_the_mean_of_all_rows(
    features: FeatureSet, weights: str, rows: Path
) -> None:
    made = zero_shot(features, **MODEL, rows=rows)
    vectors, classes, origin = read(made.path)
    stored = 3 + np.eye(6, DIM)
    centred = stored - stored.mean(axis=0)
    assert np.allclose(vectors, [centred[[0, 4]].mean(axis=0), centred[1], centred[[2, 3]].mean(axis=0)], atol=1e-6)
    assert vectors.dtype == np.float32
    assert classes == ["red fox", "wolf", "otter"]
    assert made.without == ("deer",)
    assert made.path == Path("private-classifier.safetensors")
    assert origin == {
        "source": "classifier",
        "model": "vit-ti16",
        "pooling": "cls",
        "weights": {"id": MODELS["vit-ti16"].file.id, "sha256": sha256_of(Path(weights))},
        "classifier": 6,
        "file": {"name": "rows.json", "sha256": sha256_of(rows)},
        "rows": {"red fox": [0, 4], "wolf": [1], "otter": [2, 3], "deer": []},
        "without": ["deer"],
    }


def test_no_record_is_read(features: FeatureSet, weights: str, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stream", "arrays", "verify"):
        monkeypatch.delattr(FeatureSet, name)
    assert zero_shot(features, **MODEL, rows=rows).evaluation is None


def test_labels_and_wordnet_say_which_rows_a_class_has(features: FeatureSet, weights: str) -> None:
    from tests.extensions.starts import nouns

    Path("labels.txt").write_text("red_fox, Vulpes vulpes\nWolf\nstone\notter\nred fox\nhouse\n")
    made = zero_shot(features, **MODEL, labels="labels.txt")
    assert made.origin["rows"] == {"red fox": [4], "wolf": [1], "otter": [3], "deer": []}
    at = nouns.write(Path("nouns"))
    named = ("tabby", "siamese", "laika", "wax", "fur_seal", "guy")
    Path("ids.txt").write_text("".join(f"n{at[each]:08d}\n" for each in named))
    other = zero_shot(
        model="vit-ti16", source="classifier", labels="ids.txt", wordnet="nouns",
        classes=["cat", "dog", "seal", "deer"], out="nouns.safetensors",
    )  # fmt: skip
    assert other.origin["rows"] == {"cat": [0, 1, 5], "dog": [2], "seal": [3, 4], "deer": []}
    assert {name: sha256_of(Path("nouns", name)) for name in ("index.noun", "data.noun")} == other.origin["wordnet"]
    [warning] = other.warnings
    assert "cat (cat, true cat (2) / guy, cat (1)); seal (seal (1) / stamp, seal (1))" in warning


@pytest.mark.usefixtures("weights")
def test_somebody_must_say_what_the_rows_stand_for(features: FeatureSet) -> None:
    with refuses("missing", parameter="labels"):
        zero_shot(features, **MODEL)
    Path("labels.txt").write_text("wolf\notter\n")
    with refuses("conflict", parameter="labels"):
        zero_shot(features, **MODEL, labels="labels.txt")


def test_names_that_are_codes_can_be_said_in_words(weights: str, rows: Path) -> None:
    features = imported("coded", classes=("n01", "n02", "n03", "n04"))
    made = zero_shot(features, **MODEL, rows=rows, classes=CLASSES)
    assert made.known == ("n01", "n02", "n03")
    assert made.without == ("n04",)
    assert made.origin["rows"]["n01"] == [0, 4]
    assert made.origin["called"] == dict(zip(features.classes, CLASSES, strict=True))
    with refuses("conflict", parameter="classes"):
        zero_shot(features, **MODEL, rows=rows, classes=CLASSES[:3])


def test_vectors_of_text_are_those_of_the_tower_in_the_order_of_the_classes(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def tower(wanted: backbones.Wanted, names: list[str], prompts: tuple[str, ...]) -> TextVectors:
        asked[:] = wanted, tuple(names), prompts
        origin = {"model": wanted.name, "weights": {"id": "a"}, "pooling": "cls", "prompts": list(prompts)}
        vectors = np.eye(len(names), DIM, dtype=np.float32)
        return TextVectors(vectors=vectors, origin=origin, notes=("Names were cut.",))

    monkeypatch.setattr(text, "class_vectors", tower)
    Path("prompts.txt").write_text("a photo of a {}.\n\nthe {}\n")
    for given, used in ((None, text.PROMPTS), (Path("prompts.txt"), ("a photo of a {}.", "the {}")), (["{}"], ("{}",))):
        made = zero_shot(
            extracted(features, "private.npz"),
            source="text",
            prompts=given,
            out=f"{len(used)}.safetensors",
            progress=None,
        )
        wanted = backbones.Wanted(name="vit-ti16", pool="cls", expected=sha256_of(Path("private.npz")))
        assert asked == [wanted, CLASSES, used]
        vectors, classes, origin = read(made.path)
        assert (classes, origin["prompts"], origin["source"]) == (list(CLASSES), list(used), "text")
        assert np.array_equal(vectors, np.eye(4, DIM))
        assert made.warnings == ("Names were cut.",)
    numbers = zero_shot(source="text", model="clip-b16", classes=["0", "1"])
    assert "the names of the classes are numbers" in numbers.warnings[1]


# The file itself


def test_the_same_vectors_give_the_same_bytes(features: FeatureSet, weights: str, rows: Path) -> None:
    made = zero_shot(features, **MODEL, rows=rows)
    again = zero_shot(features, **MODEL, rows=rows)
    assert (made.made, again.made) == (True, False)
    rows.write_text(json.dumps({"wolf": [0], "otter": [1]}))
    with refuses("exists", parameter="out"):
        zero_shot(features, **MODEL, rows=rows)


def test_files_that_are_missing_are_named_before_weights_are_fetched(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(backbones, "classifier")
    Path("labels.txt").write_text("wolf\notter\n")
    found: dict[str, str]
    for found in (
        {"rows": "no.json"},
        {"labels": "no.txt"},
        {"wordnet": "nowhere", "labels": "labels.txt"},
    ):
        with refuses("missing") as refused:
            zero_shot(features, **{**MODEL, **found})
        assert refused.value.fields["parameter"] in found


# The backbone


def test_features_say_their_backbone_and_its_weights(features: FeatureSet, weights: str, rows: Path) -> None:
    stated = extracted(features, weights)
    assert zero_shot(stated, source="classifier", rows=rows).origin["model"] == "vit-ti16"
    with refuses("conflict", parameter="model"):
        zero_shot(stated, source="classifier", rows=rows, model="vit-s16")
    with refuses("conflict", parameter="pool"):
        zero_shot(extracted(features, weights, pooling="mean"), source="classifier", rows=rows)
    Path("private.npz").rename("other.safetensors")
    other = extracted(features, "other.safetensors")
    with refuses("conflict", parameter="weights"):
        zero_shot(other, source="classifier", rows=rows)
    assert [path.name for path in Path().glob("*-classifier*")] == ["private-classifier.safetensors"]


@pytest.mark.parametrize(
    ("parameters", "code", "named"),
    [
        ({"model": None}, "missing", "model"),
        ({"model": "resnet"}, "unknown-name", None),
        ({"model": "scattering"}, "unsupported", "model"),
        ({"source": "names"}, "unknown-name", "source"),
        ({"prompts": ["{}"]}, "conflict", "prompts"),
        ({"source": "text"}, "conflict", "rows"),
        ({"source": "text", "rows": None}, "unsupported", "model"),
        ({"wordnet": "nouns"}, "conflict", "wordnet"),
        ({"labels": "labels.txt"}, "conflict", "labels"),
        ({"features": None}, "missing", "features"),
        ({"features": None, "model": None}, "missing", "features"),
        ({"features": "private"}, "bad-value", "features"),
        ({"on": "private"}, "bad-value", "on"),
        ({"rows": "few.json"}, "conflict", "rows"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    features: FeatureSet, weights: str, rows: Path, parameters: dict[str, Any], code: str, named: str | None
) -> None:
    Path("few.json").write_text('{"wolf": [1]}')
    line: dict[str, Any] = {"features": features, **MODEL, "rows": rows, **parameters}
    with refuses(code, parameter=named):
        zero_shot(**line)
    assert not list(Path().glob("*-*.safetensors"))


def test_a_class_that_has_all_rows_is_like_no_other_and_has_no_vector(features: FeatureSet, weights: str) -> None:
    Path("rows.json").write_text(json.dumps(ROWS | {"deer": list(range(6))}))
    assert zero_shot(features, **MODEL, rows="rows.json").without == ("deer",)


def test_features_of_another_width_are_refused(weights: str, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = records(0)
    np.savez("wide.npz", train_x=np.repeat(x, 2, axis=1), train_y=y)
    wide = feature_set("wide.npz", "wide", classes=CLASSES)
    with refuses("conflict", match="32 .* 64", parameter="model"):
        zero_shot(wide, **MODEL, rows=rows)
    joint = TextVectors(vectors=np.ones((4, DIM)), origin={"weights": {"id": "a"}}, notes=())
    monkeypatch.setattr(text, "class_vectors", lambda *_, **__: joint)
    with refuses("conflict", match="CLIP", parameter="model"):
        zero_shot(wide, source="text", model="clip-b16")


# How good they are


def test_the_score_is_that_of_centred_records_and_vectors_of_one_length() -> None:
    """On records in which all of it matters: without one of the steps another number of them is right."""
    rng = np.random.default_rng(0)
    tensors = {"head.weight": (rng.normal(size=(6, DIM)) * np.arange(1, 7)[:, None]).astype(np.float32)}
    Path("rows.json").write_text(json.dumps({"red fox": [0], "wolf": [5], "otter": [2]}))
    x = (rng.normal(size=(400, DIM)) * rng.uniform(0.5, 5, (400, 1)) + rng.normal(size=DIM)).astype(np.float32)
    y = np.arange(400) % 4
    np.savez("hard.npz", train_x=-x, train_y=y, test_x=x, test_y=y)
    features = feature_set("hard.npz", "hard", classes=CLASSES)
    kept(MODELS["vit-ti16"], Path.cwd(), tensors)
    made = zero_shot(features, **MODEL, rows="rows.json", on=features)

    def right(unit_records: bool = True, centred: bool = True, unit: bool = True, apart: bool = True) -> list[float]:
        z = x / np.linalg.norm(x, axis=1, keepdims=True) if unit_records else x
        z = z - z.mean(axis=0) if centred else z
        v = made.vectors / np.linalg.norm(made.vectors, axis=1, keepdims=True) if unit else made.vectors
        v = v - v.mean(axis=0) if apart else v
        best = np.append(z @ v.T, np.zeros((len(z), 1)), axis=1).argmax(axis=1)
        return [float(np.mean(best[y == j] == j)) for j in range(4)]

    found = made.evaluation
    assert found is not None
    assert [each.top1 for each in found.per_class] == right()
    assert (found.n, found.split, found.chance) == (400, "test", (0.25, 1.0))
    others = ("unit_records", "centred", "unit", "apart")
    assert all(right(**{name: False}) != right() for name in others)


def test_a_set_with_other_classes_is_scored_by_the_names_that_it_shares(
    features: FeatureSet, weights: str, rows: Path
) -> None:
    x, y = records(1, m=3)
    np.savez("public.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    public = feature_set("public.npz", "public", classes=("Otter", "whale", "WOLF"))
    swapped = {"OTTER": [0, 4], "whale": [], "Wolf": [2, 3]}
    rows.write_text(json.dumps(swapped | {"red fox": [1]}))
    made = zero_shot(features, **MODEL, rows=rows, on=public)
    assert made.evaluation is not None
    assert [each.top1 for each in made.evaluation.per_class] == [1.0, pytest.approx(0, abs=0.3), 1.0]
    other = imported("strange", classes=("a", "b", "c", "d"))
    with refuses("conflict", match="'features/strange'"):
        zero_shot(features, **MODEL, rows=rows, on=other, out="b.safetensors")
    assert not Path("b.safetensors").exists()


Score = Callable[..., ZeroShot]


@pytest.fixture
def score(features: FeatureSet, weights: str, rows: Path) -> Score:
    def scored(on: FeatureSet, split: str = "test", **others: Any) -> ZeroShot:
        line: dict[str, Any] = {"features": features, **MODEL, "rows": rows, **others}
        return zero_shot(**line, on=on, split=split)

    return scored


def test_the_training_split_of_private_records_is_not_scored(features: FeatureSet, score: Score) -> None:
    """A start that is chosen by such figures depends on the records, and no ledger knows."""
    for own in (
        features,
        FeatureSet(features.folder.absolute()),
        feature_set("private.npz", "copy", classes=CLASSES),
    ):
        with refuses("private-records", parameter="on"):
            score(own, "train")
    with np.load("private.npz") as of:
        np.savez("swapped.npz", train_x=of["test_x"], train_y=of["test_y"], test_x=of["train_x"], test_y=of["train_y"])
    swapped = feature_set("swapped.npz", "swapped", classes=CLASSES)
    with refuses("private-records", parameter="on"):
        score(swapped)
    assert score(swapped, "train").evaluation is not None
    public = imported("public", seed=1)
    assert score(public, "train").warnings == ()
    killed(ready(public))
    with refuses("private-records", parameter="on"):
        score(public, "train")
    [warning] = score(public).warnings
    assert "does not cover these figures of its test split" in warning


def test_other_features_are_not_scored(features: FeatureSet, weights: str, score: Score) -> None:
    other = extracted(imported("other", seed=1), weights)
    with refuses("conflict", match="in name, ", parameter="on"):
        score(other)
    line: dict[str, Any] = {"features": None, "classes": CLASSES}
    assert score(other, **line).evaluation is not None
    with refuses("conflict", match="in pooling", parameter="on"):
        score(extracted(other, weights, pooling="mean"), **line)
    with refuses("conflict", match="in weights", parameter="on"):
        score(extracted(other, "other.npz"), **line)
    x, y = records(0)
    np.savez("wide.npz", train_x=np.repeat(x, 2, axis=1), train_y=y, test_x=np.repeat(x, 2, axis=1), test_y=y)
    with refuses("conflict", match="in dimensions", parameter="on"):
        score(feature_set("wide.npz", "wide", classes=CLASSES), **line)
    assert score(features, **line).evaluation is not None
    with refuses("missing", match="'validation'"):
        score(features, "validation")


def test_a_damaged_set_is_not_scored(features: FeatureSet, score: Score) -> None:
    [shard] = features.folder.glob("test-*.h5")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with refuses("damaged"):
        score(features)
