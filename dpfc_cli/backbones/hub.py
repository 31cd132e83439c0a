"""Where the weights are: in a file, in a folder, or in a repository of the Hugging Face hub.

huggingface_hub downloads them. Its cache, its offline mode (HF_HUB_OFFLINE), its mirrors (HF_ENDPOINT), its tokens and
its way to continue a download work as its documentation says. (After a broken connection it continues. Since its
version 2, a process that was killed leaves nothing to continue from, except what hf_xet keeps in its own cache.)

The digest of weights is checked whenever they are loaded, also from the cache (`Located.digest`). The hub names a large
file by its SHA-256, and the cache keeps that name. This finds damage. It says nothing against the hub itself, or a
mirror. Where the table of models has a pin, commit and digest are those of the table, whatever the hub says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfc_cli.backbones.backbone import Progress
from dpfc_cli.backbones.download import download, named_by
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.files import json_in, sha256_of

INDEX = "model.safetensors.index.json"
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")
_KNOWN = (".safetensors", ".npz")
_REPOSITORY = re.compile(r"hf:(?P<repository>[^/\s]+/[^/\s]+)(?:/(?P<file>\S+))?")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The one version of a file on the hub that is accepted.

    Attributes:
        commit: the revision of its repository, 40 hexadecimal digits.
        sha256: of the file, in hex.

    """

    commit: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Located:
    """Weights on this machine.

    Attributes:
        id: `hf:owner/name/file`, or the name of a local file.
        files: the files that hold the weights, in order.
        config: the content of the config.json beside them; {} if there is none.
        expected: the SHA-256 that each file must have; None where nobody says it.

    """

    id: str
    files: tuple[Path, ...]
    config: dict[str, Any]
    expected: tuple[str | None, ...]

    def digest(self) -> str:
        """One digest of the files (`tensors.digest`).

        Raises:
            UserError: a file was damaged or exchanged.

        """
        from dpfc_cli.backbones.tensors import digest

        sums = [sha256_of(file) for file in self.files]
        self.check(sums)
        return digest(sums)

    def check(self, sums: Sequence[str]) -> None:
        """Refuse files whose SHA-256 is another one than expected.

        Args:
            sums: the SHA-256 of each file, in hex.

        Raises:
            UserError: a file was damaged or exchanged.

        """
        for file, found, wanted in zip(self.files, sums, self.expected, strict=True):
            if wanted not in (None, found):
                raise UserError(
                    f"'{file}' of '{self.id}' has the SHA-256 {found}, not {wanted}: it was damaged or exchanged.",
                    "Delete it and run the command again. If it comes back, do not use it.",
                    code="damaged",
                    path=str(file),
                    sha256=found,
                    expected=wanted,
                )


def check(weights: str) -> None:
    """Refuse weights that cannot be read, before anything is fetched.

    Args:
        weights: a file, a folder or `hf:owner/name[/file]`.

    Raises:
        UserError: there is no such file, or its name shows that it holds no weights.

    """
    if weights.startswith("hf:"):
        found = _REPOSITORY.fullmatch(weights)
        if found is None:
            raise UserError(
                f"'{weights}' does not name a repository.",
                "Write hf:OWNER/NAME, or hf:OWNER/NAME/FILE.",
                parameter="weights",
                value=weights,
            )
        if found["file"]:
            _check_suffix(found["file"])
        return
    path = Path(weights).expanduser()
    if path.is_dir():
        _in_folder(path)
    elif not path.is_file():
        raise UserError(
            f"There are no weights at '{weights}'.",
            "Name a file, its folder, or hf:OWNER/NAME.",
            code="missing",
            parameter="weights",
            path=str(path),
        )
    else:
        _check_suffix(path.name)


def locate(weights: str, progress: Progress | None = None, pin: Pin | None = None) -> Located:
    """Find the files of weights, and fetch them if they are not on this machine.

    Args:
        weights: a file, a folder or `hf:owner/name[/file]`.
        progress: it is told how many bytes of a file were downloaded.
        pin: the version to fetch, of `hf:owner/name/file`. None: the newest.

    Raises:
        UserError: the weights cannot be found or fetched.

    """
    check(weights)
    if found := _REPOSITORY.fullmatch(weights):
        return _fetch(found["repository"], found["file"], progress, pin)
    path = Path(weights).expanduser()
    folder = path if path.is_dir() else path.parent
    files = _in_folder(path) if path.is_dir() else _files(path)
    config = folder / "config.json"
    return Located(
        id=path.resolve().name,
        files=files,
        config=_json(config) if config.is_file() else {},
        expected=(None,) * len(files),
    )


