"""The Vision Transformers by name: where their weights are at home, and what the weights do not say themselves.

Shapes tell width, depth, patch and tokens; they do not tell the number of heads, the activation, the epsilon of the
normalisations or the preprocessing. Where a `config.json` lies beside the weights, what it says of the first three
comes before this table (`transformer.architecture`). CLIPs were trained with QuickGELU by OpenAI and some others, with
GELU by LAION and most: weights of unknown descent must say, for either gives features, and the wrong one bad ones.

`vit-*` are AugReg's (Steiner et al. 2021), pre-trained on ImageNet-21k; `vit-b16-in1k` on ImageNet-1k alone, and
`vit-h14` is the first ViT's (Dosovitskiy et al. 2021). `vit-g14` (Zhai et al. 2022, JFT) was never published. AugReg
was trained with the tanh form of GELU and is run with the exact one everywhere else, so here, too.

`native` is the recipe the weights' publisher evaluates with: timm for AugReg (its crop is 0.9 of the shorter side),
otherwise the papers' authors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpfc_cli.errors import UserError

if TYPE_CHECKING:
    from dpfc_cli.backbones.geometry import Geometry

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
Triple = tuple[float, float, float]

HALF: Triple = (0.5, 0.5, 0.5)
IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: tuple[Triple, Triple] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

Cut = tuple[int | tuple[int, int], int]
"""Resize and crop of a `Geometry`, which this module must not import: with it comes NumPy, too slow for `--help`."""

PAPER: Cut = ((384, 384), 256)
"""Mehta et al. 2022, section "Training details": 256 × 256, cut from the centre of 384 × 384."""


@dataclass(frozen=True)
class Model:
    """One name of the command line.

    home: `owner/name/file` on the Hugging Face hub, or None. width, depth, patch: what the weights must have, None
    where the name leaves it open. heads, activation, epsilon: where neither shapes nor config.json tell. mean, std: of
    pixels in [0, 1].
    """

    home: str | None
    width: int | None
    depth: int | None
    patch: int
    heads: int
    native: Cut
    mean: Triple
    std: Triple
    activation: Activation = "gelu"
    epsilon: float = 1e-6
    pool: Literal["cls", "map"] | None = "cls"


# (width, depth, heads) by the letter of the size.
_SIZES = {
    "ti": (192, 12, 3),
    "s": (384, 12, 6),
    "b": (768, 12, 12),
    "l": (1024, 24, 16),
    "h": (1280, 32, 16),
    "g": (1536, 40, 24),
    "so400m": (1152, 27, 16),
}


def _augreg(size: str, patch: int, file: str) -> Model:
    width, depth, heads = _SIZES[size]
    return Model(f"timm/{file}/model.safetensors", width, depth, patch, heads, (248, 224), HALF, HALF)


def _deit(size: str, file: str) -> Model:
    width, depth, heads = _SIZES[size]
    return Model(f"timm/{file}/model.safetensors", width, depth, 16, heads, (256, 224), *IMAGENET)


def _dinov2(size: str, name: str) -> Model:
    width, depth, heads = _SIZES[size]
    return Model(f"facebook/{name}/model.safetensors", width, depth, 14, heads, (256, 224), *IMAGENET)


def _clip(size: str, patch: int, name: str) -> Model:
    width, depth, heads = _SIZES[size]
    home = f"timm/{name}/open_clip_model.safetensors"
    return Model(home, width, depth, patch, heads, (224, 224), *CLIP, "quick_gelu", 1e-5)


def _siglip(size: str, patch: int, name: str) -> Model:
    width, depth, heads = _SIZES[size]
    home, native = f"google/{name}/model.safetensors", ((224, 224), 224)
    return Model(home, width, depth, patch, heads, native, HALF, HALF, "gelu_tanh", pool="map")


MODELS: dict[str, Model] = {
    "vit-ti16": _augreg("ti", 16, "vit_tiny_patch16_224.augreg_in21k"),
    "vit-s16": _augreg("s", 16, "vit_small_patch16_224.augreg_in21k"),
    "vit-b16": _augreg("b", 16, "vit_base_patch16_224.augreg_in21k"),
    "vit-b16-in1k": _augreg("b", 16, "vit_base_patch16_224.augreg_in1k"),
    "vit-b32": _augreg("b", 32, "vit_base_patch32_224.augreg_in21k"),
    "vit-l16": _augreg("l", 16, "vit_large_patch16_224.augreg_in21k"),
    "vit-h14": _augreg("h", 14, "vit_huge_patch14_224.orig_in21k"),
    # g (1408 wide, 40 deep) or G (1664, 48): both have 16 heads. The class token is missing in Zhai et al.
    "vit-g14": Model(None, None, None, 14, 16, ((224, 224), 224), HALF, HALF, "gelu_tanh", pool=None),
    "deit-ti16": _deit("ti", "deit_tiny_patch16_224.fb_in1k"),
    "deit-s16": _deit("s", "deit_small_patch16_224.fb_in1k"),
    "deit-b16": _deit("b", "deit_base_patch16_224.fb_in1k"),
    "dinov2-s14": _dinov2("s", "dinov2-small"),
    "dinov2-b14": _dinov2("b", "dinov2-base"),
    "dinov2-l14": _dinov2("l", "dinov2-large"),
    "dinov2-g14": _dinov2("g", "dinov2-giant"),
    "dinov2-s14-reg": _dinov2("s", "dinov2-with-registers-small"),
    "dinov2-b14-reg": _dinov2("b", "dinov2-with-registers-base"),
    "dinov2-l14-reg": _dinov2("l", "dinov2-with-registers-large"),
    "dinov2-g14-reg": _dinov2("g", "dinov2-with-registers-giant"),
    "clip-b32": _clip("b", 32, "vit_base_patch32_clip_224.openai"),
    "clip-b16": _clip("b", 16, "vit_base_patch16_clip_224.openai"),
    "clip-l14": _clip("l", 14, "vit_large_patch14_clip_224.openai"),
    "siglip-b16": _siglip("b", 16, "siglip-base-patch16-224"),
    "siglip-so400m14": _siglip("so400m", 14, "siglip-so400m-patch14-224"),
}


# What timm (`vision_transformer.py`) and OpenCLIP (`pretrained.py`) list as trained with QuickGELU.
_QUICK = {"openai", "metaclip_400m", "metaclip_2pt5b", "dfn2b", "dfn5b"}
_QUICK_32 = {"laion400m_e31", "laion400m_e32"}


def clip_activation(config: Mapping[str, Any]) -> Activation | None:
    """What a CLIP was trained with by a config.json without `hidden_act`: timm's, or transformers', which leaves out
    its default when it saves. None where it is neither's.
    """
    inner = config.get("vision_config")
    kinds = [each.get("model_type") for each in (config, inner) if isinstance(each, dict)]
    if any(str(kind).startswith("clip") for kind in kinds):
        return "quick_gelu"
    architecture = config.get("architecture")
    if not isinstance(architecture, str):
        return None
    known = config.get("pretrained_cfg")
    known = known if isinstance(known, dict) else config
    said = json.dumps([architecture, config.get("model_args"), known.get("notes")]).lower().replace("_", "")
    quick = _QUICK | _QUICK_32 if "patch32" in architecture else _QUICK
    return "quick_gelu" if "quickgelu" in said or str(known.get("tag")) in quick else "gelu"


def geometry(name: str, preprocess: str) -> "Geometry":
    """How the pictures are cut: as the paper does, or by the model's native recipe. Bicubic in any case."""
    from dpfc_cli.backbones.geometry import Geometry

    return Geometry(*(PAPER if preprocess == "paper" else MODELS[name].native))


def check(name: str, pool: str | None, weights: str | None) -> None:
    """UserError for what the table alone shows to be impossible."""
    model = MODELS[name]
    if pool == "none":
        raise UserError(
            f"{name} gives one vector per picture; --pool none is scattering's.",
            "Leave --pool away, or choose cls, mean or map.",
        )
    if weights is None and model.home is None:
        raise UserError(f"The weights of {name} were never published.", "Name a file of your own with --weights.")
    # Weights of the user's own may have other tokens than the published ones: then their file decides.
    if weights is None and pool not in (None, "mean", model.pool):
        raise UserError(
            f"{name} has no '{pool}' feature: its published weights "
            + ("have no attention pooling." if pool == "map" else "have no class token."),
            f"Leave --pool away for '{model.pool}', or choose mean.",
        )
