"""What a format of exports provides."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.exports.network import Network
from dpfc_cli.heads.head import Head

Files = Mapping[str, Iterable[bytes]]
"""The bytes of each file, in parts. "" stands for the file that the user named. Another text stands for one beside it:
an ending that is added to the user's name (".data"), or a whole name. The user's file is the last one."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One format.

    Attributes:
        name: as the user types it.
        suffix: how the name of the file ends.
        files: the files, from the head, what is said of it (`notes`; a format may add to it), the backbone if it is to
            be in the file, and the name of the file.
        package: what must be installed to write it, with its extra; None: nothing.
        backbones: whether a backbone can be in the file.

    """

    name: str
    suffix: str
    files: Callable[[Head, dict[str, str], Network | None, str], Files]
    package: tuple[str, str] | None = None
    backbones: bool = False


def check_head(head: object) -> None:
    """Refuse what is no head, and a head whose card contradicts itself.

    Raises:
        UserError: it is one of these.

    """
    if not isinstance(head, Head):
        raise UserError(
            f"{parameter('head')} is a {type(head).__name__}, not a Head.",
            "Use Head.load to open what is on disk.",
            parameter="head",
        )
    head.refuse_contradictions()
