"""The names of tensors in checkpoints of Vision Transformers: for each library one table, to the names of `vit`.

Two dense layers are never used, although they follow the final normalisation: `pre_logits` of the first ImageNet-21k
checkpoints (timm removed it, and AugReg trained without it), and `pooler` of the transformers library, which is the
same layer or, for DINOv2, does nothing. The projections of CLIP are not used either: linear classifiers are better
before them than after them.
"""

from dpfc_cli.backbones.checkpoint import Dialect

TIMM = Dialect(
    name="timm",
    # open_clip names a vision tower of timm like this (BiomedCLIP).
    prefixes=("", "module.", "model.", "visual.trunk."),
    block=r"blocks\.(?:\d+\.)?(\d+)\.(.+)",
    outer={
        "patch_embed.proj": "patch",
        "cls_token": "cls",
        "dist_token": "dist",
        "reg_token": "registers",
        "register_tokens": "registers",
        "pos_embed": "position",
        "norm_pre": "prenorm",
        "norm": "norm",
        "fc_norm": "fc_norm",
        "attn_pool.latent": "map.probe",
        "attn_pool.q": "map.q",
        "attn_pool.kv": "map.kv",
        "attn_pool.proj": "map.out",
        "attn_pool.norm": "map.norm",
        "attn_pool.mlp.fc1": "map.fc1",
        "attn_pool.mlp.fc2": "map.fc2",
    },
    inner={
        "norm1": "norm1",
        "attn.qkv": "qkv",
        "attn.proj": "out",
        "ls1.gamma": "scale1",
        "gamma_1": "scale1",
        "norm2": "norm2",
        "mlp.fc1": "fc1",
        "mlp.w12": "fc1",
        "mlp.fc2": "fc2",
        "mlp.w3": "fc2",
        "ls2.gamma": "scale2",
        "gamma_2": "scale2",
    },
    ignored=("head.*", "head_dist.*", "pre_logits.*", "mask_token", "visual.head.*", "text.*", "logit_scale"),
    classifiers=("head.weight",),
)

# One table for this library's ViT, DeiT, DINOv2, CLIP and SigLIP, both before its version 5 and since.
TRANSFORMERS = Dialect(
    name="transformers",
    prefixes=("", "vit.", "deit.", "dinov2.", "dinov2_with_registers.", "vision_model."),
    block=r"(?:encoder\.layers?|layers?)\.(\d+)\.(.+)",
    outer={
        "embeddings.patch_embeddings.projection": "patch",
        "embeddings.patch_embedding": "patch",
        "embeddings.cls_token": "cls",
        "embeddings.class_embedding": "cls",
        "embeddings.distillation_token": "dist",
        "embeddings.register_tokens": "registers",
        "embeddings.position_embeddings": "position",
        "embeddings.position_embedding.weight": "position",
        "pre_layrnorm": "prenorm",
        "layernorm": "norm",
        "post_layernorm": "norm",
        "head.probe": "map.probe",
        "head.attention.in_proj_weight": "map.qkv.weight",
        "head.attention.in_proj_bias": "map.qkv.bias",
        "head.attention.out_proj": "map.out",
        "head.layernorm": "map.norm",
        "head.mlp.fc1": "map.fc1",
        "head.mlp.fc2": "map.fc2",
    },
    inner={
        "layernorm_before": "norm1",
        "norm1": "norm1",
        "layer_norm1": "norm1",
        "attention.attention.query": "q",
        "attention.attention.key": "k",
        "attention.attention.value": "v",
        "attention.q_proj": "q",
        "attention.k_proj": "k",
        "attention.v_proj": "v",
        "self_attn.q_proj": "q",
        "self_attn.k_proj": "k",
        "self_attn.v_proj": "v",
        "attention.output.dense": "out",
        "attention.o_proj": "out",
        "self_attn.out_proj": "out",
        "layer_scale1.lambda1": "scale1",
        "layernorm_after": "norm2",
        "norm2": "norm2",
        "layer_norm2": "norm2",
        "intermediate.dense": "fc1",
        "mlp.fc1": "fc1",
        "mlp.weights_in": "fc1",
        "mlp.gate_proj": "gate",
        "mlp.up_proj": "up",
        "output.dense": "fc2",
        "mlp.fc2": "fc2",
        "mlp.weights_out": "fc2",
        "mlp.down_proj": "fc2",
        "layer_scale2.lambda1": "scale2",
    },
    ignored=(
        "classifier.*",
        "cls_classifier.*",
        "distillation_classifier.*",
        "pooler.*",
        "embeddings.mask_token",
        "embeddings.position_ids",
        "text_model.*",
        "text_projection.*",
        "visual_projection.*",
        "logit_scale",
        "logit_bias",
    ),
    classifiers=("classifier.weight", "cls_classifier.weight"),
)

