"""Vision Transformers by many publishers. This module describes them without JAX; `transformer` loads and runs them."""

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.family import Backbone, Classifier, Family, Wanted
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import missing, parameter
from dpfc_cli.geometry import PAPER, Geometry


class VisionTransformerFamily(Family):
    """ViT, DeiT, DINOv2, CLIP, SigLIP and what clinical fields made of them: the models of the table `MODELS`."""

    models, published = tuple(MODELS), MODELS
    poolings = ("mean", "cls", "map", "cls+mean")
    recipes = ("paper", "native")
    precisions = ("float32", "bfloat16")

    def check(self, wanted: Wanted) -> None:
        super().check(wanted)
        name, model = wanted.name, MODELS[wanted.name]
        if wanted.weights is None and model.pickle is not None:
            raise hub.only_a_pickle(name, model.pickle, model.gated)
        if wanted.weights is None and model.home is None:
            raise missing(
                f"The weights of {name} were never published.", f"Name a file of your own with {parameter('weights')}."
            )

    def poolings_of(self, wanted: Wanted) -> tuple[str, ...]:
        # Weights of the user's own may have other tokens than the published ones.
        model = MODELS[wanted.name]
        if wanted.weights is not None or model.home is None:
            return self.poolings
        return ("mean", "map") if model.pool == "map" else ("mean", "cls", "cls+mean")

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
