"""Models of timm give the features that timm gives. These tests run where timm and torch are installed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli import backbones
from dpfc_cli.backbones import Wanted
from dpfc_cli.images.decoding import fitted
from tests.cli.conftest import Dpfc, refusal
from tests.support import refuses

timm: Any = pytest.importorskip("timm")
torch: Any = pytest.importorskip("torch")

MODELS = {
    "convnext_atto": "convnext_atto.d2_in1k",
    "mobilenetv3_small_050": "mobilenetv3_small_050.lamb_in1k",
    "resnet18": "resnet18.a1_in1k",
    "vit_tiny_patch16_224": "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
}


def weights_of(name: str, file: Path, lacking: str | None = None) -> dict[str, Any]:
    """Write random weights with a classifier, except one tensor, and return them all."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    whole = timm.create_model(name)
    for each in whole.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            each.running_mean.normal_()
    tensors = whole.state_dict()
    save_file({each: value for each, value in tensors.items() if each != lacking}, file)
    return dict(tensors)


@pytest.mark.parametrize("name", MODELS)
def test_pictures_are_prepared_and_features_computed_as_by_timm(name: str, tmp_path: Path) -> None:
    tensors = weights_of(name, tmp_path / "w.safetensors")
    model = timm.create_model(name, num_classes=0).eval()
    model.load_state_dict(tensors, strict=False)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    geometry = backbones.geometry_of(f"timm:{name}")
    assert geometry is not None
    wanted = Wanted(name=f"timm:{name}", weights=str(tmp_path / "w.safetensors"), image_shape=(224, 224, 3), batch=2)
    backbone = backbones.load(wanted)
    random = np.random.default_rng(0)
    photos = [
        Image.fromarray(random.integers(0, 256, (h, w, 3)).astype(np.uint8)).resize((w * 9, h * 9))
        for h, w in ((30, 41), (37, 30), (33, 33))
    ]
    pixels = np.stack([np.asarray(fitted(each, geometry)) for each in photos])
    features = backbone(pixels)
    with torch.inference_mode():
        expected = model(torch.stack([transform(each) for each in photos])).numpy()
    assert features.dtype == np.float32
    assert features.shape == expected.shape == (3, backbone.dim)
    # Cropping before resizing changes a few values by a level.
    assert np.abs(features - expected).max() < 2e-3 * np.linalg.norm(expected, axis=1).min()
    pixels[1:] = 0
    np.testing.assert_allclose(backbone(pixels)[0], features[0], rtol=1e-4, atol=1e-4)
    said = backbone.describe()
    assert json.loads(json.dumps(said)) == said
    assert said["name"] == f"timm:{MODELS[name]}"


def test_what_timm_lacks_or_cannot_read_is_refused(tmp_path: Path) -> None:
    lacking = tmp_path / "a.safetensors"
    weights_of("resnet18", lacking, "layer1.0.bn1.running_var")
    for name, weights, code, about in (
        ("timm:resnet181", None, "unknown-name", {}),
        ("timm:", None, "unknown-name", {}),
        ("timm:resnet18d.nobody", None, "unknown-name", {}),
        ("timm:test_vit4", None, "missing", {"parameter": "weights"}),
        ("timm:resnet18", str(lacking), "damaged", {}),
        ("timm:resnet34", str(lacking), "damaged", {}),
    ):
        with refuses(code, **about):
            backbones.load(Wanted(name=name, weights=weights, image_shape=(224, 224, 3)))
    with refuses("conflict", parameter="pool"):
        backbones.check(Wanted(name="timm:resnet18", pool="cls"))


def test_a_model_of_a_repository_is_what_its_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments, its preprocessing, and a classifier of any size, or none."""
    from safetensors.torch import save_file

    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    folder = tmp_path / "hub" / "some" / "own"
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    said = {"mean": [0.1, 0.2, 0.3], "std": [1, 0.5, 0.25], "crop_pct": 1.0, "interpolation": "bilinear"}
    said |= {"input_size": [3, 64, 64], "fixed_input_size": True, "num_classes": 1000, "classifier": "head"}
    arguments = {"img_size": 64, "init_values": 0.1}
    config = {"architecture": "vit_tiny_patch16_224", "model_args": arguments, "pretrained_cfg": said}
    (folder / "config.json").write_text(json.dumps(config))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    wanted = Wanted(name="timm:hf-hub:some/own", image_shape=(64, 64, 3))
    for classes in (7, 0):
        model = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **arguments).eval()
        save_file(model.state_dict(), folder / "model.safetensors")
        backbone = backbones.load(wanted)
        seen = (torch.tensor(pixels) / 255 - torch.tensor(said["mean"])) / torch.tensor(said["std"])
        with torch.inference_mode():
            expected = model.forward_features(seen.permute(0, 3, 1, 2).float())[:, 0].numpy()
        np.testing.assert_allclose(backbone(pixels), expected, rtol=1e-3, atol=1e-4)
        described = backbone.describe()
        assert described["name"] == "timm:hf-hub:some/own"
        assert described["weights"]["id"] == "hf:some/own/model.safetensors"
        assert described["preprocessing"].items() >= {"crop": 64, "filter": "bilinear", "mean": said["mean"]}.items()


def test_a_model_in_which_pictures_meet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def reset_classifier(self, classes: int) -> None:
            pass

        def forward(self, x: Any) -> Any:
            return self.scale * (x - x.mean(0)).mean((2, 3))

    def mixed(pretrained: bool = False, **options: Any) -> Any:
        return timm.models.build_model_with_cfg(Mixed, "mixed", pretrained, **options)

    config = {"num_classes": 3, "input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0}
    config |= {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "classifier": (), "first_conv": ()}
    cfgs = timm.models.generate_default_cfgs({"mixed.own": config})
    monkeypatch.setitem(globals(), "default_cfgs", cfgs)
    monkeypatch.setitem(globals(), "__all__", [])
    timm.models.register_model(mixed)
    weights_of("mixed", tmp_path / "w.safetensors")
    with refuses("unsupported", match="each picture by itself"):
        backbones.load(Wanted(name="timm:mixed", weights=str(tmp_path / "w.safetensors"), image_shape=(32, 32, 3)))


def test_a_head_predicts_from_pictures(dpfc: Dpfc, tmp_path: Path) -> None:
    weights_of("mobilenetv3_small_050", tmp_path / "w.safetensors")
    given = ("--weights", str(tmp_path / "w.safetensors"))
    dpfc("extract", "digits", "--limit", "60", "--model", "timm:mobilenetv3_small_050", *given, ends=0)
    dpfc("train", "--epsilon", "8", "--method", "dp-ls", "--out", "a.safetensors", ends=0)
    told = json.loads(dpfc("evaluate", "a.safetensors", "--json", ends=0).stdout)
    assert told["features"] == "features/digits-timm-mobilenetv3_small_050-limit60"
    Path("photos").mkdir()
    Image.new("RGB", (20, 30), "red").save("photos/a.png")
    dpfc("predict", "a.safetensors", "photos", *given, "--out", "a.csv", ends=0)
    assert len(Path("a.csv").read_text().splitlines()) == 2
    refused = dpfc("export", "a.safetensors", "--to", "onnx", "--with-backbone", "--out", "a.onnx", "--json")
    assert refusal(refused).startswith("missing")