OPENAI = Dialect(
    name="OpenAI CLIP",
    prefixes=("visual.",),
    block=r"transformer\.resblocks\.(\d+)\.(.+)",
    outer={
        "conv1": "patch",
        "class_embedding": "cls",
        "positional_embedding": "position",
        "ln_pre": "prenorm",
        "ln_post": "norm",
    },
    inner={
        "ln_1": "norm1",
        "attn.in_proj_weight": "qkv.weight",
        "attn.in_proj_bias": "qkv.bias",
        "attn.out_proj": "out",
        "ln_2": "norm2",
        "mlp.c_fc": "fc1",
        "mlp.c_proj": "fc2",
    },
    ignored=(
        "proj",
        "transformer.*",
        "token_embedding.*",
        "positional_embedding",
        "ln_final.*",
        "text_projection",
        "logit_scale",
        "context_length",
        "input_resolution",
        "vocab_size",
    ),
)


def _google(name: str, position: str, attention: int, norm2: int, mlp: int, prefixes: tuple[str, ...]) -> Dialect:
    """The .npz files of Google's two code bases. One numbers all modules of a block together, the other each kind."""
    heads, layers = f"MultiHeadDotProductAttention_{attention}", f"MlpBlock_{mlp}"
    pool = "MAPHead_0/MultiHeadDotProductAttention_0"
    return Dialect(
        name=name,
        layout="flax",
        prefixes=prefixes,
        block=r"Transformer/encoderblock(?:_(\d+))?/(.+)",
        outer={
            "embedding": "patch",
            "cls": "cls",
            position: "position",
            "Transformer/encoder_norm": "norm",
            "MAPHead_0/probe": "map.probe",
            f"{pool}/query": "map.q",
            f"{pool}/key": "map.k",
            f"{pool}/value": "map.v",
            f"{pool}/out": "map.out",
            "MAPHead_0/LayerNorm_0": "map.norm",
            "MAPHead_0/MlpBlock_0/Dense_0": "map.fc1",
            "MAPHead_0/MlpBlock_0/Dense_1": "map.fc2",
        },
        inner={
            "LayerNorm_0": "norm1",
            f"{heads}/query": "q",
            f"{heads}/key": "k",
            f"{heads}/value": "v",
            f"{heads}/out": "out",
            f"LayerNorm_{norm2}": "norm2",
            f"{layers}/Dense_0": "fc1",
            f"{layers}/Dense_1": "fc2",
        },
        ignored=("head/*", "pre_logits/*", "params/txt/*", "params/t", "params/b", "opt/*", "states/*", "chrono/*"),
        leaves={"kernel": "weight", "scale": "weight", "bias": "bias"},
        classifiers=("head/kernel",),
    )


AUGREG = _google("AugReg", "Transformer/posembed_input/pos_embedding", 1, 2, 3, ("", "opt/target/", "params/"))
BIG_VISION = _google("big_vision", "pos_embedding", 0, 1, 0, ("", "params/", "opt/target/", "params/img/"))

DIALECTS = (TIMM, TRANSFORMERS, OPENAI, AUGREG, BIG_VISION)


_TOWERS = ("vision_model.", "params/img/", "visual.trunk.")
"""Prefixes of files with a text tower. What looks like a classifier there takes another vector than the feature."""


def classifiers(dialect: Dialect, prefix: str) -> tuple[str, ...]:
    """The names that the weights of a checkpoint's own classifier may have. transformers writes it without a prefix."""
    if prefix in _TOWERS:
        return ()
    return tuple(dict.fromkeys(start + name for start in (prefix, "") for name in dialect.classifiers))
