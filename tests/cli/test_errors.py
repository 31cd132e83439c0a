"""What the user can mend: one message with a remedy, exit code 2, nothing written, nothing charged."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import Note
from tests.cli.conftest import Dpfc, charges

TRAIN = ["train", "--epsilon", "1"]


def test_what_the_system_refuses_is_no_defect(dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a disk that fails where no room has words for it."""

    def refused(*_: object) -> None:
        error = OSError(errno.EIO, "planted", "features/file")
        error.add_note(Note("The training was charged."))
        raise error

    monkeypatch.setattr("dpfc_cli.cli.budget._converted", refused)
    result = dpfc("budget", "--sigma", "10")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"Error: The system does not let dpfc use 'features/file': {os.strerror(errno.EIO)}.",
        "Look at the disk and the rights.",
        "The training was charged.",
    ]


def snapshot() -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path().rglob("*")) if p.is_file()}


MISTAKES: list[tuple[list[str], str]] = [
    (["train", "--epsilon", "1", "--method", "dp-sl"], "Did you mean 'dp-ls'?"),
    (["extract", "--dataset", "digits", "--model", "resnet"], "Unknown model 'resnet'"),
    (["extract", "--dataset", "digits", "--pool", "max"], "Unknown pooling 'max'"),
    (["extract", "--dataset", "cifar11"], "Unknown data set 'cifar11'"),
    (["extract", "--dataset", "digits", "--dtype", "int8"], "Unknown --dtype"),
    (["extract", "--dataset", "cifar10", "--data-dir", "nowhere"], "nowhere"),
    (["extract", "--dataset", "imagefolder:nowhere"], "nowhere"),
    (["train", "--epsilon", "0"], "psilon must lie between 0.0001 and 100"),
    (["train", "--epsilon", "1000"], "psilon must lie between 0.0001 and 100"),
    (["train", "--epsilon", "nan"], "--epsilon must be a number, not nan"),
    (["train", "--epsilon", "1", "--delta", "0"], "elta must lie between 1e-30 and 1"),
    (["train", "--epsilon", "1", "--delta", "1.5"], "elta must lie between 1e-30 and 1"),
    (["train", "--sigma", "-3"], "multiplier must be a positive number"),
    (["train", "--sigma", "1e-9"], "psilon must lie between 0.0001 and 100"),
    (["train"], "State the privacy once"),
    (["train", "--epsilon", "1", "--non-private"], "State the privacy once"),
    (["train", "--epsilon", "1", "--sigma", "2"], "State the privacy once"),
    ([*TRAIN, "--adjacency", "add-remove"], "Unknown --adjacency"),
    ([*TRAIN, "--negative-weight", "1"], "--negative-weight is no option of dp-whitened"),
    ([*TRAIN, "--learning-rate", "0"], "--learning-rate must be a number between"),
    ([*TRAIN, "--damping", "nan"], "--damping must be a number between"),
    ([*TRAIN, "--features", "nowhere"], "There is no feature set 'nowhere'"),
    ([*TRAIN, "--out", "heads/a.nonprivate.safetensors"], "must end in .safetensors"),
    ([*TRAIN, "--out", "heads/a.txt"], "must end in .safetensors"),
    (["train", "--non-private", "--out", "heads/a.safetensors"], "must end in .nonprivate.safetensors"),
    ([*TRAIN, "--out", "arrays/train_x.npy/a.safetensors"], "cannot be written"),
    ([*TRAIN, "--memory", "1MB"], "(3 classes, 8 dimensions); the limit is 1 MB"),
    ([*TRAIN, "--memory", "plenty"], "is not a size"),
    ([*TRAIN, "--memory", "nan"], "is not a size"),
    ([*TRAIN, "--memory", ""], "is not a size"),
    ([*TRAIN, "--budget-split", "0.5,0.4"], "not 3 positive fractions"),
    ([*TRAIN, "--budget-split", "1"], "not 3 positive fractions"),
    ([*TRAIN, "--budget-split", "half"], "not a list of numbers"),
    ([*TRAIN, "--method", "dp-fc", "--loss", "hinge"], "Unknown --loss 'hinge'"),
    ([*TRAIN, "--method", "dp-sgd", "--sampling-rate", "2"], "--sampling-rate must be a number between"),
    ([*TRAIN, "--sampling-rate", "0.1"], "--sampling-rate is no option of dp-whitened"),
    ([*TRAIN, "--learning-rate", "1e307"], "--learning-rate must be a number between"),
    ([*TRAIN, "--out", "heads/" + "x" * 240 + ".safetensors"], "cannot be written"),
    ([*TRAIN, "--seed", "1", "--out", "heads/a.safetensors"], "must end in .research.safetensors"),
    (["train", "--epsilon", "8", "--delta", "1e-100"], "elta must lie between"),
    (["train", "--epsilon", "1e-13", "--delta", "1e-15"], "psilon must lie between"),
    ([*TRAIN, "--public-features", "nowhere"], "There is no feature set 'nowhere'"),
    ([*TRAIN, "--public-features", "blobs"], "holds the private records themselves"),
    ([*TRAIN, "--public-features", "blobs", "--method", "dp-fc"], "--public-features is no option of dp-fc"),
    (["statement", "nowhere.safetensors"], "There is no head"),
    (["statement", "arrays/train_x.npy"], "cannot be read as a head"),
    (["train", "--non-private", "--public-features", "blobs"], "no effect with --non-private"),
    ([*TRAIN, "--tune-on", "nowhere"], "There is no feature set 'nowhere'"),
    ([*TRAIN, "--tune-on", "blobs"], "holds the private records themselves"),
    (["train", "--non-private", "--tune-on", "blobs"], "--tune-on has no effect with --non-private"),
    (["train", "--non-private", "--damping", "5"], "Without noise --damping has no effect"),
    (
        ["train", "--non-private", "--method", "dp-ls", "--budget-split", "0.2,0.1,0.7"],
        "Without noise --budget-split has no effect",
    ),
    (["train", "--non-private", "--seed", "3"], "no effect with --non-private"),
    (["train", "--non-private", "--delta", "7"], "no effect with --non-private"),
    (["zero-shot", "--from", "text"], "'features/blobs' does not say its backbone"),
    (["zero-shot", "--from", "text", "--model", "vit-b16"], "No classes are named"),
    (["zero-shot", "--from", "text", "--features", "blobs", "--model", "vit-b16"], "vit-b16 has no text tower"),
    (["zero-shot", "--from", "photos"], "Unknown --from 'photos'"),
    (["zero-shot", "--from", "text", "--on", "nowhere"], "There is no feature set 'nowhere'"),
    (["zero-shot", "--from", "text", "--rows", "a"], "--rows has no effect with --from text"),
    (["evaluate"], "No private head found"),
    (["evaluate", "arrays/train_x.npy"], "cannot be read as a head"),
    (["evaluate", "nowhere.safetensors"], "There is no head"),
    (["import", "nowhere"], "There is no 'nowhere'"),
    (["import", "arrays", "--out", "x", "--classes", "2"], "out of range"),
    (["import", "arrays", "--out", "x", "--classes", "1"], "two or more different names"),
    (["import", "arrays", "--out", "x", "--classes", "a,a,b"], "two or more different names"),
    (["import", "arrays", "--out", "arrays/train_x.npy/x"], "cannot be written"),
    (["budget", "--sigma", "0"], "must be a number above 0"),
    (["budget", "--epsilon", "-1"], "psilon must lie between 0.0001 and 100"),
    (["budget", "--sigma", "1", "--delta", "2"], "elta must lie between 1e-30 and 1"),
    (["budget", "--sigma", "1", "--epsilon", "1"], "both given"),
    (["budget", "--features", "nowhere"], "There is no feature set 'nowhere'"),
    (["budget", "--features", "arrays"], "'arrays' is no feature set: it has no 'manifest.json'"),
    (["budget", "--features", "blobs", "--delta", "0"], "elta must lie between"),
    (["budget", "--features", "blobs", "--delta", "-1"], "elta must lie between"),
    (["budget", "--features", "blobs", "--steps", "3"], "has no meaning without"),
]  # fmt: skip


