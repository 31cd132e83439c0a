"""Makes tests/backbones/data/references.json: tiny models of the reference libraries, and the features they compute.

It needs its own environment. The project's tests do not need it:

    python -m venv REF && REF/bin/pip install torch transformers safetensors pillow
    REF/bin/pip install --no-deps timm open_clip_torch ftfy regex
    REF/bin/python bench/references.py transformers
    REF/bin/python bench/references.py timm
    REF/bin/pip install "transformers<5" && REF/bin/python bench/references.py transformers

The names that transformers used before version 5 are kept beside the new ones.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "backbones"))
from tiny import DATA, pictures, random_weights

# 16 pixels are four patches a side, what the models are made for; of 26 two are dropped, and the grid is 6 × 6.
SIZES = (16, 26, 12)
WIDTH, HEADS, HIDDEN = 32, 2, 48
COMMON = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "image_size": 16,
    "patch_size": 4,
}
Run = Callable[[torch.Tensor], dict[str, torch.Tensor]]


def seen(size: int) -> torch.Tensor:
    """The pictures as a model sees them: (B, 3, size, size), with mean and standard deviation one half."""
    return torch.from_numpy((pictures(size) / 255 - 0.5) / 0.5).permute(0, 3, 1, 2).float().contiguous()


def shapes_of(model: torch.nn.Module) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def fill(model: torch.nn.Module) -> dict[str, list[int]]:
    """Give the model the weights of the seed. Returns the shapes by name."""
    shapes = shapes_of(model)
    weights = random_weights(shapes)
    model.load_state_dict({name: torch.from_numpy(weights[name]) for name in shapes}, strict=True)
    model.eval()
    return shapes


def case(library: str, kind: str, shapes: dict[str, list[int]], config: dict[str, Any], run: Run) -> dict[str, Any]:
    with torch.no_grad():
        features = {
            str(size): {pool: rows.double().tolist() for pool, rows in run(seen(size)).items()} for size in SIZES
        }
    rounded = json.loads(json.dumps(features), parse_float=lambda x: float(f"{float(x):.7g}"))
    return {"library": library, "kind": kind, "shapes": shapes, "config": config, "features": rounded}


def of_transformers() -> dict[str, Any]:
    import transformers as t

    major = int(t.__version__.partition(".")[0])
    library = f"transformers {t.__version__}"

    def cls_and_mean(model: torch.nn.Module, ahead: int) -> Run:
        def run(x: torch.Tensor) -> dict[str, torch.Tensor]:
            options = {} if "Dinov2" in type(model).__name__ else {"interpolate_pos_encoding": True}
            out = model(x, **options).last_hidden_state
            return {"cls": out[:, 0], "mean": out[:, ahead:].mean(1)}

        return run

    def pooled(model: torch.nn.Module, name: str) -> Run:
        return lambda x: {name: model(x, interpolate_pos_encoding=True).pooler_output}

    common = COMMON | {"intermediate_size": HIDDEN}
    plans: dict[str, tuple[Any, Any, Callable[[Any], Run]]] = {
        "vit": (t.ViTModel, t.ViTConfig(**common), lambda m: cls_and_mean(m, 1)),
        "deit-distilled": (t.DeiTModel, t.DeiTConfig(**common), lambda m: cls_and_mean(m, 2)),
        "dinov2": (t.Dinov2Model, t.Dinov2Config(**COMMON, mlp_ratio=2), lambda m: cls_and_mean(m, 1)),
        "dinov2-giant": (
            t.Dinov2Model,
            t.Dinov2Config(**COMMON, mlp_ratio=2, use_swiglu_ffn=True),
            lambda m: cls_and_mean(m, 1),
        ),
        "dinov2-reg": (
            t.Dinov2WithRegistersModel,
            t.Dinov2WithRegistersConfig(**COMMON, mlp_ratio=2),
            lambda m: cls_and_mean(m, 5),
        ),
        "clip": (t.CLIPVisionModel, t.CLIPVisionConfig(**common), lambda m: pooled(m, "cls")),
        "siglip": (t.SiglipVisionModel, t.SiglipVisionConfig(**common), lambda m: pooled(m, "map")),
    }
    made = {}
    for name, (model_class, config, runner) in plans.items():
        model = model_class(config)
        shapes = fill(model)
        stated = {key: getattr(config, key) for key in ("num_attention_heads", "hidden_act", "layer_norm_eps")}
        made[f"transformers-{major}-{name}"] = case(library, "safetensors", shapes, stated, runner(model))
    # The towers inside the files that the hub has: with a prefix, and with tensors that are of no use here.
    text = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "vocab_size": 8,
        "max_position_embeddings": 4,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "projection_size": 16,
    }
    for name, model_class, config_class, pool in (
        ("clip-whole", t.CLIPModel, t.CLIPConfig, "cls"),
        ("siglip-whole", t.SiglipModel, t.SiglipConfig, "map"),
    ):
        config = config_class(text_config=text, vision_config=common)
        model = model_class(config)
        shapes = fill(model)
        vision = config.vision_config
        stated = {key: getattr(vision, key) for key in ("num_attention_heads", "hidden_act", "layer_norm_eps")}
        run = pooled(model.vision_model, pool)
        made[f"transformers-{major}-{name}"] = case(library, "safetensors", shapes, {"vision_config": stated}, run)
    config = t.ViTConfig(**common, num_labels=3)
    model = t.ViTForImageClassification(config)
    shapes = fill(model)
    stated = {key: getattr(config, key) for key in ("num_attention_heads", "hidden_act", "layer_norm_eps")}
    made[f"transformers-{major}-vit-classifier"] = case(
        library, "safetensors", shapes, stated, cls_and_mean(model.vit, 1)
    )
    return made


def of_timm() -> dict[str, Any]:
    stand_in_for_torchvision()
    import timm
    from timm.layers import SwiGLUPacked
    from timm.layers.activations import QuickGELU
    from timm.models.vision_transformer import VisionTransformer, _convert_openai_clip

    library = f"timm {timm.__version__}"
    size = {
        "img_size": 16,
        "patch_size": 4,
        "embed_dim": WIDTH,
        "depth": 2,
        "num_heads": HEADS,
        "mlp_ratio": HIDDEN / WIDTH,
        "num_classes": 3,
        "dynamic_img_size": True,
    }

    PACKED = {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU, "init_values": 1e-5, "num_classes": 0}

    def run(model: VisionTransformer, pool: str) -> Run:
        def features(x: torch.Tensor) -> dict[str, torch.Tensor]:
            # timm refuses what its patches do not cover; the rest is dropped here as a convolution drops it.
            x = x[:, :, : x.shape[2] // 4 * 4, : x.shape[3] // 4 * 4]
            out = model.forward_features(x)
            if pool == "cls+mean":
                return {pool: torch.cat([out[:, 0], out[:, model.num_prefix_tokens :].mean(1)], -1)}
            found = {pool: model.forward_head(out, pre_logits=True)}
            if pool == "cls":
                found["mean"] = out[:, model.num_prefix_tokens :].mean(1)
            return found

        return features

    made = {}
    for name, options, pool, config in (
        ("vit", {}, "cls", {}),
        ("vit-gap", {"global_pool": "avg", "class_token": False}, "mean", {}),
        ("vit-reg-scale", {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5}, "cls", {}),
        (
            "siglip",
            {"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"},
            "map",
            {"hidden_act": "gelu_new"},
        ),
        (
            "swiglu",
            {"mlp_layer": SwiGLUPacked, "act_layer": torch.nn.SiLU, "init_values": 1e-5, "mlp_ratio": 3},
            "cls",
            {},
        ),
        ("uni", {"init_values": 1e-5}, "cls", {}),
        ("uni2-h", {**PACKED, "mlp_ratio": 2.66667 * 2, "no_embed_class": True, "reg_tokens": 8}, "cls", {}),
        ("virchow2", {**PACKED, "mlp_ratio": 5.3375, "reg_tokens": 4, "global_pool": ""}, "cls+mean", {}),
    ):
        model = VisionTransformer(**(size | options))
        shapes = fill(model)
        made[f"timm-{name}"] = case(
            library, "safetensors", shapes, {"num_attention_heads": HEADS} | config, run(model, pool)
        )

    made["open-clip-timm"] = of_open_clip(size)
    clip = VisionTransformer(
        **size, pre_norm=True, act_layer=QuickGELU, norm_layer=lambda d, **_: torch.nn.LayerNorm(d, eps=1e-5)
    )
    shapes = openai_shapes()
    weights = {name: torch.from_numpy(array) for name, array in random_weights(shapes).items()}
    converted = _convert_openai_clip(weights, clip)
    clip.load_state_dict(
        {k: v for k, v in converted.items() if not k.startswith("head")}
        | {k: v for k, v in clip.state_dict().items() if k.startswith("head")}
    )
    stated = {"num_attention_heads": HEADS, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    made["openai-clip"] = case(library, "safetensors", shapes, stated, run(clip.eval(), "cls"))

    for name, pool, shapes in (
        ("augreg", "cls", google_shapes(augreg=True)),
        (
            "augreg-training",
            "cls",
            {f"opt/target/{k}": v for k, v in google_shapes(augreg=True).items()} | {"opt/state/step": []},
        ),
        ("big-vision", "cls", {f"params/{k}": v for k, v in google_shapes(cls=True).items()}),
        (
            "big-vision-siglip",
            "map",
            {f"params/img/{k}": v for k, v in google_shapes(map_head=True).items()}
            | {"params/txt/x": [2], "params/t": [1], "params/b": [1]},
        ),
        ("big-vision-scan", "map", {f"params/{k}": v for k, v in google_shapes(map_head=True, scan=True).items()}),
    ):
        options = {"no_embed_class": True} if name == "big-vision" else {}
        if pool == "map":
            options |= {"global_pool": "map", "class_token": False}
        model = VisionTransformer(**(size | options)).eval()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "weights.npz"
            np.savez(file, **random_weights(shapes))
            model.load_pretrained(str(file))
        made[name] = case(library, "npz", shapes, {}, run(model, pool))
    return made


def of_open_clip(size: dict[str, Any]) -> dict[str, Any]:
    """A vision tower of timm in open_clip, as BiomedCLIP has it, with some of the text tower."""
    import open_clip
    import timm
    from open_clip.timm_model import TimmModel

    def tiny(_: str, pretrained: bool) -> torch.nn.Module:
        model = timm.models.vision_transformer.VisionTransformer(**size)
        model.default_cfg = {"pool_size": None}
        return model

    create, timm.create_model = timm.create_model, tiny
    tower = TimmModel("vit_base_patch16_224", 16, image_size=16, pool="", proj="linear")
    timm.create_model = create
    shapes = {f"visual.{name}": shape for name, shape in shapes_of(tower).items()}
    shapes |= {"logit_scale": [], "text.transformer.embeddings.position_ids": [1, 4], "text.proj.0.weight": [16, 16]}
    weights = random_weights(shapes)
    tower.load_state_dict({name: torch.from_numpy(weights[f"visual.{name}"]) for name in tower.state_dict()})
    tower.eval()

    def run(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"cls": tower.trunk(x[:, :, : x.shape[2] // 4 * 4, : x.shape[3] // 4 * 4])}

    return case(f"open_clip {open_clip.__version__}", "safetensors", shapes, {"num_attention_heads": HEADS}, run)


def openai_shapes() -> dict[str, list[int]]:
    """The names of OpenAI's CLIP and of open_clip, with some of the text tower."""
    shapes = {
        "visual.class_embedding": [WIDTH],
        "visual.positional_embedding": [17, WIDTH],
        "visual.proj": [WIDTH, 16],
        "visual.conv1.weight": [WIDTH, 3, 4, 4],
        "positional_embedding": [4, 16],
        "text_projection": [16, 16],
        "logit_scale": [],
        "token_embedding.weight": [8, 16],
        "ln_final.weight": [16],
        "ln_final.bias": [16],
        "transformer.resblocks.0.ln_1.weight": [16],
    }
    for norm in ("ln_pre", "ln_post"):
        shapes |= {f"visual.{norm}.weight": [WIDTH], f"visual.{norm}.bias": [WIDTH]}
    for i in range(2):
        block = f"visual.transformer.resblocks.{i}."
        shapes |= {
            f"{block}attn.in_proj_weight": [3 * WIDTH, WIDTH],
            f"{block}attn.in_proj_bias": [3 * WIDTH],
            f"{block}attn.out_proj.weight": [WIDTH, WIDTH],
            f"{block}attn.out_proj.bias": [WIDTH],
            f"{block}mlp.c_fc.weight": [HIDDEN, WIDTH],
            f"{block}mlp.c_fc.bias": [HIDDEN],
            f"{block}mlp.c_proj.weight": [WIDTH, HIDDEN],
            f"{block}mlp.c_proj.bias": [WIDTH],
        }
        shapes |= {f"{block}ln_{n}.{leaf}": [WIDTH] for n in (1, 2) for leaf in ("weight", "bias")}
    return shapes


