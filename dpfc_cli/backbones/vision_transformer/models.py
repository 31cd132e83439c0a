"""The table of Vision Transformers: where their weights are published, and what the weights do not show.

The shapes of the tensors show width, depth, patch size and tokens. They do not show the number of heads, the
activation, the epsilon of the normalisations or the preprocessing. Each model has one file of weights, that of its
publisher, and so these facts are known. (Whoever has weights of their own runs them by another family.)

- `vit-*` are the AugReg models (Steiner et al. 2021), pre-trained on ImageNet-21k, and `vit-b16-in1k` on ImageNet-1k
  alone. They were trained with the tanh form of GELU. All other libraries run them with the exact form, and so do we.
- `vit-h14` is from the first ViT paper (Dosovitskiy et al. 2021).
- The CLIP models are OpenAI's, which were trained with QuickGELU.

**Models of clinical fields.** Where each fact of their rows is from:

- `rad-dino` (Pérez-García et al. 2024): the model card says DINOv2-B/14 and 37 × 37 patches, so 518 pixels. Mean and
  standard deviation are as users of its preprocessor_config.json state them. We have not seen that file.
- `medsiglip` (Sellergren et al. 2025): the model card says SigLIP-400M at 448 pixels. Resizing and statistics are those
  of its preprocessor_config.json, as a copy of the repository has it: squares, bicubic.
- `phikon` (Filiot et al. 2023): a ViT-B/16 of transformers. Its config.json states the epsilon (that of timm). The
  resizing is that of transformers for a ViT: squares, bilinear. ImageNet's statistics are as TRIDENT has them.
- `phikon-v2` (Filiot et al. 2024): a DINOv2 of transformers with patches of 16. Pixels and statistics are those of the
  paper. That its resizing is bicubic is what DINOv2's usually is; we have not seen its file. (TRIDENT: bilinear.
  Pictures of 224 pixels are not resized at all.)
- `virchow2` (Zimmermann et al. 2024): architecture, bicubic resizing and statistics as TRIDENT has them; the feature is
  the model card's: the class token and the mean of the patches' tokens without the four registers, 2,560 numbers.

Their weights have no pin, because we could not establish which bytes are the published ones.

The recipe `native` is the one that the publisher evaluates with: timm for AugReg (its crop is 0.9 of the shorter side),
the authors of the papers for all others.
"""

from dataclasses import dataclass, replace
from typing import Literal

from dpfc_cli.backbones.hub import File
from dpfc_cli.backbones.vision_transformer.names import OPENAI, TIMM, TRANSFORMERS, Names
from dpfc_cli.geometry import IMAGENET, Geometry, Triple

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]

HALF: Triple = (0.5, 0.5, 0.5)
CLIP: tuple[Triple, Triple] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the models of one publisher have in common.

    Attributes:
        names: what the tensors are called in the file.
        native: the geometry of the publisher's own preprocessing.
        mean: per colour, of pixels in [0, 1].
        std: per colour, of pixels in [0, 1].
        activation: of the MLPs.
        epsilon: of the normalisations.
        pool: the pooling of the published feature.
        recipe: the preprocessing unless the user names one.
        text: which kind of text tower the file has beside it (`extensions.starts.text`); None: it has none.

    """

    names: Names
    native: Geometry
    mean: Triple
    std: Triple
    activation: Activation = "gelu"
    epsilon: float = 1e-6
    pool: Literal["cls", "map", "cls+mean"] = "cls"
    recipe: Literal["paper", "native"] = "paper"
    text: Literal["clip", "siglip"] | None = None


@dataclass(frozen=True, kw_only=True)
class Model(Published):
    """One model of the table.

    Attributes:
        file: its weights.
        width: of a token.
        depth: number of blocks.
        heads: number of attention heads.
        patch: side of a patch, in pixels.

    """

    file: File
    width: int
    depth: int
    heads: int
    patch: int

    @property
    def dimensions(self) -> int:
        """The length of a feature vector: twice the width where the model's own feature joins two tokens."""
        return 2 * self.width if self.pool == "cls+mean" else self.width


_SIZES = {
    "ti": (192, 12, 3),
    "s": (384, 12, 6),
    "b": (768, 12, 12),
    "l": (1024, 24, 16),
    "h": (1280, 32, 16),
    "g": (1536, 40, 24),
    "so400m": (1152, 27, 16),
}
"""Width, depth and heads of each size."""


def _model(publisher: Published, size: str, patch: int, file: File | str) -> Model:
    width, depth, heads = _SIZES[size]
    file = file if isinstance(file, File) else File(repository=file)
    return Model(**vars(publisher), file=file, width=width, depth=depth, heads=heads, patch=patch)


_SHORTER = Geometry(resize=224, crop=224)
_SQUARE = Geometry(resize=(224, 224), crop=224)
_SQUARE_BILINEAR = Geometry(resize=(224, 224), crop=224, filter="bilinear")

