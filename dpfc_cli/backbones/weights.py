"""Where the weights of a model are, and which bytes they have."""

from typing import Protocol

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.backbone import Progress
from dpfc_cli.errors import UserError, parameter


class Published(Protocol):
    """What a table of models says about the weights of one.

    Attributes:
        home: `owner/name/file` on the Hugging Face hub; None if the weights are not published.
        pin: the version of them. None: it was not established, and the newest is taken.
        width: of a feature; None if the name of the model does not say.

    """

    @property
    def home(self) -> str | None: ...
    @property
    def pin(self) -> hub.Pin | None: ...
    @property
    def width(self) -> int | None: ...


def place(model: Published, weights: str | None) -> tuple[str, hub.Pin | None]:
    """Where the weights of a model are, and which version is accepted.

    Args:
        model: the row of the table.
        weights: a file, a folder or `hf:owner/name[/file]`; None: the published weights. If their own name is given, as
            feature sets state it, the version is the same.

    """
    published = f"hf:{model.home}"
    return (published, model.pin) if weights is None or weights == published else (weights, None)


def check_width(model: Published, width: int, source: str) -> None:
    """Refuse weights whose features have another width than those of the model. source: what messages call them."""
    if model.width not in (None, width):
        raise UserError(
            f"'{source}' belongs to features of {width} numbers, not of {model.width}.",
            f"Choose the {parameter('model')} that the weights belong to, or other {parameter('weights')}.",
            code="conflict",
            parameter="weights",
            source=source,
        )


def find(
    where: str, pin: hub.Pin | None, progress: Progress | None, expected: str | None = None
) -> tuple[hub.Located, str]:
    """Weights, fetched if they are not on this machine, and their digest.

    Args:
        where: a file, a folder or `hf:owner/name[/file]`.
        pin: the version to fetch.
        progress: it is told how many bytes of a file were downloaded.
        expected: the digest that they must have; None: any.

    Raises:
        UserError: the weights cannot be fetched, were damaged, or are others than expected.

    """
    located = hub.locate(where, progress, pin)
    found = located.digest()
    if expected not in (None, found):
        raise UserError(
            f"'{located.id}' is not the checkpoint that the features were computed with: its digest is {found}, not "
            f"{expected}.",
            f"Name the weights of the features: {parameter('weights')}.",
            code="conflict",
            parameter="weights",
            source=located.id,
            sha256=found,
            expected=expected,
        )
    return located, found
