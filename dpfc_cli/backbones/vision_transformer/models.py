"""The table of Vision Transformers: where their weights are published, and what the weights do not show.

The shapes of the tensors show width, depth, patch size and tokens. They do not show the number of heads, the
activation, the epsilon of the normalisations or the preprocessing. What files beside the weights state of them is used
before this table, or refused (`backbones.stated`).

OpenAI and some others trained CLIP models with QuickGELU; LAION and most others used GELU. Weights from an unknown
source must say which. Both activations give features, but with the wrong one the features are bad.

- `vit-*` are the AugReg models (Steiner et al. 2021), pre-trained on ImageNet-21k, and `vit-b16-in1k` on ImageNet-1k
  alone. They were trained with the tanh form of GELU. All other libraries run them with the exact form, and so do we.
- `vit-h14` is from the first ViT paper (Dosovitskiy et al. 2021).
- `vit-g14` (Zhai et al. 2022, trained on JFT) was never published.

**Models of clinical fields.** Where each fact of their rows is from:

- `rad-dino` (Pérez-García et al. 2024): the model card says DINOv2-B/14 and 37 × 37 patches, so 518 pixels. Mean and
  standard deviation are as users of its preprocessor_config.json state them. We have not seen that file.
- `medsiglip` (Sellergren et al. 2025): the model card says SigLIP-400M at 448 pixels. Resizing and statistics are those
  of its preprocessor_config.json, as a copy of the repository has it: squares, bicubic.
- `biomedclip` (Zhang et al. 2023): its open_clip_config.json says timm's ViT-B/16 without a pooling of its own (so the
  class token) and CLIP's statistics. The resizing is open_clip's usual one. The feature is the vector before the
  projection.
- `phikon` (Filiot et al. 2023): a ViT-B/16 of transformers. Its config.json states the epsilon (that of timm). The
  resizing is that of transformers for a ViT: squares, bilinear. ImageNet's statistics are as TRIDENT has them.
- `phikon-v2` (Filiot et al. 2024): a DINOv2 of transformers with patches of 16. Pixels and statistics are those of the
  paper. That its resizing is bicubic is what DINOv2's usually is; we have not seen its file. (TRIDENT: bilinear.
  Pictures of 224 pixels are not resized at all.)
- `uni` (Chen et al. 2024), `uni2-h`: architecture and preprocessing as the model cards' code and TRIDENT have them. The
  publisher's file is a pickle.
- `virchow2` (Zimmermann et al. 2024): architecture, bicubic resizing and statistics as TRIDENT has them; the feature is
  the model card's: the class token and the mean of the patches' tokens without the four registers, 2,560 numbers.

Their weights have no pin, because we could not establish which bytes are the published ones.

The recipe `native` is the one that the publisher evaluates with: timm for AugReg (its crop is 0.9 of the shorter side),
the authors of the papers for all others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpfc_cli.backbones.hub import Pin, Published
from dpfc_cli.backbones.stated import Activation
from dpfc_cli.geometry import IMAGENET, Geometry, Triple

HALF: Triple = (0.5, 0.5, 0.5)
CLIP: tuple[Triple, Triple] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True, kw_only=True)
class Model(Published):
    """One model of the table.

    Attributes:
        depth: number of blocks. The weights must have it; None if the name does not say.
        patch: side of a patch, in pixels. The weights must have it.
        heads: used if neither the shapes nor the files beside them show it. The same for activation and epsilon.
        native: the geometry of the publisher's own preprocessing.
        mean: per colour, of pixels in [0, 1].
        std: per colour, of pixels in [0, 1].
        activation: of the MLPs.
        epsilon: of the normalisations.
        pool: the pooling of the published feature; None if there are no published weights.
        recipe: the preprocessing unless the user names one.
        pickle: `owner/name/file` on the hub, if the publisher has nothing but a pickle there.
        gated: the publisher gives the file only to whom accepted its terms.

    """

    home: str | None
    width: int | None
    depth: int | None
    patch: int
    heads: int
    native: Geometry
    mean: Triple
    std: Triple
    activation: Activation = "gelu"
    epsilon: float = 1e-6
    pool: Literal["cls", "map", "cls+mean"] | None = "cls"
    recipe: Literal["paper", "native"] = "paper"
    pickle: str | None = None
    gated: bool = False

    @property
    def dimensions(self) -> int | None:
        """The width of a token, or twice that where the model's own feature joins two of them."""
        return 2 * self.width if self.width is not None and self.pool == "cls+mean" else self.width

    @property
    def repository(self) -> str | None:
        return super().repository if self.pickle is None else self.pickle.rpartition("/")[0]


