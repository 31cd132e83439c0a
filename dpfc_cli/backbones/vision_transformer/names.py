"""The names of tensors in checkpoints: for each library that published weights one table, to the names of `vit`.

Two dense layers are never used, although they follow the final normalisation: `pre_logits` of the first ImageNet-21k
checkpoints, and `pooler` of the transformers library, which is the same layer or, for DINOv2, does nothing. The
projections of CLIP are not used either: linear classifiers are better before them than after them.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, kw_only=True)
class Names:
    """The naming of one library. The tables have names of modules, which have a weight and a bias, or of single
    tensors.

    Attributes:
        library: what messages call it.
        prefixes: what its names may begin with.
        block: a regular expression for tensors inside blocks: its groups are the number and the rest of the name.
        outer: names in the file to names in the network, outside blocks.
        inner: the same inside blocks.
        ignored: patterns for names of tensors that are not used, with or without the prefix.
        antialiased: whether the library resizes positions with antialiasing.

    """

    library: str
    prefixes: tuple[str, ...]
    block: str
    outer: dict[str, str]
    inner: dict[str, str]
    ignored: tuple[str, ...]
    antialiased: bool = True

    def place(self, prefix: str, name: str) -> str | None:
        """The name in the network of a tensor in a file. "" if it is not used, None if it is unknown. In a block its
        number comes first, as in `3.norm1.weight`.
        """
        inner, target = name.removeprefix(prefix), None
        if name.startswith(prefix):
            if (inside := re.fullmatch(self.block, inner)) is not None:
                target = _target(self.inner, inside[2])
                return target and f"{inside[1]}.{target}"
            target = _target(self.outer, inner)
        unused = any(fnmatchcase(form, pattern) for form in (name, inner) for pattern in self.ignored)
        return "" if target is None and unused else target


def _target(table: dict[str, str], name: str) -> str | None:
    module, _, leaf = name.rpartition(".")
    if name not in table and module in table and leaf in ("weight", "bias"):
        return f"{table[module]}.{leaf}"
    return table.get(name)


CLASSIFIER = "head.weight"
"""The layer of `TIMM` that makes scores of the feature."""

TIMM = Names(
    library="timm",
    prefixes=("",),
    block=r"blocks\.(\d+)\.(.+)",
    outer={
        "patch_embed.proj": "patch",
        "cls_token": "cls",
        "reg_token": "registers",
        "pos_embed": "position",
        "norm": "norm",
    },
    inner={
        "norm1": "norm1",
        "attn.qkv": "qkv",
        "attn.proj": "out",
        "ls1.gamma": "scale1",
        "norm2": "norm2",
        "mlp.fc1": "fc1",
        "mlp.fc2": "fc2",
        "ls2.gamma": "scale2",
    },
    ignored=("head.*", "pre_logits.*", "mask_token"),
)

# One table for this library's ViT, DINOv2 and SigLIP, as its versions before 5 wrote them.
TRANSFORMERS = Names(
    library="transformers",
    prefixes=("", "vit.", "dinov2.", "dinov2_with_registers.", "vision_model."),
    block=r"encoder\.layers?\.(\d+)\.(.+)",
    outer={
        "embeddings.patch_embeddings.projection": "patch",
        "embeddings.patch_embedding": "patch",
        "embeddings.cls_token": "cls",
        "embeddings.register_tokens": "registers",
        "embeddings.position_embeddings": "position",
        "embeddings.position_embedding.weight": "position",
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
        "self_attn.q_proj": "q",
        "self_attn.k_proj": "k",
        "self_attn.v_proj": "v",
        "attention.output.dense": "out",
        "self_attn.out_proj": "out",
        "layer_scale1.lambda1": "scale1",
        "layernorm_after": "norm2",
        "norm2": "norm2",
        "layer_norm2": "norm2",
        "intermediate.dense": "fc1",
        "mlp.fc1": "fc1",
        "mlp.weights_in": "fc1",
        "output.dense": "fc2",
        "mlp.fc2": "fc2",
        "mlp.weights_out": "fc2",
        "layer_scale2.lambda1": "scale2",
    },
    ignored=(
        "classifier.*",
        "pooler.*",
        "embeddings.mask_token",
        "embeddings.position_ids",
        "text_model.*",
        "text_projection.*",
        "logit_scale",
        "logit_bias",
    ),
    antialiased=False,
)

OPENAI = Names(
    library="OpenAI CLIP",
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
