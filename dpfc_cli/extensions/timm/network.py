"""A model of timm as a backbone, on the GPU of torch if there is one."""

from typing import Any

import numpy as np
import timm
import torch

from dpfc_cli.backbones.family import Backbone, Wanted
from dpfc_cli.backbones.hub import AGAIN, Published
from dpfc_cli.errors import damaged, sentence, unsupported

_BATCH = {"cpu": 32, "cuda": 256}
"""Pictures per call."""


class Network(Backbone):
    """One model with its weights, in float32.

    Args:
        wanted: what is to be loaded.
        config: the model's configuration.
        published: where its weights are.

    Raises:
        UserError: the weights cannot be fetched, or are those of another model, or it gives no vector.

    """

    def __init__(self, wanted: Wanted, config: Any, published: Published) -> None:
        assert wanted.geometry is not None
        located, digest = published.find(wanted.weights, wanted.progress, wanted.expected)
        self.name = f"timm:{config.architecture}" + (f".{config.tag}" if config.tag else "")
        crop = wanted.geometry.crop
        self._shape = (crop, crop, 3)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self.batch = wanted.batch or _BATCH[self._device]
        try:
            # With its classifier, because timm then checks that there is each tensor, and no other one.
            model = timm.create_model(
                self.name.partition(":")[2], pretrained=True, pretrained_cfg_overlay={"file": str(located.file)}
            )
        except (RuntimeError, KeyError, ValueError) as error:
            raise damaged(f"timm cannot read '{located.id}' as {self.name}: {sentence(error)}", AGAIN) from error
        model.reset_classifier(0)
        self._model = model.eval().requires_grad_(False).to(self._device)
        self._mean, self._std = (
            torch.tensor(each, device=self._device).view(3, 1, 1) for each in (config.mean, config.std)
        )
        black, mixed = np.zeros((2, 2, *self._shape), np.uint8)
        mixed[1] = 255
        made, beside = self._compute(black), self._compute(mixed)
        if made.ndim != 2 or not np.allclose(made[0], beside[0], rtol=1e-3, atol=1e-3):
            # The guarantee counts records: one must not change the features of another one.
            raise unsupported(f"{self.name} makes no vector of each picture by itself.", "Choose another model.")
        self.dim = made.shape[1]
        self._description = {
            "name": self.name,
            "weights": {"id": located.id, "sha256": digest},
            "preprocessing": {
                "recipe": "native",
                **wanted.geometry.describe(),
                "mean": list(config.mean),
                "std": list(config.std),
            },
            "input": list(self._shape),
            "pooling": "own",
            "precision": "float32",
            "dim": self.dim,
        }

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def _compute(self, whole: np.ndarray) -> np.ndarray:
        # cuDNN would round the factors of convolutions to fewer bits.
        with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
            planes = torch.from_numpy(whole).to(self._device).permute(0, 3, 1, 2).float() / 255
            found: np.ndarray = self._model((planes - self._mean) / self._std).float().cpu().numpy()
        return found
