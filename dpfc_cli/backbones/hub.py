"""Where the weights are: a file, a folder, or a repository of the Hugging Face hub.

Downloads are huggingface_hub's: its cache, its offline mode (HF_HUB_OFFLINE), its mirrors (HF_ENDPOINT), its tokens
and its resuming work as its documentation says. (It goes on after a broken connection. Since its version 2 a process
that was killed leaves nothing to go on from, but for what hf_xet has in its own cache.)
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, sentence

Progress = Callable[[str, int, int | None], None]

INDEX = "model.safetensors.index.json"
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")
_KNOWN = (".safetensors", ".npz")
_REPOSITORY = re.compile(r"hf:(?P<repository>[^/\s]+/[^/\s]+)(?:/(?P<file>\S+))?")


@dataclass(frozen=True)
class Located:
    """Weights on this machine. id: `hf:owner/name/file`, or the file's name. config: config.json's content, or {}."""

    id: str
    files: tuple[Path, ...]
    config: dict[str, Any]


def check(weights: str) -> None:
    """UserError for what cannot be read, before anything is fetched."""
    if weights.startswith("hf:"):
        found = _REPOSITORY.fullmatch(weights)
        if found is None:
            raise UserError(f"'{weights}' names no repository.", "Write hf:OWNER/NAME, or hf:OWNER/NAME/FILE.")
        if found["file"]:
            _check_suffix(found["file"])
        return
    path = Path(weights).expanduser()
    if path.is_dir():
        _in_folder(path)
    elif not path.is_file():
        raise UserError(f"There are no weights at '{weights}'.", "Name a file, its folder, or hf:OWNER/NAME.")
    else:
        _check_suffix(path.name)


def locate(weights: str, progress: Progress | None = None) -> Located:
    """The files of `weights`, fetched if they are not here yet."""
    check(weights)
    if found := _REPOSITORY.fullmatch(weights):
        return _fetch(found["repository"], found["file"], progress)
    path = Path(weights).expanduser()
    folder = path if path.is_dir() else path.parent
    files = _in_folder(path) if path.is_dir() else _files(path)
    config = folder / "config.json"
    return Located(path.resolve().name, files, _json(config) if config.is_file() else {})


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
            f"'{folder}' holds {len(files)} files of weights ({', '.join(_KNOWN)}).", "Name the one that is meant."
        )
    return (files[0],)


def _files(path: Path) -> tuple[Path, ...]:
    """The file, or all files that an index names."""
    if not path.name.endswith(".index.json"):
        return (path,)
    files = tuple(path.parent / name for name in _shards(path))
    for file in files:
        if not file.is_file():
            raise UserError(f"'{path.name}' names '{file.name}', which is not beside it.", "Get that file, too.")
    return files


def _shards(index: Path) -> list[str]:
    names = _json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors") for name in names.values()
    ):
        raise UserError(f"'{index}' is no index of .safetensors files.", "Get it anew.")
    return sorted(set(names.values()))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"'{path}' is not JSON: {error}.", "Get it anew.") from error
    return content if isinstance(content, dict) else {}


def _check_suffix(name: str) -> None:
    if name.endswith(_PICKLES):
        stem = name.rpartition("/")[2].rpartition(".")[0]
        raise UserError(
            f"'{name}' is a pickle: to open it is to run whatever code it holds.",
            "Convert it where that code may do no harm: torch.load(FILE, weights_only=True), then "
            f"safetensors.torch.save_file(tensors, '{stem}.safetensors').",
        )
    if not name.endswith((*_KNOWN, ".index.json")):
        raise UserError(f"'{name}' is no file of weights.", f"Known are {' and '.join(_KNOWN)}.")


def _fetch(repository: str, file: str | None, progress: Progress | None) -> Located:
    if file is None:
        for candidate in ("model.safetensors", INDEX):
            path = _download(repository, candidate, progress, optional=True)
            if path is not None:
                file = candidate
                break
        else:
            raise UserError(
                f"'{repository}' holds no model.safetensors.",
                f"If its weights have another name, say hf:{repository}/FILE. Pickles (.bin, .pt) are not opened.",
            )
    else:
        path = _download(repository, file, progress)
    assert path is not None
    files: tuple[Path, ...] = (path,)
    folder = file.rpartition("/")[0]
    beside = f"{folder}/" if folder else ""
    if file.endswith(".index.json"):
        files = tuple(_path(_download(repository, beside + name, progress)) for name in _shards(path))
    config = _download(repository, f"{beside}config.json", progress, optional=True)
    return Located(f"hf:{repository}/{file}", files, _json(config) if config else {})


def _path(path: Path | None) -> Path:
    assert path is not None
    return path


def _download(repository: str, file: str, progress: Progress | None, optional: bool = False) -> Path | None:
    """The file in the cache; None if it is optional and the repository has none. UserError for all that goes wrong."""
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub import errors as hub

    try:
        if not isinstance(try_to_load_from_cache(repository, file), str):
            _reach(repository, file)
        return Path(hf_hub_download(repository, file, tqdm_class=_meter(file, progress)))
    except hub.LocalEntryNotFoundError:
        # The cache remembers what the hub said not to exist.
        if optional and try_to_load_from_cache(repository, file) is _CACHED_NO_EXIST:
            return None
        problem = "it is not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
    except hub.EntryNotFoundError:
        if optional:
            return None
        problem = "the repository has no such file"
    except hub.GatedRepoError:
        problem = "its owner gives access on request only; ask for it there, then log in with `hf auth login`"
    except hub.RepositoryNotFoundError:
        problem = "there is no such public repository"
    except Exception as error:  # its transport's exceptions have changed their library twice
        problem = (sentence(error).splitlines()[0].rstrip(".")) or type(error).__name__
    raise UserError(
        f"'{file}' of '{repository}' could not be had from the Hugging Face hub: {problem}.",
        "Check the name and the network and try again, or get the file by other means and name it with --weights.",
    )


def _reach(repository: str, file: str) -> None:
    """LocalEntryNotFoundError where the hub cannot be reached: asked for a file that is not in the cache, the library
    would try six times, half a minute long, and log each.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, file))
    except hub.HfHubHTTPError:
        # It answered; what, is for the download to say.
        return
    except Exception as error:  # as in `_download`
        raise hub.LocalEntryNotFoundError(str(error)) from error


def _meter(file: str, progress: Progress | None) -> type[Any]:
    """The class huggingface_hub reports bytes to: it draws nothing and tells `progress`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Meter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            # Disabled, tqdm does not count.
            self.received, self.expected = kwargs.get("initial") or 0, kwargs.get("total")

        def update(self, n: float | None = 1) -> None:
            self.received += int(n or 0)
            if progress is not None:
                progress(file, self.received, self.expected)

    return Meter