def google_shapes(
    augreg: bool = False, cls: bool = False, map_head: bool = False, scan: bool = False
) -> dict[str, list[int]]:
    """The names of AugReg's and big_vision's .npz, which timm's own reader then has to understand."""
    attention, norm2, mlp = (1, 2, 3) if augreg else (0, 1, 0)
    each = WIDTH // HEADS
    shapes: dict[str, list[int]] = {
        "embedding/kernel": [4, 4, 3, WIDTH],
        "embedding/bias": [WIDTH],
        "Transformer/encoder_norm/scale": [WIDTH],
        "Transformer/encoder_norm/bias": [WIDTH],
        "head/kernel": [WIDTH, 3],
        "head/bias": [3],
    }
    if augreg:
        shapes |= {
            "Transformer/posembed_input/pos_embedding": [1, 17, WIDTH],
            "pre_logits/kernel": [WIDTH, WIDTH],
            "pre_logits/bias": [WIDTH],
        }
    else:
        shapes["pos_embedding"] = [1, 16, WIDTH]
    if augreg or cls:
        shapes["cls"] = [1, 1, WIDTH]

    def heads(where: str) -> dict[str, list[int]]:
        found = {}
        for part in ("query", "key", "value"):
            found |= {f"{where}/{part}/kernel": [WIDTH, HEADS, each], f"{where}/{part}/bias": [HEADS, each]}
        return found | {f"{where}/out/kernel": [HEADS, each, WIDTH], f"{where}/out/bias": [WIDTH]}

    def layers(where: str, hidden: int) -> dict[str, list[int]]:
        return {
            f"{where}/Dense_0/kernel": [WIDTH, hidden],
            f"{where}/Dense_0/bias": [hidden],
            f"{where}/Dense_1/kernel": [hidden, WIDTH],
            f"{where}/Dense_1/bias": [WIDTH],
        }

    def norm(where: str) -> dict[str, list[int]]:
        return {f"{where}/scale": [WIDTH], f"{where}/bias": [WIDTH]}

    block = heads(f"MultiHeadDotProductAttention_{attention}") | layers(f"MlpBlock_{mlp}", HIDDEN)
    block |= norm("LayerNorm_0") | norm(f"LayerNorm_{norm2}")
    for name, shape in block.items():
        if scan:
            shapes[f"Transformer/encoderblock/{name}"] = [2, *shape]
        else:
            shapes |= {f"Transformer/encoderblock_{i}/{name}": shape for i in range(2)}
    if map_head:
        shapes |= heads("MAPHead_0/MultiHeadDotProductAttention_0") | layers("MAPHead_0/MlpBlock_0", HIDDEN)
        shapes |= norm("MAPHead_0/LayerNorm_0") | {"MAPHead_0/probe": [1, 1, WIDTH]}
    return shapes


def stand_in_for_torchvision() -> None:
    """timm imports torchvision for its data loading. Nothing here uses that. CPU builds are not always there."""
    import enum
    import importlib.machinery
    import types

    class Anything:
        def __init__(self, *_: Any, **__: Any) -> None: ...

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Anything,), {})

    modes = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
    for name in (
        "torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets",
        "torchvision.datasets.folder", "torchvision.ops", "torchvision.ops.misc", "torchvision.models",
        "torchvision.models.feature_extraction",
    ):  # fmt: skip
        module: Any = Module(name)
        module.__path__, module.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
        module.InterpolationMode = enum.Enum("InterpolationMode", {m: m.lower().replace("_", "-") for m in modes})
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)


if __name__ == "__main__":
    made = {"transformers": of_transformers, "timm": of_timm}[sys.argv[1]]()
    known = json.loads(DATA.read_text("utf-8")) if DATA.exists() else {}
    cases = dict(sorted((known | made).items()))
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in cases.items())
    DATA.write_text(f"{{\n{lines}\n}}\n", "utf-8")
    print(*made, f"{DATA.stat().st_size / 1000:.0f} kB", sep="\n")
