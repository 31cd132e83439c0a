"""Vision Transformers by many publishers. This module describes them without JAX; `transformer` loads and runs them."""

from dpfc_cli.backbones.family import Backbone, Classifier, Family, Wanted
from dpfc_cli.backbones.hub import File
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.geometry import PAPER, Geometry

TOKENIZER = "tokenizer.json"
"""What lies beside the weights of a model with a text tower."""


class VisionTransformerFamily(Family):
    """ViT, DeiT, DINOv2, CLIP, SigLIP and what clinical fields made of them: the models of the table `MODELS`."""

    models = tuple(MODELS)
    poolings = ("mean", "cls", "map", "cls+mean")
    recipes = ("paper", "native")
    precisions = ("float32", "bfloat16")

    def files(self, wanted: Wanted, *, text: bool) -> tuple[File, ...]:
        model = MODELS[wanted.name]
        return (model.file, model.file.beside(TOKENIZER)) if text and model.text else (model.file,)

    def dimensions(self, name: str) -> int:
        return MODELS[name].dimensions

    def poolings_of(self, wanted: Wanted) -> tuple[str, ...]:
        return ("mean", "map") if MODELS[wanted.name].pool == "map" else ("mean", "cls", "cls+mean")

    def own_recipe(self, name: str) -> str:
        return MODELS[name].recipe

    def geometry(self, name: str, preprocess: str) -> Geometry:
        return PAPER if preprocess == "paper" else MODELS[name].native

    def classifier(self, wanted: Wanted) -> Classifier:
        from dpfc_cli.backbones.vision_transformer import checkpoint

        return checkpoint.classifier(wanted)

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.backbones.vision_transformer import transformer

        return transformer.load(wanted)


FAMILY = VisionTransformerFamily()
