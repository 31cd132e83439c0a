"""`import dpfc_cli as dpfc`: what the library offers to programs."""

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli import points
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import PUBLISHED
from dpfc_cli.options import MethodName, MethodOptions, declared
from tests.support import blobs, feature_set, refuses


def test_every_public_name_is_where_it_is_said_to_be_and_documented() -> None:
    assert {"Head", "__version__", "train"} < set(dir(dpfc))
    for name in set(dir(dpfc)) - {"__version__"}:
        found = getattr(dpfc, name)
        assert found.__qualname__ == name
        assert inspect.getdoc(found)
    assert dir(dpfc) == dpfc.__all__
    with pytest.raises(AttributeError, match="no attribute 'training_'"):
        _ = dpfc.training_


def test_public_functions_state_types_arguments_and_errors() -> None:
    core = ("extract", "open_features", "train", "evaluate", "verify")
    for name in (*core, *filter(str.islower, points.added("dpfc.names"))):
        function = getattr(dpfc, name)
        doc = inspect.getdoc(function) or ""
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
        assert all(f"{parameter}:" in doc for parameter in signature.parameters), name
        for part in ("Args:", "Returns:", "Raises:"):
            assert part in doc, name
    assert (Path(dpfc.__file__).parent / "py.typed").exists()


def test_a_wrong_option_is_an_error_for_type_checkers_too(tmp_path: Path) -> None:
    """mypy checks this file, and refuses a comment that hides no error."""
    x, y = blobs(30, 4, 3)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y)
    features = feature_set(tmp_path / "a.npz", tmp_path / "set", classes=3)
    with pytest.raises(TypeError, match=r"'epsilonn'.*'epsilon'"):
        dpfc.train(features, epsilonn=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'learning_rate'"):
        dpfc.train(features, epsilon=1, lr=3)  # type: ignore[call-arg]
    with refuses("unknown-name", parameter="method", name="dp-lss"):
        dpfc.train(features, epsilon=1, method="dp-lss")  # type: ignore[arg-type]
    with refuses("bad-value", parameter="steps"):
        dpfc.train(features, epsilon=1, steps=0)
    with refuses("unknown-name", parameter="on_error", name="drop"):
        dpfc.extract("digits", on_error="drop")  # type: ignore[arg-type]


def test_the_options_of_methods_are_those_that_methods_have() -> None:
    assert {"auto", *METHODS} == set(get_args(MethodName))
    known = declared(MethodOptions)
    assert {name for method in METHODS.values() for name in (*method.declared, PUBLISHED)} == set(known)
    for method in METHODS.values():
        for each in fields(method.options):
            # What a help says of a default is the default.
            if isinstance(each.default, float) and each.name in known:
                assert f"{each.default:g}" in known[each.name].help, (method.name, each.name)


def test_a_system_without_the_locks_that_dpfc_needs_is_named_at_once() -> None:
    program = "import sys; sys.modules['fcntl'] = None; import dpfc_cli"
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("ImportError: dpfc runs on Linux and macOS. On Windows, install it")


def test_importing_the_library_loads_nothing_that_computes() -> None:
    program = "import sys, dpfc_cli; dpfc_cli.UserError; assert not {'jax', 'numpy', 'h5py'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_whole_path_from_pictures_to_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = dpfc.extract("digits", pool="mean", out="digits")
    assert made.features is not None
    assert dpfc.open_features("digits").name == made.features.name == "digits"
    trained = dpfc.train(made.features, epsilon=8.0, method="dp-ls")
    assert trained.path.parent == Path("heads")
    found = dpfc.evaluate(trained.head, made.features)
    low, high = found.interval
    assert 0.5 < low < found.top1 < high < 1
    released = dpfc.evaluate_privately(trained.head, made.features, epsilon=4.0)
    assert released.top1 is not None
    assert released.interval[0] < released.top1 < released.interval[1]
    x, y = made.features.arrays("test")
    head = dpfc.Head.load(trained.path)
    names = head.predict(x)
    right = np.mean([name == head.classes[label] for name, label in zip(names, y.ravel(), strict=True)])
    assert right == pytest.approx(found.top1)
    assert head.statement() == trained.head.statement()
    compared, checked = dpfc.compare([head, head], made.features), dpfc.verify(trained.path)
    for value in (made.features, trained, head, found, trained.spent, released, compared, checked):
        assert len(repr(value)) < 500
        assert value._repr_html_().count("<tr>") == len(value.told())
    assert "epsilon = 8" in repr(trained)
    with refuses("bad-value", parameter="features"):
        dpfc.set_cap("features", 5.0)  # type: ignore[arg-type]


def test_noise_and_epsilon_are_converted_as_the_golden_figures_say() -> None:
    assert dpfc.epsilon_of(noise_multiplier=10, releases=11, delta=1e-5) == pytest.approx(1.264, abs=5e-4)
    back = dpfc.noise_multiplier_of(epsilon=1.0, releases=11, delta=1e-5)
    assert dpfc.epsilon_of(noise_multiplier=back, releases=11, delta=1e-5) == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(dpfc.UserError, match="Delta"):
        dpfc.epsilon_of(noise_multiplier=10, releases=11, delta=2.0)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> dpfc.Head:
    folder = tmp_path_factory.mktemp("head")
    x, y = blobs(300, 4, 3)
    np.savez(folder / "a.npz", train_x=x, train_y=y)
    features = feature_set(folder / "a.npz", folder / "set", classes=["a", "b", "c"])
    return dpfc.train(features, epsilon=8.0, method="dp-ls", out=folder / "a.safetensors").head


@pytest.mark.parametrize(
    ("x", "code", "value"),
    [
        (np.zeros((2, 5)), "bad-value", "2 × 5"),
        (np.zeros(4), "bad-value", "not 4"),
        (np.zeros((2, 4, 1)), "bad-value", "2 × 4 × 1"),
        (np.array([["a"] * 4]), "bad-value", "<U1"),
        (np.array([[None] * 4]), "bad-value", "object"),
        (np.array([[True] * 4]), "bad-value", "bool"),
        (np.array([[0.0] * 4, [0, np.nan, 0, 0]]), "bad-record", "1 of 2 .* row 1"),
        (np.array([[0, np.inf, 0, 0]]), "bad-record", "1 of 1"),
        (np.array([[0, 1e300, 0, 0]]), "bad-record", "1 of 1"),
    ],
)
def test_a_head_says_what_is_wrong_with_features(head: dpfc.Head, x: np.ndarray, code: str, value: str) -> None:
    for use in (head.scores, head.predict):
        with refuses(code, match=value):
            use(x)


def test_a_head_takes_any_kind_of_number_and_no_rows_at_all(head: dpfc.Head) -> None:
    x = np.arange(8).reshape(2, 4)
    scores = head.scores(x.astype(np.float32))
    for dtype in (np.float16, np.float64, np.int64, np.uint8):
        assert np.array_equal(head.scores(x.astype(dtype)), scores)
    assert np.array_equal(head.scores(x.tolist()), scores)  # type: ignore[call-overload]
    assert head.scores(np.zeros((0, 4))).shape == (0, 3)
    assert head.predict(np.zeros((0, 4))) == []


def test_what_is_no_head_and_no_set_is_called_so(head: dpfc.Head, tmp_path: Path) -> None:
    with refuses("bad-value", parameter="head"):
        dpfc.compare(["heads/a.safetensors"], "digits")  # type: ignore[list-item, arg-type]
    with refuses("bad-value", parameter="features"):
        dpfc.evaluate(head, "digits")  # type: ignore[arg-type]
    with refuses("bad-value", parameter="source"):
        dpfc.extract(tmp_path)  # type: ignore[arg-type]
    with refuses("bad-value", match="train_x"):
        dpfc.evaluate(head, np.zeros((9, 4)))  # type: ignore[arg-type]
