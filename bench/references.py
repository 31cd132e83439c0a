"""Makes tests/backbones/data/references.json: tiny models of the reference libraries, and the features they compute.

Each case is a model of the table, with the naming that its published weights have. It needs its own environment. The
project's tests do not need it:

    python -m venv REF && REF/bin/pip install torch "transformers<5" safetensors pillow
    REF/bin/pip install --no-deps timm
    REF/bin/python bench/references.py transformers
    REF/bin/python bench/references.py timm
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def case(library: str, shapes: dict[str, list[int]], run: Run) -> dict[str, Any]:
    with torch.no_grad():
        features = {
            str(size): {pool: rows.double().tolist() for pool, rows in run(seen(size)).items()} for size in SIZES
        }
    rounded = json.loads(json.dumps(features), parse_float=lambda x: float(f"{float(x):.7g}"))
    return {"library": library, "shapes": shapes, "features": rounded}


def of_transformers() -> dict[str, Any]:
    import transformers as t

    library = f"transformers {t.__version__}"

    def cls_and_mean(model: torch.nn.Module, ahead: int) -> Run:
        def run(x: torch.Tensor) -> dict[str, torch.Tensor]:
            options = {} if "Dinov2" in type(model).__name__ else {"interpolate_pos_encoding": True}
            out = model(x, **options).last_hidden_state
            return {"cls": out[:, 0], "mean": out[:, ahead:].mean(1)}

        return run

    common = COMMON | {"intermediate_size": HIDDEN}
    plans: dict[str, tuple[Any, Any, Callable[[Any], Run]]] = {
        "phikon": (t.ViTModel, t.ViTConfig(**common), lambda m: cls_and_mean(m, 1)),
        "dinov2-s14": (t.Dinov2Model, t.Dinov2Config(**COMMON, mlp_ratio=2), lambda m: cls_and_mean(m, 1)),
        "dinov2-g14": (
            t.Dinov2Model,
            t.Dinov2Config(**COMMON, mlp_ratio=2, use_swiglu_ffn=True),
            lambda m: cls_and_mean(m, 1),
        ),
        "dinov2-s14-reg": (
            t.Dinov2WithRegistersModel,
            t.Dinov2WithRegistersConfig(**COMMON, mlp_ratio=2),
            lambda m: cls_and_mean(m, 5),
        ),
    }
    made = {}
    for name, (model_class, config, runner) in plans.items():
        model = model_class(config)
        made[name] = case(library, fill(model), runner(model))
    # The tower inside the file that the hub has: with a prefix, and with tensors that are of no use here.
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
    model = t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=common))
    shapes = fill(model)
    made["siglip-b16"] = case(
        library, shapes, lambda x: {"map": model.vision_model(x, interpolate_pos_encoding=True).pooler_output}
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
    for name, options, pool in (
        ("vit-ti16", {}, "cls"),
        ("virchow2", {**PACKED, "mlp_ratio": 5.3375, "reg_tokens": 4, "global_pool": ""}, "cls+mean"),
    ):
        model = VisionTransformer(**(size | options))
        made[name] = case(library, fill(model), run(model, pool))

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
    made["clip-b16"] = case(library, shapes, run(clip.eval(), "cls"))
    return made


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
