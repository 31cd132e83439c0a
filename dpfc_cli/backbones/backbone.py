"""What a loaded backbone is to its callers. This module imports no JAX."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import jax
    import numpy as np

Key = TypeVar("Key")
Progress = Callable[[str, int, int | None], None]
"""It is called with (stage, done, total). The total is None where it is not known."""


class Backbone(Protocol):
    """A frozen network, or a fixed transform, that turns pictures into feature vectors.

    The features of a picture depend on the pixels of that picture alone. The last bits of a row may depend on its
    position in the batch, because the order of a sum does. They never depend on what the other rows hold.

    Attributes:
        name: the name of the model.
        dim: the length of a feature vector.
        batch: the number of pictures per call that runs best. It is chosen so that memory stays bounded.

    """

    name: str
    dim: int
    batch: int

    def describe(self) -> dict[str, Any]:
        """What the manifest says about the features, as JSON values."""
        ...

    def __call__(self, pixels: "np.ndarray") -> "np.ndarray":
        """Compute the features of any number of pictures.

        The pictures are padded to batches of one shape, so that the program is compiled once.

        Args:
            pixels: uint8 (B, H, W, C), for any B.

        Returns:
            float32 (B, dim).

        """
        ...

    def submit(self, pixels: "np.ndarray") -> "jax.Array":
        """Start to compute the features of at most `batch` pictures, and do not wait for them.

        The host can decode the next pictures while the device computes. `np.asarray` of the result waits. The pixels
        are copied, so the caller may overwrite its array at once.

        Args:
            pixels: uint8 (B, H, W, C) with B at most `batch`.

        Returns:
            float32 (B, dim), which may still be computed.

        """
        ...


def computed(backbone: Backbone, batches: Iterable[tuple[Key, "np.ndarray"]]) -> Iterator[tuple[Key, "np.ndarray"]]:
    """The features of batches of pictures, each with the key of its batch. The device works one batch ahead."""
    import numpy as np

    waiting = None
    for key, pixels in batches:
        submitted = key, backbone.submit(pixels)
        if waiting is not None:
            yield waiting[0], np.asarray(waiting[1])
        waiting = submitted
    if waiting is not None:
        yield waiting[0], np.asarray(waiting[1])
