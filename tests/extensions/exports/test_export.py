"""An export computes what the head computes, and says what the head claims."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors import safe_open
from scipy.special import expit, softmax
from sklearn.base import clone

import dpfc_cli as dpfc
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.exports import graph
from dpfc_cli.extensions.exports.export import export
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import Centre, Chain, Clip, Linear
from dpfc_cli.records.card import card_of
from tests.hostile import calibrated, card_as_written
from tests.support import package, refuses, replace

D, N = 24, 1_000
NAMES = ["b", "a", "", " ", "é\u202e", "\ud800", "a\0", "<|'\"\\", "x" * 500, "名前"]
"""Names of classes that a card may have. They are not in their sorted order."""
SUFFIX = {"onnx": ".onnx", "torch": ".safetensors", "sklearn": ".npz", "npz": ".npz"}


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


CHAINS: dict[str, Chain] = {
    "no step": (),
    "a clip": (Clip(3.0),),
    "scaled to norm 1": (Clip(1e-30),),
    "centred": (Clip(1e-30), Centre(random(D) / D), Clip(0.9)),
    "whitened": (Clip(4.0), Linear(random(D, D, seed=1) / D), Centre(random(D, seed=2)), Clip(0.1)),
}


def head_of(chain: Chain = CHAINS["centred"], k: int = 1, m: int = 10, claim: str = "private") -> Head:
    privacy = {"private": Privacy(epsilon=1.0), "research": Privacy(epsilon=1.0, seed=3), "non-private": Privacy()}
    card = card_as_written(calibrated("dp-whitened" if k == 1 else "dp-fc", privacy[claim]))
    facts = {**card["facts"], "m": m, "d": D, "k": k}
    return Head(
        chain=chain,
        weight=random(D, m, seed=3),
        bias=random(m, seed=4),
        card=card_of({**card, "facts": facts, "classes": NAMES[:m]}),
    )


def records() -> np.ndarray:
    """1,000 feature vectors. Some are zero, very short or very long."""
    x = random(N, D).astype(np.float32)
    x[0], x[1], x[2] = 0, x[1] * 1e-30, x[2] * 1e25
    return x


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal to 1e-5, or to 1e-5 of the number if it is larger than 1."""
    return found.shape == expected.shape and bool(
        (np.abs(found - expected) <= 1e-5 * np.maximum(1, abs(expected))).all()
    )


def probabilities(head: Head, x: np.ndarray) -> np.ndarray:
    scores = head.scores(x)
    found = np.asarray(softmax(scores, axis=1) if head.card.facts.k == 1 else expit(scores))
    assert near(head.probabilities(x), found)
    return found


