"""`export`: a head in the format of another program."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli.backbones import Progress
from dpfc_cli.errors import UserError, check_installed, check_new_name, parameter, unknown
from dpfc_cli.exports import npz, onnx, sklearn, torch
from dpfc_cli.exports.network import rebuilt
from dpfc_cli.exports.notes import notes
from dpfc_cli.exports.target import Target, check_head
from dpfc_cli.files import make
from dpfc_cli.folders import heads_folder
from dpfc_cli.heads.head import Head

TARGETS: dict[str, Target] = {each.name: each for each in (onnx.TARGET, torch.TARGET, sklearn.TARGET, npz.TARGET)}
"""The formats by name."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        path: the file that was named.
        files: all files, in the order in which they were written. A module that was there already is among them.
        notes: what the file says of the head, as texts by name.

    """

    path: Path
    files: tuple[Path, ...]
    notes: dict[str, str]


def export(
    head: Head,
    to: str,
    out: Path | str,
    *,
    with_backbone: bool = False,
    weights: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write a head in the format of another program. The card goes with it.

    Args:
        head: the head, as `Head.load` gives it.
        to: "onnx", "torch", "sklearn" or "npz".
        out: the file. It is never overwritten.
        with_backbone: whether the backbone is to be in the file, too. The input is then pictures. For "onnx" alone.
        weights: where the weights of the backbone are: a file, a folder or `hf:owner/name[/file]`. Default: where the
            card says.
        progress: told how many bytes of the weights were downloaded.

    Returns:
        The files, and what they say.

    Raises:
        UserError: the card contradicts itself, the format is unknown or cannot hold a backbone, a package is not
            installed, the weights are others, or the file exists or cannot be written.

    Examples:
        >>> export(Head.load("heads/eps1.safetensors"), "onnx", "eps1.onnx")

    """
    if to not in TARGETS:
        raise unknown("format", to, list(TARGETS))
    target, path = TARGETS[to], Path(out)
    check_head(head)
    _check_place(path, target)
    if weights is not None and not with_backbone:
        raise UserError(
            f"{parameter('weights')} has no meaning without {parameter('with_backbone')}: a head has no other weights.",
            "Leave it out.",
            code="conflict",
            parameter="weights",
        )
    if with_backbone and not target.backbones:
        raise UserError(
            f"The format {to} holds a head alone.",
            f"Leave out {parameter('with_backbone')}, or choose onnx.",
            code="conflict",
            parameter="with_backbone",
        )
    if target.package is not None:
        check_installed(*target.package, f"To write {to}")
    network = rebuilt(head, weights, progress) if with_backbone else None
    texts = notes(head, to)
    written = [
        _write(_named(path, name), parts, mine=name == "")
        for name, parts in target.files(head, texts, network, path.name).items()
    ]
    return Exported(path=path, files=tuple(written), notes=texts)


def _check_place(path: Path, target: Target) -> None:
    check_new_name(path.name)
    if path.suffix != target.suffix:
        raise UserError(
            f"{parameter('out')} '{path}' must end in {target.suffix}.",
            "Change the name.",
            parameter="out",
            path=str(path),
        )
    if path.suffix == torch.TARGET.suffix and path.parent.resolve() == heads_folder().resolve():
        raise UserError(
            f"'{path}' would lie among the heads, and it would look like one.",
            f"Choose another folder: {parameter('out')}.",
            code="conflict",
            parameter="out",
            path=str(path),
        )
    if path.exists():
        raise _taken(path)


def _named(path: Path, name: str) -> Path:
    """The place of a file, as `target.Files` names it."""
    return path.with_name(path.name + name) if not name or name.startswith(".") else path.with_name(name)


def _write(path: Path, parts: Iterable[bytes], mine: bool) -> Path:
    """Write a file, whole or not at all. One that is there with the same bytes stays, unless it is the user's own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = make(path, parts)
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be written: {error.strerror or error}.",
            f"Choose a writable place: {parameter('out')}. Or make room.",
            code="unwritable",
            path=str(path),
        ) from error
    if found == "other" or (mine and found == "same"):
        raise _taken(path)
    return path


def _taken(path: Path) -> UserError:
    return UserError(
        f"There is a file '{path}' already.",
        f"Nothing is overwritten. Choose another name, {parameter('out')}, or remove it.",
        code="exists",
        parameter="out",
        path=str(path),
    )