# Width, depth and heads of each size.
_SIZES: dict[str, tuple[int | None, int | None, int]] = {
    "ti": (192, 12, 3),
    "s": (384, 12, 6),
    "b": (768, 12, 12),
    "l": (1024, 24, 16),
    "h": (1280, 32, 16),
    "g": (1536, 40, 24),
    "g?": (None, None, 16),
    "so400m": (1152, 27, 16),
    "uni2-h": (1536, 24, 24),
}


def _model(
    size: str, patch: int, home: str | None, *, native: Geometry, statistics: tuple[Triple, Triple], **facts: Any
) -> Model:
    (width, depth, heads), (mean, std) = _SIZES[size], statistics
    return Model(
        home=home, width=width, depth=depth, patch=patch, heads=heads, native=native, mean=mean, std=std, **facts
    )


_SHORTER = Geometry(resize=224, crop=224)
_BILINEAR = Geometry(resize=224, crop=224, filter="bilinear")
_SQUARE = Geometry(resize=(224, 224), crop=224)
_SQUARE_BILINEAR = Geometry(resize=(224, 224), crop=224, filter="bilinear")

# What the models of one publisher have in common.
_AUGREG: dict[str, Any] = {"native": Geometry(resize=248, crop=224), "statistics": (HALF, HALF)}
_DEIT: dict[str, Any] = {"native": Geometry(resize=256, crop=224), "statistics": IMAGENET}
_DINOV2 = _DEIT
_CLIP: dict[str, Any] = {
    "native": _SHORTER,
    "statistics": CLIP,
    "activation": "quick_gelu",
    "epsilon": 1e-5,
    "text": "clip",
}
_SIGLIP: dict[str, Any] = {
    "native": _SQUARE,
    "statistics": (HALF, HALF),
    "activation": "gelu_tanh",
    "pool": "map",
    "text": "siglip",
}
# Users of a model of a clinical field know it by its publisher's preprocessing.
_CLINICAL: dict[str, Any] = {"statistics": IMAGENET, "recipe": "native"}

# Pins are those that several independent projects state alike. A wrong one would refuse honest weights.
_DINOV2_S = Pin(
    commit="ed25f3a31f01632728cabb09d1542f84ab7b0056",
    sha256="ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1",
)
_DINOV2_L = Pin(
    commit="47b73eefe95e8d44ec3623f8890bd894b6ea2d6c",
    sha256="399fba97a95f22c36834418bc69373364a99af3a1153da1c0fb31db567c92e23",
)
_SIGLIP_B = Pin(
    commit="7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed",
    sha256="2c63cb7d1f2e95ba501893cbb8faeb4ea9a3af295498d35097126228659c2af8",
)

