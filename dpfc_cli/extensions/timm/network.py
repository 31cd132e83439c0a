"""A model of timm as a backbone, on the GPU of torch if there is one."""

from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors import SafetensorError, safe_open

from dpfc_cli.backbones.family import Backbone, Wanted
from dpfc_cli.backbones.hub import AGAIN, Local
from dpfc_cli.errors import damaged, sentence, unsupported
from dpfc_cli.extensions.timm import Config
from dpfc_cli.files import sha256_of

_BATCH = {"cpu": 32, "cuda": 256}
"""Pictures per call."""


def weights_of(wanted: Wanted, config: Config) -> Local:
    """The weights on this machine. UserError: they cannot be fetched, or are others than expected."""
    if wanted.weights is None:
        assert config.file is not None, "the family checks it"
        found = config.file.local(wanted.progress)
    else:
        path = Path(wanted.weights).expanduser()
        found = Local(id=path.name, path=path, sha256=sha256_of(path))
    found.check_is(wanted.expected)
    return found


class Network(Backbone):
    """One model with its weights, in float32.

    Args:
        wanted: what is to be loaded.
        config: the model's configuration.

    Raises:
        UserError: the weights cannot be fetched, or are those of another model, or it gives no vector.

    """

    def __init__(self, wanted: Wanted, config: Config) -> None:
        assert wanted.geometry is not None
        weights = weights_of(wanted, config)
        self.name = config.name
        crop = wanted.geometry.crop
        self._shape = (crop, crop, 3)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self.batch = wanted.batch or _BATCH[self._device]
        try:
            with safe_open(weights.path, framework="pt") as file:
                last = f"{config.classifier}.weight"
                classes = file.get_slice(last).get_shape()[0] if last in file.keys() else 0  # noqa: SIM118
            # With the classifier that is in the file: timm then checks that there is each tensor, and no other one.
            own = {"file": str(weights.path), "source": "", "state_dict": None, "num_classes": classes}
            model = timm.create_model(config.create, pretrained=True, pretrained_cfg_overlay=own, num_classes=classes)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, SafetensorError) as error:
            raise damaged(f"timm cannot read '{weights.id}' as {self.name}: {sentence(error)}", AGAIN) from error
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
            "weights": weights.describe(),
            "preprocessing": {
                "recipe": "native",
                **wanted.geometry.describe(),
                "mean": config.mean,
                "std": config.std,
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