def written(head: Head, to: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return export(head, to, folder / f"head{SUFFIX[to]}").path


def module(path: Path) -> Any:
    """A module from its file, as one who has no dpfc imports it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(params=[*((name, k) for name in CHAINS for k in (1, 2)), ("centred", 3)], ids=str)
def head(request: pytest.FixtureRequest) -> Head:
    """Of records with at most k labels."""
    name, k = request.param
    return head_of(CHAINS[name], k)


# What they compute


def test_onnxruntime_gives_the_scores_and_the_probabilities(head: Head, tmp_path: Path) -> None:
    # As where JAX has not been asked for 64 bits, such as by a training.
    with jax.enable_x64(False):
        path = written(head, "onnx", tmp_path)
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path)
    scores, likely = session.run(["scores", "probabilities"], {"features": records()})
    assert near(scores, head.scores(records()))
    assert near(likely, probabilities(head, records()))
    names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    assert [names[best] for best in scores.argmax(axis=1)] == head.predict(records())


def test_scikit_learn_gives_the_scores_in_the_sorted_order_of_the_classes(head: Head, tmp_path: Path) -> None:
    written(head, "sklearn", tmp_path)
    classifier = module(tmp_path / "dpfc_head_sklearn.py").HeadClassifier.load(tmp_path / "head.npz")
    order = [head.classes.index(name) for name in classifier.classes_]
    assert list(classifier.classes_) == sorted(NAMES)
    for made in (classifier, dpfc.to_sklearn(head), clone(classifier).fit(records())):
        assert near(made.decision_function(records()), head.scores(records())[:, order])
        assert near(made.predict_proba(records()), probabilities(head, records())[:, order])
        assert list(made.predict(records())) == head.predict(records())
    assert classifier.score(records(), np.array(head.predict(records()), dtype=object)) == 1.0
    with pytest.raises(ValueError, match="24"):
        classifier.predict(records()[:, 1:])
    with pytest.raises(ValueError, match="NaN"):
        classifier.predict(np.full((1, D), np.nan))


def test_of_two_classes_scikit_learn_gets_one_score_for_each_record_with_one_label(tmp_path: Path) -> None:
    for k in (1, 2):
        head = head_of(m=2, k=k)
        written(head, "sklearn", tmp_path / str(k))
        read = module(tmp_path / str(k) / "dpfc_head_sklearn.py").HeadClassifier.load(tmp_path / str(k) / "head.npz")
        # The sorted order of the names, "b" and "a", is not theirs.
        scores = head.scores(records())[:, ::-1]
        for made in (read, dpfc.to_sklearn(head)):
            found = made.decision_function(records())
            assert near(found, scores[:, 1] - scores[:, 0] if k == 1 else scores)
            assert near(made.predict_proba(records()), probabilities(head, records())[:, ::-1])


def test_scikit_learn_gets_numbers_where_classes_were_counted() -> None:
    head = head_of(m=10)
    head = replace(head, card=replace(head.card, classes=tuple(map(str, range(10)))))
    made: Any = dpfc.to_sklearn(head)
    labels = np.array(head.predict(records())).astype(int)
    assert (made.classes_.tolist(), made.score(records(), labels)) == (list(range(10)), 1.0)
    assert near(made.decision_function(records()), head.scores(records()))


def test_torchs_state_dict_gives_the_scores_by_the_formula_in_its_module(head: Head, tmp_path: Path) -> None:
    path = written(head, "torch", tmp_path)
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        names = json.loads(file.metadata()["card"])["classes"]
    assert {each.dtype for each in tensors.values()} == {np.dtype(np.float64)}
    z = records().astype(np.float64)
    for name in sorted(each for each in tensors if each.startswith("step")):
        value = tensors[name]
        if name.endswith("clip"):
            z = z / value
            step = np.maximum(np.abs(z).max(axis=1, keepdims=True), 1e-290) / 2**18
            z = z / np.maximum(step * np.sqrt((np.rint(z / step) ** 2).sum(axis=1, keepdims=True)), 1)
        else:
            z = z - value if name.endswith("centre") else z @ value
    scores = z @ tensors["weight"].T + tensors["bias"]
    assert near(scores, head.scores(records()))
    assert [names[best] for best in scores.argmax(axis=1)] == head.predict(records())
    assert [step["step"] for step in json.loads(safe_metadata(path)["chain"])] == [
        name.partition("_")[2] for name in sorted(tensors) if name.startswith("step")
    ]


def safe_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata())


def test_the_archive_has_the_head_and_its_card_and_no_pickle(head: Head, tmp_path: Path) -> None:
    with np.load(written(head, "npz", tmp_path), allow_pickle=False) as file:
        assert np.array_equal(file["weight"], head.weight)
        assert np.array_equal(file["bias"], head.bias)
        assert file["card"].item() == head.card.json
        assert [step["step"] for step in json.loads(file["chain"].item())] == [
            {Clip: "clip", Centre: "centre", Linear: "linear"}[type(step)] for step in head.chain
        ]


@pytest.mark.parametrize(
    ("to", "needed"), [("sklearn", {"json", "numpy", "sklearn"}), ("torch", {"json", "torch", "safetensors"})]
)
def test_the_module_beside_an_export_needs_no_dpfc(to: str, needed: set[str], tmp_path: Path) -> None:
    written(head_of(), to, tmp_path)
    tree = ast.parse((tmp_path / f"dpfc_head_{to}.py").read_text("utf-8"))
    named = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    named += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in named} == needed


def test_weights_of_more_than_a_file_can_hold_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LARGEST", 100)
    # The bytes of 23 numbers end where no other array may begin.
    head = replace(head_of((Centre(random(23)),)), weight=random(23, 10))
    made = export(head, "onnx", tmp_path / "large.onnx")
    assert [path.name for path in made.files] == ["large.onnx.data", "large.onnx"]
    onnx.checker.check_model(made.path, full_check=True)
    scores, _ = onnxruntime.InferenceSession(made.path).run(None, {"features": records()[:, :23]})
    assert near(scores, head.scores(records()[:, :23]))


def test_the_same_head_gives_the_same_bytes(tmp_path: Path) -> None:
    for to in SUFFIX:
        one, other = (written(head_of(), to, tmp_path / to / each) for each in ("1", "2"))
        assert one.read_bytes() == other.read_bytes()


# What they say


def notes_in(path: Path, to: str) -> dict[str, str]:
    """The texts in a file, read without dpfc."""
    if to == "onnx":
        return {each.key: each.value for each in onnx.load(path).metadata_props}
    if to == "torch":
        return safe_metadata(path)
    with np.load(path) as file:
        return {name: file[name].item() for name in file.files if file[name].dtype.kind == "U"}


@pytest.mark.parametrize("to", list(SUFFIX))
@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (
            "private",
            "differentially private, epsilon = 1 at delta = 1e-05; protects: one record of 100, zero-out adjacency",
        ),
        ("research", "no guarantee: the noise came from seed 3"),
        ("non-private", "no guarantee: no noise was added"),
    ],
)
def test_each_export_has_the_card_and_says_what_is_claimed(to: str, claim: str, said: str, tmp_path: Path) -> None:
    head = head_of(claim=claim)
    made = export(head, to, tmp_path / f"head{SUFFIX[to]}")
    notes = notes_in(made.path, to)
    assert notes["card"] == head.card.json
    assert notes["claim"].startswith(f"this head: {said}")
    assert "not calibrated" in notes["probabilities"]
    assert notes.items() >= made.notes.items()


def test_an_onnx_file_says_what_goes_in_and_what_comes_out(tmp_path: Path) -> None:
    path = written(head_of(), "onnx", tmp_path)
    model, notes = onnx.load(path), notes_in(path, "onnx")
    assert notes["input"].startswith("features: float32, n × 24")
    assert notes["outputs"] == "scores: float32, n × 10; probabilities: float32, n × 10"
    assert [notes["opset"]] == [str(each.version) for each in model.opset_import]
    assert json.loads(notes["classes"]) == NAMES


def test_the_digest_is_that_of_the_heads_file(tmp_path: Path) -> None:
    import hashlib

    head = sound(tmp_path)
    digest = hashlib.sha256((tmp_path / "a.safetensors").read_bytes()).hexdigest()
    assert export(head, "npz", tmp_path / "a.npz").notes["head_sha256"] == digest


# What is refused


def sound(folder: Path, **changes: object) -> Head:
    """A head that fits its card, read from a file."""
    card = card_of({**card_as_written(calibrated("dp-whitened", Privacy(epsilon=1.0))), **changes})
    made = Head(chain=(Clip(0.5),), weight=random(2, 3), bias=random(3), card=card)
    (folder / "a.safetensors").write_bytes(encoded(made))
    return Head.load(folder / "a.safetensors")


@pytest.mark.parametrize(
    ("to", "out", "options", "code", "of"),
    [
        ("pickle", "a.pkl", {}, "unknown-name", "to"),
        ("onnx", "a.npz", {}, "bad-value", "out"),
        ("torch", "a.pt", {}, "bad-value", "out"),
        ("onnx", "a\x1b.onnx", {}, "bad-value", "out"),
        ("onnx", "there.onnx", {}, "exists", "out"),
        ("torch", "heads/a.safetensors", {}, "conflict", "out"),
        ("npz", "a.npz", {"with_backbone": True}, "conflict", "with_backbone"),
        ("onnx", "a.onnx", {"with_backbone": True}, "unsupported", "with_backbone"),
        ("onnx", "file/a.onnx", {}, "missing", "out"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    to: str, out: str, options: dict[str, Any], code: str, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("heads").mkdir()
    for name in ("there.onnx", "file"):
        Path(name).write_bytes(b"kept")
    before = sorted(Path().rglob("*"))
    with refuses(code, parameter=of):
        export(head_of(), to, out, **options)
    assert sorted(Path().rglob("*")) == before
    assert Path("there.onnx").read_bytes() == b"kept"


def test_an_export_is_shown_in_a_notebook_and_what_is_no_head_is_refused(tmp_path: Path) -> None:
    written = export(head_of(), "npz", tmp_path / "a.npz")
    assert len(repr(written)) < 500
    assert written._repr_html_().count("<tr>") == len(written.told())
    with refuses("bad-value", parameter="head"):
        export(object(), "npz", tmp_path / "b.npz")  # type: ignore[arg-type]


def test_a_package_that_is_missing_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError) as refused:
        export(head_of(), "onnx", tmp_path / "a.onnx")
    assert refused.value.fields == {"package": "onnx", "extra": "export"}
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError) as refused:
        dpfc.to_sklearn(head_of())
    assert refused.value.fields == {"package": "sklearn", "extra": "sklearn"}


def test_a_module_that_was_changed_is_not_overwritten(tmp_path: Path) -> None:
    export(head_of(), "sklearn", tmp_path / "a.npz")
    export(head_of(), "sklearn", tmp_path / "b.npz")
    (tmp_path / "dpfc_head_sklearn.py").write_text("# mine")
    with refuses("exists", parameter="out"):
        export(head_of(), "sklearn", tmp_path / "c.npz")
    assert (tmp_path / "dpfc_head_sklearn.py").read_text() == "# mine"
    assert not (tmp_path / "c.npz").exists()


OTHER = """
import json

from dpfc_cli.extensions.exports.request import Format


def lines(wanted, notes):
    notes["rows"] = str(len(wanted.head.weight))
    return {"": [json.dumps(notes["claim"]).encode(), b"\\n"]}


LINES = Format(ending=".txt", files=lines)
"""


def test_a_package_of_others_adds_a_format(tmp_path: Path) -> None:
    with package(tmp_path, "lines_of_heads", OTHER, "[dpfc.exports]\nLines = lines_of_heads:LINES\n"):
        made = export(head_of(), "lines", tmp_path / "a.txt")
        assert json.loads(made.path.read_text()) == made.notes["claim"]
        assert (made.notes["rows"], made.notes["format"]) == ("24", "dpfc-export-lines-1")
        with refuses("conflict", parameter="with_backbone"):
            export(head_of(), "lines", tmp_path / "b.txt", with_backbone=True)
    with refuses("unknown-name", parameter="to"):
        export(head_of(), "lines", tmp_path / "b.txt")