def test_mistakes_are_named_and_change_nothing(dpfc: Dpfc, features: Path) -> None:
    before = snapshot()
    for arguments, says in MISTAKES:
        ended = dpfc(*arguments)
        assert ended.exit_code == 2, (arguments, ended.output)
        assert says in ended.stderr, arguments
        assert len(ended.stderr.strip().splitlines()) >= 2, arguments
        assert "Traceback" not in ended.output, arguments
        assert snapshot() == before, arguments


def test_no_feature_set_is_found(dpfc: Dpfc) -> None:
    for arguments in (["train", "--epsilon", "1"],):
        ended = dpfc(*arguments)
        assert ended.exit_code == 2
        assert "No feature set found in 'features'" in ended.stderr
        assert not list(Path().iterdir())


def test_damaged_features_are_refused_before_anything_is_charged(dpfc: Dpfc, features: Path) -> None:
    shard = features / "train-00000-of-00001.h5"
    shard.write_bytes(shard.read_bytes()[:-500])
    before = snapshot()
    ended = dpfc(*TRAIN)
    assert ended.exit_code == 2
    assert shard.name in ended.stderr
    assert snapshot() == before


def test_devices_that_cannot_compute_are_found_out_before_anything_is_charged(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfc_cli.kernels import products

    def inexact(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return (left.T.astype(np.float32) @ right.astype(np.float32)).astype(np.float64)

    monkeypatch.setattr(products, "_device_product", inexact)
    before = snapshot()
    ended = dpfc(*TRAIN)
    assert ended.exit_code == 2
    assert "do not compute exactly" in ended.stderr
    assert snapshot() == before


def test_nan_is_refused_at_import_and_the_message_is_for_the_curator(dpfc: Dpfc, arrays: Path) -> None:
    x = np.load(arrays / "train_x.npy")
    x[17, 3] = np.nan
    np.save(arrays / "train_x.npy", x)
    ended = dpfc("import", str(arrays), "--out", "bad")
    assert ended.exit_code == 2
    assert "do not publish" in ended.stderr
    assert not Path("features/bad").exists()


def test_a_head_of_other_dimensions_is_refused(dpfc: Dpfc, features: Path, tmp_path: Path) -> None:
    assert dpfc(*TRAIN).exit_code == 0
    other = tmp_path / "other"
    other.mkdir()
    for split in ("train", "test"):
        np.save(other / f"{split}_x.npy", np.zeros((9, 5), np.float32))
        np.save(other / f"{split}_y.npy", np.arange(9) % 3)
    assert dpfc("import", str(other), "--classes", "3").exit_code == 0
    ended = dpfc("evaluate", "--features", "other")
    assert ended.exit_code == 2
    assert "8 dimensions" in ended.stderr
    assert "have 5" in ended.stderr


@pytest.mark.parametrize("rate", ["2", "1e-9"])
def test_a_bad_sampling_rate_is_refused_before_anything_is_calibrated(dpfc: Dpfc, features: Path, rate: str) -> None:
    ended = dpfc(*TRAIN, "--method", "dp-sgd", "--sampling-rate", rate)
    assert ended.exit_code == 2
    assert "sampling" in ended.stderr
    assert "Calibrating" not in ended.stderr


def test_public_features_of_a_method_without_are_refused_without_a_warning(dpfc: Dpfc, features: Path) -> None:
    np.savez("others.npz", train_x=np.ones((9, 8), np.float32), train_y=np.arange(9) % 3)
    assert dpfc("import", "others.npz", "--classes", "3").exit_code == 0
    line = ("train", "--epsilon", "0.01", "--features", "blobs", "--public-features", "others")
    ended = dpfc(*line, "--method", "dp-fc")
    assert ended.exit_code == 2
    assert "--public-features is no option of dp-fc" in ended.stderr
    assert "Warning" not in ended.stderr
    assert dpfc(*line).stderr.count("Warning") == 2


def test_a_head_that_could_say_one_thing_only_is_refused_before_the_charge(dpfc: Dpfc) -> None:
    np.savez("one.npz", train_x=np.ones((50, 4), np.float32), train_y=np.zeros(50, int))
    assert dpfc("import", "one.npz", "--classes", "2").exit_code == 0
    # `import` and `extract` make no such set; one may have come from elsewhere.
    manifest = Path("features/one/manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"classes": ["0"]}))
    before = snapshot()
    for privacy in (("--epsilon", "1"), ("--non-private",)):
        ended = dpfc("train", *privacy)
        assert ended.exit_code == 2
        assert "one class only" in ended.stderr
        assert "--classes" in ended.stderr
    assert snapshot() == before


def test_a_head_is_never_overwritten(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*TRAIN, "--out", "heads/a.safetensors").exit_code == 0
    before = snapshot()
    ended = dpfc(*TRAIN, "--out", "heads/a.safetensors")
    assert ended.exit_code == 2
    assert snapshot() == before


def test_a_set_that_exists_is_not_replaced_by_another(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    assert dpfc("import", str(arrays), "--out", "blobs", "--classes", "3").exit_code == 0
    ended = dpfc("import", str(arrays), "--out", "blobs", "--dtype", "float16")
    assert ended.exit_code == 2
    assert "exists and was made from another source" in ended.stderr


def test_a_defect_shows_no_values_and_no_traceback_unless_asked(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfc_cli.privacy import curator

    def broken(*args: object) -> None:
        raise RuntimeError("secret 12345")

    monkeypatch.setattr(curator, "draw_noise", broken)
    ended = dpfc(*TRAIN)
    assert ended.exit_code == 1
    assert "12345" not in ended.output
    assert "RuntimeError" in ended.stderr
    assert "12345" in dpfc("-v", *TRAIN).output


def test_ctrl_c_ends_with_130_and_says_what_stands(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfc_cli.privacy import curator

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(curator, "draw_noise", stopped)
    ended = dpfc(*TRAIN)
    assert ended.exit_code == 130
    assert "stays charged" in ended.stderr
    assert "The same command goes on where it stopped" in ended.stderr
    assert [path.stem for path in Path("features/ledger.answers").iterdir()] == [charges()[0].id]
    assert len(charges()) == 1


def test_ledgers_outlive_their_sets(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*TRAIN).exit_code == 0
    shutil.rmtree(features)
    assert "dp-whitened" in dpfc("budget").stdout


def test_options_that_the_way_to_the_optimum_does_not_read_are_refused(dpfc: Dpfc, features: Path) -> None:
    line = ("train", "--method", "dp-fc", "--non-private")
    refused = dpfc(*line, "--learning-rate", "3")
    assert refused.exit_code == 2
    assert "--learning-rate has no effect" in refused.stderr.replace("\n", " ")
    assert dpfc(*line, "--learning-rate", "3", "--steps", "2").exit_code == 0
    made = dpfc(*line, "--full")
    assert made.exit_code == 0
    assert "learning rate" not in made.stdout
    assert "until converged" in made.stdout


@pytest.mark.parametrize("classes", ["²", "99999999999"])
def test_numbers_of_classes_that_are_none_are_the_users_to_mend(dpfc: Dpfc, arrays: Path, classes: str) -> None:
    assert dpfc("import", str(arrays), "--classes", classes).exit_code == 2


def test_a_place_that_a_variable_names_is_not_blamed_on_a_flag(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, line in (("DPFC_HEADS", TRAIN), ("DPFC_FEATURES", ["import", "arrays", "--classes", "3"])):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "arrays/train_x.npy")
            ended = dpfc(*line)
        assert ended.exit_code == 2
        assert "cannot be written" in ended.stderr
        assert variable in ended.stderr
        assert "--out" not in ended.stderr
