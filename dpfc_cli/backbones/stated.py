"""What the files beside weights state of their use: config.json (of timm or transformers), preprocessor_config.json or
processor_config.json (transformers) and open_clip_config.json.

It is used. It is refused where two statements differ, where one differs from the tensors or from the recipe `native`,
and where dpfc does not know what one means. (`paper` has sizes of its own.) What the published weights of a model need
is in the table: beside them, only config.json is read, and not timm's arguments.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

from dpfc_cli.backbones.hub import Located, Published
from dpfc_cli.errors import conflict, damaged, parameter, unsupported
from dpfc_cli.geometry import Geometry

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
_WORDS: dict[str, dict[Any, Any]] = {
    "activation": {"gelu": "gelu", "quick_gelu": "quick_gelu"}
    | dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_tanh"), "gelu_tanh"),
    "pool": {"token": "cls", "tok": "cls", "avg": "mean", "map": "map", "": None},
    "filter": {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"},
}
# The name of each fact in the config.json of transformers, in timm's model_args, in open_clip's section of the tower,
# in timm's pretrained_cfg, in open_clip's preprocess_cfg, and in the file of transformers about pixels.
_NAMES = {
    "heads": ("num_attention_heads", "num_heads", "heads"),
    "epsilon": ("layer_norm_eps", "norm_eps"),
    "activation": ("hidden_act", "act_layer"),
    "width": ("hidden_size", "embed_dim", "width"),
    "depth": ("num_hidden_layers", "depth", "layers"),
    "patch": ("patch_size", "patch_size", "patch_size"),
    "image": ("image_size", "img_size", "image_size"),
    "pool": ("global_pool", "global_pool", "timm_pool"),
    "mean": ("", "", "", "mean", "mean", "image_mean"),
    "std": ("", "", "", "std", "std", "image_std"),
    "filter": ("", "", "", "interpolation", "interpolation", "resample"),
}
# What else timm and open_clip may say of a network: tensors show it, or it is of training alone.
_HARMLESS = re.compile(
    "in_chans|num_classes|mlp_ratio|qkv_bias|init_values|class_token|reg_tokens|no_embed_class|(pre|fc|final)_norm|"
    "dynamic_img_size|.*drop.*|weight_init|fix_init|output_tokens|timm_(model_name|model_pretrained|proj|proj_bias)|"
    + "|".join(filter(None, (name for names in _NAMES.values() for name in names)))
)


def stated(
    located: Located, model: Published, native: Geometry | None = None, tower: str = "vision", **shown: Any
) -> dict[str, Any]:
    """The facts stated: heads, epsilon, activation, pool, mean and std, as far as they are.

    native: how pictures are resized, if it is as the model's authors do. tower: `vision` or `text`. shown: facts that
    the weights show, or that the network has in any case; None: not seen. UserError: see above, or a value makes no
    sense.
    """
    own = located.id != f"hf:{model.home}"
    known = shown | (vars(native) if native is not None else {})
    facts = {name: value for name, value in known.items() if own and value is not None}
    optional = {"heads", "epsilon", "activation", "pool", "mean", "std", "rescale"}
    for name, value in _statements(located, own, tower):
        if name in ("image", "crop", "patch") and isinstance(value, tuple):
            raise unsupported(f"'{located.id}' is for pictures that are no squares.", "Use another checkpoint.")
        if value is None or name not in optional.union(facts):
            continue
        if name in optional and not _makes_sense(name, value):
            raise damaged(
                f"Beside '{located.id}' stands {name} {value!r}, which makes no sense to dpfc.",
                f"Get the files that belong to the weights. Activations can be: {', '.join(_WORDS['activation'])}.",
            )
        if facts.setdefault(name, value) != value:
            raise conflict(
                f"Beside '{located.id}' stands {name} {value!r}. Its tensors, its files or {parameter('preprocess')} "
                f"say {facts[name]!r}.",
                "Get the files that belong to the weights. If only sizes or a filter differ, choose "
                f"{parameter('preprocess')} paper.",
                fact=name,
            )
    return facts


def _makes_sense(name: str, value: Any) -> bool:
    if name in ("mean", "std"):
        triple = isinstance(value, tuple) and len(value) == 3 and all(type(v) is float and 0 <= v <= 1 for v in value)
        return triple and (name == "mean" or 0 not in value)
    if name == "heads":
        return type(value) is int and value > 0
    if name in _WORDS:
        return value in _WORDS[name].values()
    return type(value) is float and (0 < value < 1 if name == "epsilon" else abs(255 * value - 1) < 1e-3)


def _statements(located: Located, own: bool, tower: str) -> Iterator[tuple[str, Any]]:
    """Each fact and what one file states of it, in the terms of dpfc; None where it states nothing."""
    config, others = located.config, located.others
    clip, pixels = (_inside(others.get("open_clip_config.json"), f"{key}_cfg") for key in ("model", "preprocess"))
    inner, part = _inside(config, f"{tower}_config"), _inside(clip, f"{tower}_cfg")
    arguments = _inside(config, "model_args") if own and tower == "vision" else {}
    timm = _inside(config, "pretrained_cfg") or config
    # Since its version 5, transformers may write one file for all processors of a model.
    processor = _inside(others.get("processor_config.json"), "image_processor")
    processor = others.get("preprocessor_config.json") or processor
    if processor.get("do_normalize") is False:
        processor = {**processor, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}
    for key in (*arguments, *(part if tower == "vision" else ())):
        if not _HARMLESS.fullmatch(key):
            what = f"Beside '{located.id}' stands '{key}': dpfc does not know what it changes."
            raise unsupported(what, "Use another checkpoint.", fact=key)
    for name, keys in _NAMES.items():
        # Outside `text_config` a number of heads is the vision tower's.
        network = inner if (name, tower) == ("heads", "text") else inner or config
        for said, key in zip((network, arguments, part, timm, pixels, processor), keys, strict=False):
            yield name, _term(name, said.get(key))
    if clip and "timm_model_name" not in part:
        yield "activation", "quick_gelu" if clip.get("quick_gelu") else "gelu"
    for said, ahead in ((timm, ""), (pixels, ""), (processor, "image_")):
        yield "std", () if (f"{ahead}mean" in said) != (f"{ahead}std" in said) else None
    yield "rescale", processor.get("do_rescale") is not False and processor.get("rescale_factor", 1 / 255)
    shape = timm.get("input_size")
    yield from _square(shape[1:] if isinstance(shape, list) else None, timm.get("crop_pct"), timm.get("crop_mode"))
    yield from _square(pixels.get("size"), 1, pixels.get("resize_mode"))
    size, shorter = processor.get("size"), "shortest_edge"
    # The size was a number before it had names: of these, the length of the shorter side.
    kind = str(processor.get("feature_extractor_type", processor.get("image_processor_type")))
    if not isinstance(size, dict):
        size = {shorter: size} if kind.startswith("CLIP") else {"height": size, "width": size}
    mode, size = ("center", size[shorter]) if shorter in size else ("squash", size)
    crop = processor.get("crop_size") if processor.get("do_center_crop") else size
    yield from _square(crop, processor.get("crop_pct"), mode, size)


def _square(crop: Any, part: Any, mode: Any, size: Any = None) -> Iterator[tuple[str, Any]]:
    """The square that is cut out, and how pictures are resized before: to a size, or so that it is a part of them."""
    crop, size = _term("crop", crop), _term("resize", size)
    if isinstance(crop, int) and isinstance(part, int | float) and crop < 1e6 and part > 0.01:
        size = int(crop / part)
    yield "crop", crop
    if size is not None:
        yield "resize", (size, size) if mode == "squash" else size if mode in (None, "center", "shortest") else mode


def _inside(said: dict[str, Any] | None, key: str) -> dict[str, Any]:
    found = (said or {}).get(key)
    return found if isinstance(found, dict) else {}


def _term(name: str, said: Any) -> Any:
    """A statement in the terms of dpfc. Of a square it is the side; sides that differ are a pair."""
    if name in _WORDS:
        return _WORDS[name].get(said, said) if isinstance(said, str | int) else said
    if isinstance(said, dict) and {"height", "width"} <= set(said):
        said = [said["height"], said["width"]]
    if not isinstance(said, list):
        return said
    found = tuple(float(each) if name in ("mean", "std") and each in (0, 1) else each for each in said)
    return found[0] if len(found) == 2 and found[0] == found[1] else found