MODELS: dict[str, Model] = {
    "vit-ti16": _model("ti", 16, "timm/vit_tiny_patch16_224.augreg_in21k/model.safetensors", **_AUGREG),
    "vit-s16": _model("s", 16, "timm/vit_small_patch16_224.augreg_in21k/model.safetensors", **_AUGREG),
    "vit-b16": _model("b", 16, "timm/vit_base_patch16_224.augreg_in21k/model.safetensors", **_AUGREG),
    "vit-b16-in1k": _model("b", 16, "timm/vit_base_patch16_224.augreg_in1k/model.safetensors", **_AUGREG),
    "vit-b32": _model("b", 32, "timm/vit_base_patch32_224.augreg_in21k/model.safetensors", **_AUGREG),
    "vit-l16": _model("l", 16, "timm/vit_large_patch16_224.augreg_in21k/model.safetensors", **_AUGREG),
    "vit-h14": _model("h", 14, "timm/vit_huge_patch14_224.orig_in21k/model.safetensors", **_AUGREG),
    # Its size is g (1408 wide, 40 deep) or G (1664, 48), both with 16 heads. Zhai et al. use no class token.
    "vit-g14": _model("g?", 14, None, native=_SQUARE, statistics=(HALF, HALF), activation="gelu_tanh", pool=None),
    "deit-ti16": _model("ti", 16, "timm/deit_tiny_patch16_224.fb_in1k/model.safetensors", **_DEIT),
    "deit-s16": _model("s", 16, "timm/deit_small_patch16_224.fb_in1k/model.safetensors", **_DEIT),
    "deit-b16": _model("b", 16, "timm/deit_base_patch16_224.fb_in1k/model.safetensors", **_DEIT),
    "dinov2-s14": _model("s", 14, "facebook/dinov2-small/model.safetensors", pin=_DINOV2_S, **_DINOV2),
    "dinov2-b14": _model("b", 14, "facebook/dinov2-base/model.safetensors", **_DINOV2),
    "dinov2-l14": _model("l", 14, "facebook/dinov2-large/model.safetensors", pin=_DINOV2_L, **_DINOV2),
    "dinov2-g14": _model("g", 14, "facebook/dinov2-giant/model.safetensors", **_DINOV2),
    "dinov2-s14-reg": _model("s", 14, "facebook/dinov2-with-registers-small/model.safetensors", **_DINOV2),
    "dinov2-b14-reg": _model("b", 14, "facebook/dinov2-with-registers-base/model.safetensors", **_DINOV2),
    "dinov2-l14-reg": _model("l", 14, "facebook/dinov2-with-registers-large/model.safetensors", **_DINOV2),
    "dinov2-g14-reg": _model("g", 14, "facebook/dinov2-with-registers-giant/model.safetensors", **_DINOV2),
    "clip-b32": _model("b", 32, "timm/vit_base_patch32_clip_224.openai/open_clip_model.safetensors", **_CLIP),
    "clip-b16": _model("b", 16, "timm/vit_base_patch16_clip_224.openai/open_clip_model.safetensors", **_CLIP),
    "clip-l14": _model("l", 14, "timm/vit_large_patch14_clip_224.openai/open_clip_model.safetensors", **_CLIP),
    "siglip-b16": _model("b", 16, "google/siglip-base-patch16-224/model.safetensors", pin=_SIGLIP_B, **_SIGLIP),
    "siglip-so400m14": _model("so400m", 14, "google/siglip-so400m-patch14-224/model.safetensors", **_SIGLIP),
    "rad-dino": _model(
        "b",
        14,
        "microsoft/rad-dino/model.safetensors",
        native=Geometry(resize=518, crop=518),
        statistics=((0.5307, 0.5307, 0.5307), (0.2583, 0.2583, 0.2583)),
        recipe="native",
    ),
    "medsiglip": _model(
        "so400m",
        14,
        "google/medsiglip-448/model.safetensors",
        gated=True,
        **_SIGLIP | {"native": Geometry(resize=(448, 448), crop=448), "recipe": "native"},
    ),
    "biomedclip": _model(
        "b",
        16,
        None,
        native=_SHORTER,
        statistics=CLIP,
        recipe="native",
        pickle="microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224/open_clip_pytorch_model.bin",
    ),
    "phikon": _model("b", 16, "owkin/phikon/model.safetensors", native=_SQUARE_BILINEAR, **_CLINICAL),
    "phikon-v2": _model("l", 16, "owkin/phikon-v2/model.safetensors", native=_SHORTER, **_CLINICAL),
    "uni": _model("l", 16, None, native=_BILINEAR, pickle="MahmoodLab/UNI/pytorch_model.bin", gated=True, **_CLINICAL),
    "uni2-h": _model(
        "uni2-h", 14, None, native=_BILINEAR, pickle="MahmoodLab/UNI2-h/pytorch_model.bin", gated=True, **_CLINICAL
    ),
    "virchow2": _model(
        "h", 14, "paige-ai/Virchow2/model.safetensors", native=_SHORTER, pool="cls+mean", gated=True, **_CLINICAL
    ),
}


# The models that timm (`vision_transformer.py`) and OpenCLIP (`pretrained.py`) list as trained with QuickGELU.
_QUICK = {"openai", "metaclip_400m", "metaclip_2pt5b", "dfn2b", "dfn5b"}
_QUICK_32 = {"laion400m_e31", "laion400m_e32"}


def unstated_activation(config: Mapping[str, Any], usual: Activation) -> Activation | None:
    """The activation that a model was trained with, from a config.json that does not state it, by timm or by
    transformers, which does not save its default values for CLIP. usual: that of the table. None if the table's is that
    of some CLIP models, and the file is by neither of them.
    """
    inner = config.get("vision_config")
    kinds = [each.get("model_type") for each in (config, inner) if isinstance(each, dict)]
    if any(str(kind).startswith("clip") for kind in kinds):
        return "quick_gelu"
    architecture = config.get("architecture")
    if not isinstance(architecture, str):
        return None if usual == "quick_gelu" else usual
    known = config.get("pretrained_cfg")
    known = known if isinstance(known, dict) else config
    said = json.dumps([architecture, config.get("model_args"), known.get("notes")]).lower().replace("_", "")
    quick = _QUICK | _QUICK_32 if "patch32" in architecture else _QUICK
    if "quickgelu" in said or str(known.get("tag")) in quick:
        return "quick_gelu"
    return "gelu" if usual == "quick_gelu" else usual