_AUGREG = Published(names=TIMM, native=Geometry(resize=248, crop=224), mean=HALF, std=HALF)
_IMAGENET = Published(names=TIMM, native=Geometry(resize=256, crop=224), mean=IMAGENET[0], std=IMAGENET[1])
_DINOV2 = replace(_IMAGENET, names=TRANSFORMERS)
_CLIP = Published(
    names=OPENAI, native=_SHORTER, mean=CLIP[0], std=CLIP[1], activation="quick_gelu", epsilon=1e-5, text="clip"
)
_SIGLIP = Published(
    names=TRANSFORMERS, native=_SQUARE, mean=HALF, std=HALF, activation="gelu_tanh", pool="map", text="siglip"
)
# Users of a model of a clinical field know it by its publisher's preprocessing.
_CLINICAL = replace(_DINOV2, native=_SHORTER, recipe="native")
_RAD_DINO = replace(
    _CLINICAL, native=Geometry(resize=518, crop=518), mean=(0.5307, 0.5307, 0.5307), std=(0.2583, 0.2583, 0.2583)
)
_MEDSIGLIP = replace(_SIGLIP, native=Geometry(resize=(448, 448), crop=448), recipe="native")

# Commits and digests are those that several independent projects state alike. A wrong one would refuse honest weights.
_DINOV2_S = File(
    repository="facebook/dinov2-small",
    commit="ed25f3a31f01632728cabb09d1542f84ab7b0056",
    sha256="ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1",
)
_DINOV2_L = File(
    repository="facebook/dinov2-large",
    commit="47b73eefe95e8d44ec3623f8890bd894b6ea2d6c",
    sha256="399fba97a95f22c36834418bc69373364a99af3a1153da1c0fb31db567c92e23",
)
_SIGLIP_B = File(
    repository="google/siglip-base-patch16-224",
    commit="7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed",
    sha256="2c63cb7d1f2e95ba501893cbb8faeb4ea9a3af295498d35097126228659c2af8",
)


def _openai(name: str) -> File:
    return File(repository=f"timm/{name}.openai", name="open_clip_model.safetensors")


MODELS: dict[str, Model] = {
    "vit-ti16": _model(_AUGREG, "ti", 16, "timm/vit_tiny_patch16_224.augreg_in21k"),
    "vit-s16": _model(_AUGREG, "s", 16, "timm/vit_small_patch16_224.augreg_in21k"),
    "vit-b16": _model(_AUGREG, "b", 16, "timm/vit_base_patch16_224.augreg_in21k"),
    "vit-b16-in1k": _model(_AUGREG, "b", 16, "timm/vit_base_patch16_224.augreg_in1k"),
    "vit-b32": _model(_AUGREG, "b", 32, "timm/vit_base_patch32_224.augreg_in21k"),
    "vit-l16": _model(_AUGREG, "l", 16, "timm/vit_large_patch16_224.augreg_in21k"),
    "vit-h14": _model(_AUGREG, "h", 14, "timm/vit_huge_patch14_224.orig_in21k"),
    "deit-ti16": _model(_IMAGENET, "ti", 16, "timm/deit_tiny_patch16_224.fb_in1k"),
    "deit-s16": _model(_IMAGENET, "s", 16, "timm/deit_small_patch16_224.fb_in1k"),
    "deit-b16": _model(_IMAGENET, "b", 16, "timm/deit_base_patch16_224.fb_in1k"),
    "dinov2-s14": _model(_DINOV2, "s", 14, _DINOV2_S),
    "dinov2-b14": _model(_DINOV2, "b", 14, "facebook/dinov2-base"),
    "dinov2-l14": _model(_DINOV2, "l", 14, _DINOV2_L),
    "dinov2-g14": _model(_DINOV2, "g", 14, "facebook/dinov2-giant"),
    "dinov2-s14-reg": _model(_DINOV2, "s", 14, "facebook/dinov2-with-registers-small"),
    "dinov2-b14-reg": _model(_DINOV2, "b", 14, "facebook/dinov2-with-registers-base"),
    "dinov2-l14-reg": _model(_DINOV2, "l", 14, "facebook/dinov2-with-registers-large"),
    "dinov2-g14-reg": _model(_DINOV2, "g", 14, "facebook/dinov2-with-registers-giant"),
    "clip-b32": _model(_CLIP, "b", 32, _openai("vit_base_patch32_clip_224")),
    "clip-b16": _model(_CLIP, "b", 16, _openai("vit_base_patch16_clip_224")),
    "clip-l14": _model(_CLIP, "l", 14, _openai("vit_large_patch14_clip_224")),
    "siglip-b16": _model(_SIGLIP, "b", 16, _SIGLIP_B),
    "siglip-so400m14": _model(_SIGLIP, "so400m", 14, "google/siglip-so400m-patch14-224"),
    "rad-dino": _model(_RAD_DINO, "b", 14, "microsoft/rad-dino"),
    "medsiglip": _model(_MEDSIGLIP, "so400m", 14, "google/medsiglip-448"),
    "phikon": _model(replace(_CLINICAL, native=_SQUARE_BILINEAR), "b", 16, "owkin/phikon"),
    "phikon-v2": _model(_CLINICAL, "l", 16, "owkin/phikon-v2"),
    "virchow2": _model(replace(_CLINICAL, names=TIMM, pool="cls+mean"), "h", 14, "paige-ai/Virchow2"),
}