def beside(
    weights: str, names: Sequence[str], progress: Progress | None = None, pin: Pin | None = None
) -> Located | None:
    """Find other files in the folder of weights, and fetch them if they are not on this machine.

    Args:
        weights: as for `locate`.
        names: of the files.
        progress: it is told how many bytes of a file were downloaded.
        pin: the version of the weights. The files are those of its commit.

    Returns:
        The files; None if one of them is not there.

    Raises:
        UserError: the hub cannot be reached.

    """
    check(weights)
    if found := _REPOSITORY.fullmatch(weights):
        folder = (found["file"] or "").rpartition("/")[0]
        ahead = f"{folder}/" if folder else ""
        commit = None if pin is None else pin.commit
        id, fetched = f"hf:{found['repository']}/{ahead}{names[0]}", []
        for name in names:
            try:
                file = download(found["repository"], ahead + name, progress, commit, optional=True)
            except UserError as error:
                remedy = "Check the network and try again. Or put the file and the weights into a folder of your own."
                raise UserError(error.what, remedy, code=error.code, **error.fields) from error
            if file is None:
                return None
            fetched.append(file)
        files = tuple(fetched)
        return Located(id=id, files=files, config={}, expected=tuple(map(named_by, files)))
    path = Path(weights).expanduser()
    files = tuple((path if path.is_dir() else path.parent) / name for name in names)
    if not all(file.is_file() for file in files):
        return None
    return Located(id=names[0], files=files, config={}, expected=(None,) * len(files))


def _in_folder(folder: Path) -> tuple[Path, ...]:
    index = folder / INDEX
    if index.is_file():
        return _files(index)
    files = sorted(path for path in folder.iterdir() if path.suffix in _KNOWN)
    if len(files) != 1:
        pickled = next((path for path in sorted(folder.iterdir()) if path.suffix in _PICKLES), None)
        if pickled is not None and not files:
            _check_suffix(pickled.name)
        raise UserError(
            f"The folder '{folder}' holds {len(files)} files of weights ({', '.join(_KNOWN)}).",
            f"Name one file with {parameter('weights')}.",
            code="missing" if not files else "conflict",
            parameter="weights",
            path=str(folder),
            found=[file.name for file in files],
        )
    return (files[0],)


def _files(path: Path) -> tuple[Path, ...]:
    """The file itself, or all files that an index names."""
    if not path.name.endswith(".index.json"):
        return (path,)
    files = tuple(path.parent / name for name in _parts(path))
    for file in files:
        if not file.is_file():
            raise UserError(
                f"The index '{path}' names the file '{file.name}', which is not in its folder.",
                "Get that file, too.",
                code="missing",
                path=str(file),
            )
    return files


def _parts(index: Path) -> list[str]:
    """The names of the files that an index names."""
    names = _json(index).get("weight_map")
    if (
        not isinstance(names, dict)
        or not names
        or not all(
            isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")
            for name in names.values()
        )
    ):
        raise UserError(
            f"'{index}' is not an index of .safetensors files.", "Get the file again.", code="damaged", path=str(index)
        )
    return sorted(set(names.values()))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json_in(path)
    except ValueError as error:
        raise UserError(
            f"'{path}' is not JSON: {error}.", "Get the file again.", code="damaged", path=str(path)
        ) from error
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be read: {error}.", "Check its permissions.", code="unreadable", path=str(path)
        ) from error
    return content if isinstance(content, dict) else {}


def _check_suffix(name: str) -> None:
    if name.endswith(_PICKLES):
        stem = name.rpartition("/")[2].rpartition(".")[0]
        raise UserError(
            f"'{name}' is a pickle. Whoever opens a pickle runs the code in it.",
            "Convert it on a machine where that code can do no harm: torch.load(FILE, weights_only=True), then "
            f"safetensors.torch.save_file(tensors, '{stem}.safetensors').",
            code="unsupported",
            parameter="weights",
            path=name,
            known=list(_KNOWN),
        )
    if not name.endswith((*_KNOWN, ".index.json")):
        raise UserError(
            f"'{name}' is not a file of weights.",
            f"Use a file with a name that ends in {' or '.join(_KNOWN)}.",
            code="unsupported",
            parameter="weights",
            path=name,
            known=list(_KNOWN),
        )


def _fetch(repository: str, file: str | None, progress: Progress | None, pin: Pin | None) -> Located:
    commit = None if pin is None else pin.commit
    if file is None:
        for candidate in ("model.safetensors", INDEX):
            path = download(repository, candidate, progress, commit, optional=True)
            if path is not None:
                file = candidate
                break
        else:
            raise UserError(
                f"The repository '{repository}' has no file model.safetensors.",
                f"If its weights have another name, write hf:{repository}/FILE. Pickles (.bin, .pt) are not opened.",
                code="missing",
                parameter="weights",
                repository=repository,
            )
    else:
        path = download(repository, file, progress, commit)
    assert path is not None
    files: tuple[Path, ...] = (path,)
    folder = file.rpartition("/")[0]
    beside = f"{folder}/" if folder else ""
    if file.endswith(".index.json"):
        files = tuple(_path(download(repository, beside + name, progress, commit)) for name in _parts(path))
    config = download(repository, f"{beside}config.json", progress, commit, optional=True)
    return Located(
        id=f"hf:{repository}/{file}",
        files=files,
        config=_json(config) if config else {},
        expected=tuple(map(named_by, files)) if pin is None else (pin.sha256,),
    )


def _path(path: Path | None) -> Path:
    assert path is not None
    return path
