"""Compares the models of clinical fields with the reference libraries at their real widths, heads, patches and pixels.

The weights are random, and each tower has two blocks. The first command needs the environment of `bench/references.py`:

    REF/bin/python bench/towers.py make FOLDER
    PYTHONPATH=. python bench/towers.py compare FOLDER
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DEPTH = 2
PIXELS = {"rad-dino": 518, "medsiglip": 448}
"""224 for all others."""


def towers() -> dict[str, Callable[[], Any]]:
    """The towers as their publishers' code and config.json make them, but for the depth."""
    sys.path.insert(0, str(Path(__file__).parent))
    from references import stand_in_for_torchvision

    stand_in_for_torchvision()
    import timm
    import torch
    import transformers as t
    from timm.layers import SwiGLUPacked

    packed = {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU}
    usual = {"depth": DEPTH, "num_classes": 0}
    scaled = usual | {"init_values": 1e-5, "dynamic_img_size": True}
    uni2 = {"patch_size": 14, "num_heads": 24, "embed_dim": 1536, "mlp_ratio": 2.66667 * 2, "no_embed_class": True}
    common = {"num_hidden_layers": DEPTH}
    large = {"hidden_size": 1024, "num_attention_heads": 16}
    siglip = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16}
    return {
        "rad-dino": lambda: t.Dinov2Model(t.Dinov2Config(**common, image_size=518, patch_size=14)),
        "medsiglip": lambda: t.SiglipVisionModel(
            t.SiglipVisionConfig(**common, **siglip, image_size=448, patch_size=14)
        ),
        "biomedclip": lambda: timm.create_model("vit_base_patch16_224", **usual),
        "phikon": lambda: t.ViTModel(t.ViTConfig(**common, layer_norm_eps=1e-6), add_pooling_layer=False),
        "phikon-v2": lambda: t.Dinov2Model(t.Dinov2Config(**common, **large, image_size=224, patch_size=16)),
        "uni": lambda: timm.create_model("vit_large_patch16_224", **scaled),
        "uni2-h": lambda: timm.create_model("vit_giant_patch14_224", **scaled, **packed, **uni2, reg_tokens=8),
        "virchow2": lambda: timm.create_model(
            "vit_huge_patch14_224", **scaled, **packed, mlp_ratio=5.3375, reg_tokens=4, global_pool=""
        ),
    }


def make(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    for name, tower in towers().items():
        model = tower().eval()
        for key, value in model.state_dict().items():
            if value.ndim == 1:
                value.copy_(key.endswith(("weight", "gamma", "lambda1")) + 0.2 * torch.randn_like(value))
            elif value.ndim and ("token" in key or "pos" in key):
                value.copy_(0.5 * torch.randn_like(value))
        side = PIXELS.get(name, 224)
        pixels = np.random.RandomState(1).randint(0, 256, (2, side, side, 3)).astype(np.uint8)
        with torch.no_grad():
            out = model(((torch.from_numpy(pixels).float() / 255 - 0.5) / 0.5).permute(0, 3, 1, 2))
        if name == "virchow2":
            out = torch.cat([out[:, 0], out[:, 5:].mean(1)], -1)
        elif name == "medsiglip":
            out = out.pooler_output
        elif not isinstance(out, torch.Tensor):
            out = out.last_hidden_state[:, 0]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        ahead = "visual.trunk." if name == "biomedclip" else ""
        tensors = {ahead + key: value.contiguous() for key, value in model.state_dict().items()}
        save_file(tensors, place / "model.safetensors")
        np.savez(place / "reference.npz", pixels=pixels, features=out.numpy())
        print(name, tuple(out.shape))


def compare(folder: Path) -> None:
    from dpfc_cli.backbones.vision_transformer.models import MODELS
    from tests.backbones.tiny import build

    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        stored, model = np.load(place / "reference.npz"), MODELS[place.name]
        pixels, expected = stored["pixels"], stored["features"]
        facts = {"heads": model.heads, "patch": model.patch, "activation": model.activation, "epsilon": model.epsilon}
        backbone = build(place / "model.safetensors", pixels.shape[1], published=model.pool, **facts)
        difference = np.abs(backbone(pixels) - expected).max(1) / np.linalg.norm(expected, axis=1)
        print(f"{place.name}: {backbone.dim} dimensions, max |Δ| / norm {difference.max():.1e}")


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
