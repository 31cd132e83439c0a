"""Where the weights are: in a file, in a folder, or in a repository of the Hugging Face hub; and which bytes they have.

huggingface_hub downloads them. Its cache, its offline mode (HF_HUB_OFFLINE), its mirrors (HF_ENDPOINT), its tokens and
its way to continue a download work as its documentation says. (After a broken connection it continues. Since its
version 2, a process that was killed leaves nothing to continue from, except what hf_xet keeps in its own cache.)

The digest of weights is checked whenever they are loaded, also from the cache (`Located.digest`). The hub names a large
file by its SHA-256, and the cache keeps that name. This finds damage. It says nothing against the hub itself, or a
mirror. Where the table of models has a pin, commit and digest are those of the table, whatever the hub says.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dpfc_cli.backbones.family import Progress
from dpfc_cli.errors import Code, UserError, parameter, sentence
from dpfc_cli.files import json_in, sha256_of

INDEX = "model.safetensors.index.json"
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")
_KNOWN = (".safetensors", ".npz")
_REPOSITORY = re.compile(r"hf:(?P<repository>[^/\s]+/[^/\s]+)(?:/(?P<file>\S+))?")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The one version of a file on the hub that is accepted: the commit of its repository, and the file's SHA-256."""

    commit: str
    sha256: str


class Published(Protocol):
    """What a table of models says about the weights of one.

    home: `owner/name/file` on the hub; None if they are not published. pin: the version of them; None: it was not
    established, and the newest is taken. width: of a feature; None if the name of the model does not say.
    """

    @property
    def home(self) -> str | None: ...
    @property
    def pin(self) -> Pin | None: ...
    @property
    def width(self) -> int | None: ...


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
        """One digest of the files: that of one file; of several, the SHA-256 of their digests' bytes, joined in order.

        Raises UserError if a file was damaged or exchanged.
        """
        sums = [sha256_of(file) for file in self.files]
        for file, found, wanted in zip(self.files, sums, self.expected, strict=True):
            if wanted not in (None, found):
                raise UserError(
                    f"'{file}' of '{self.id}' has the SHA-256 {found}, not {wanted}: it was damaged or exchanged.",
                    "Delete it and run the command again. If it comes back, do not use it.",
                    code="damaged",
                    path=str(file),
                )
        return sums[0] if len(sums) == 1 else hashlib.sha256(b"".join(map(bytes.fromhex, sums))).hexdigest()


def place(model: Published, weights: str | None) -> tuple[str, Pin | None]:
    """Where the weights of a model are, and which version is accepted.

    Args:
        model: the row of the table.
        weights: a file, a folder or `hf:owner/name[/file]`; None: the published weights. If their own name is given, as
            feature sets state it, the version is the same.

    """
    published = f"hf:{model.home}"
    return (published, model.pin) if weights is None or weights == published else (weights, None)


def find(where: str, pin: Pin | None, progress: Progress | None, expected: str | None = None) -> tuple[Located, str]:
    """Weights, fetched if they are not on this machine, and their digest.

    Args:
        where: a file, a folder or `hf:owner/name[/file]`.
        pin: the version to fetch. None: the newest.
        progress: it is told how many bytes of a file were downloaded.
        expected: the digest that they must have; None: any.

    Raises:
        UserError: the weights cannot be fetched, were damaged, or are others than expected.

    """
    located = locate(where, progress, pin)
    found = located.digest()
    if expected not in (None, found):
        raise UserError(
            f"'{located.id}' is not the checkpoint that the features were computed with: its digest is {found}, not "
            f"{expected}.",
            f"Name the weights of the features: {parameter('weights')}.",
            code="conflict",
            parameter="weights",
        )
    return located, found


def check_width(model: Published, width: int, source: str) -> None:
    """Refuse weights whose features have another width than those of the model. source: what messages call them."""
    if model.width not in (None, width):
        raise UserError(
            f"'{source}' belongs to features of {width} numbers, not of {model.width}.",
            f"Choose the {parameter('model')} that the weights belong to, or other {parameter('weights')}.",
            code="conflict",
            parameter="weights",
        )


def check(weights: str) -> None:
    """Raise UserError for weights that cannot be read, before anything is fetched: there is no such file, or its name
    shows that it holds no weights.
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
    elif path.is_file():
        _check_suffix(path.name)
    else:
        raise UserError(
            f"There are no weights at '{weights}'.",
            "Name a file, its folder, or hf:OWNER/NAME.",
            code="missing",
            parameter="weights",
            path=str(path),
        )


def locate(weights: str, progress: Progress | None = None, pin: Pin | None = None) -> Located:
    """Find the files of weights, and fetch them if they are not on this machine. For the arguments see `find`."""
    check(weights)
    if found := _REPOSITORY.fullmatch(weights):
        return _fetch(found["repository"], found["file"], progress, pin)
    path = Path(weights).expanduser()
    files, config = (_in_folder(path), path) if path.is_dir() else (_files(path), path.parent)
    return Located(
        id=path.resolve().name,
        files=files,
        config=_json(config / "config.json") if (config / "config.json").is_file() else {},
        expected=(None,) * len(files),
    )


def beside(
    weights: str, names: Sequence[str], progress: Progress | None = None, pin: Pin | None = None
) -> Located | None:
    """Find other files in the folder of weights, and fetch them if they are not on this machine.

    Args:
        weights: as for `find`.
        names: of the files.
        progress: it is told how many bytes of a file were downloaded.
        pin: the version of the weights. The files are those of its commit.

    Returns:
        The files; None if one of them is not there.

    Raises:
        UserError: the hub cannot be reached.

    """
    check(weights)
    found = _REPOSITORY.fullmatch(weights)
    if found is None:
        path = Path(weights).expanduser()
        files = tuple((path if path.is_dir() else path.parent) / name for name in names)
        whole = all(file.is_file() for file in files)
        return Located(id=names[0], files=files, config={}, expected=(None,) * len(files)) if whole else None
    repository, ahead, fetched = found["repository"], _folder_of(found["file"] or ""), list[Path]()
    for name in names:
        try:
            file = download(repository, ahead + name, progress, None if pin is None else pin.commit, optional=True)
        except UserError as error:
            remedy = "Check the network and try again. Or put the file and the weights into a folder of your own."
            raise UserError(error.what, remedy, code=error.code, **error.fields) from error
        if file is None:
            return None
        fetched.append(file)
    expected = tuple(map(named_by, fetched))
    return Located(id=f"hf:{repository}/{ahead}{names[0]}", files=tuple(fetched), config={}, expected=expected)


def _folder_of(file: str) -> str:
    """The folder of a file in a repository, with a slash at its end; '' at the top."""
    return file[: file.rfind("/") + 1]


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
        )
    return (files[0],)


def _files(path: Path) -> tuple[Path, ...]:
    """The file itself, or all files that an index names."""
    if not path.name.endswith(".index.json"):
        return (path,)
    files = tuple(path.parent / name for name in _parts(path))
    for file in files:
        if not file.is_file():
            what = f"The index '{path}' names the file '{file.name}', which is not in its folder."
            raise UserError(what, "Get that file, too.", code="missing", path=str(file))
    return files


def _parts(index: Path) -> list[str]:
    """The names of the files that an index names, which lie beside it."""
    names = _json(index).get("weight_map")
    parts = list(names.values()) if isinstance(names, dict) else []
    if not parts or not all(
        isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors") for name in parts
    ):
        what = f"'{index}' is not an index of .safetensors files."
        raise UserError(what, "Get the file again.", code="damaged", path=str(index))
    return sorted(set(parts))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json_in(path)
    except ValueError as error:
        what = f"'{path}' is not JSON: {error}."
        raise UserError(what, "Get the file again.", code="damaged", path=str(path)) from error
    except OSError as error:
        what = f"'{path}' cannot be read: {error}."
        raise UserError(what, "Check its permissions.", code="unreadable", path=str(path)) from error
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
        )
    if not name.endswith((*_KNOWN, ".index.json")):
        raise UserError(
            f"'{name}' is not a file of weights.",
            f"Use a file with a name that ends in {' or '.join(_KNOWN)}.",
            code="unsupported",
            parameter="weights",
            path=name,
        )


# On the hub


def _fetch(repository: str, file: str | None, progress: Progress | None, pin: Pin | None) -> Located:
    commit = None if pin is None else pin.commit
    if file is None:
        usual = ("model.safetensors", INDEX)
        file = next((each for each in usual if download(repository, each, progress, commit, optional=True)), None)
    if file is None:
        raise UserError(
            f"The repository '{repository}' has no file model.safetensors.",
            f"If its weights have another name, write hf:{repository}/FILE. Pickles (.bin, .pt) are not opened.",
            code="missing",
            parameter="weights",
        )
    ahead, path = _folder_of(file), _required(repository, file, progress, commit)
    names = [file] if not file.endswith(".index.json") else [ahead + name for name in _parts(path)]
    files = tuple(_required(repository, name, progress, commit) for name in names)
    config = download(repository, f"{ahead}config.json", progress, commit, optional=True)
    return Located(
        id=f"hf:{repository}/{file}",
        files=files,
        config=_json(config) if config else {},
        expected=tuple(map(named_by, files)) if pin is None else (pin.sha256,),
    )


def named_by(file: Path) -> str | None:
    """The SHA-256 that the cache names a file by; None if it is a small one, which has the name of a git object."""
    name = file.resolve().name
    return name if re.fullmatch("[0-9a-f]{64}", name) else None


def _required(repository: str, file: str, progress: Progress | None, commit: str | None) -> Path:
    found = download(repository, file, progress, commit)
    assert found is not None, "a file that is not optional is there, or there is an error"
    return found


def download(
    repository: str, file: str, progress: Progress | None, commit: str | None, optional: bool = False
) -> Path | None:
    """A file of the hub in the cache, fetched if it is not there; None if it is optional and not in the repository.

    Args:
        repository: `owner/name`.
        file: its path there.
        progress: it is told how many bytes were downloaded.
        commit: the revision: a commit, a branch or a tag. None: the newest.
        optional: whether the repository may lack it.

    Raises:
        UserError: for everything else that goes wrong.

    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub import errors as hub

    code: Code = "unreadable"
    try:
        if not isinstance(try_to_load_from_cache(repository, file, revision=commit), str):
            _reach(repository, file, commit)
        return Path(hf_hub_download(repository, file, revision=commit, tqdm_class=_meter(file, progress)))
    except hub.LocalEntryNotFoundError as error:
        # The hub answered, and not from a repository that it calls gated.
        if getattr(getattr(error.__cause__, "response", None), "status_code", None) in (401, 403):
            raise _gated(repository, file) from None
        # The cache also remembers which files the hub does not have.
        if optional and try_to_load_from_cache(repository, file, revision=commit) is _CACHED_NO_EXIST:
            return None
        problem = "it is not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
    except hub.EntryNotFoundError:
        if optional:
            return None
        problem, code = "the repository has no such file", "missing"
    except hub.GatedRepoError:
        raise _gated(repository, file) from None
    except hub.RepositoryNotFoundError:
        problem, code = "there is no such public repository", "missing"
    except Exception as error:  # The library changed twice which exceptions the network raises.
        problem = (sentence(error).splitlines()[0].rstrip(".")) or type(error).__name__
    raise UserError(
        f"'{file}' of '{repository}' cannot be fetched from the Hugging Face hub: {problem}.",
        "Check the name and the network and try again. Or get the file in another way and name it with "
        f"{parameter('weights')}.",
        code=code,
        parameter="weights",
        repository=repository,
        file=file,
    )


def _reach(repository: str, file: str, commit: str | None) -> None:
    """Raise LocalEntryNotFoundError if the hub cannot be reached.

    Without this, the library would try six times to fetch the file, for half a minute, and log each time.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, file, revision=commit))
    except hub.HfHubHTTPError:
        # The hub answered. The download then raises what it answered.
        return
    except Exception as error:  # As in `download`.
        raise hub.LocalEntryNotFoundError(str(error)) from error


def _meter(file: str, progress: Progress | None) -> type[Any]:
    """The class that huggingface_hub reports bytes to. It draws nothing and calls `progress`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Meter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            # tqdm does not count while it is disabled.
            self.received, self.expected = kwargs.get("initial") or 0, kwargs.get("total")

        def update(self, n: float | None = 1) -> None:
            self.received += int(n or 0)
            if progress is not None:
                progress(file, self.received, self.expected)

    return Meter


# Weights that cannot be fetched just like that


def _gated(repository: str, file: str) -> UserError:
    """The error for a file that the hub does not give to this account, or to nobody without one."""
    return UserError(
        f"'{file}' of '{repository}' is gated: its publisher gives it only to accounts that accepted the terms.",
        f"{_accept(repository)} If you did both, the page says whether the publisher still has to agree. Or get the "
        f"file in another way and name it with {parameter('weights')}.",
        code="unreadable",
        parameter="weights",
        repository=repository,
        file=file,
        gated=True,
    )


def only_a_pickle(model: str, place: str, gated: bool) -> UserError:
    """The error for a model whose publisher has nothing but a pickle on the hub, at `owner/name/file`. gated: the
    publisher gives the file only to whom accepted its terms.
    """
    repository, _, file = place.rpartition("/")
    ask = f"{_accept(repository)} Then fetch" if gated else "Fetch"
    return UserError(
        f"The publisher of {model} has its weights as a pickle only ('{file}' of '{repository}'). Whoever opens a "
        "pickle runs the code in it.",
        f"{ask} the file: hf download {repository} {file}. Convert it on a machine where that code "
        "can do no harm: tensors = torch.load(FILE, weights_only=True), then safetensors.torch.save_file(tensors, "
        f"'model.safetensors'). Name the new file with {parameter('weights')}. If the repository has a "
        f"model.safetensors by now, name hf:{repository}.",
        code="unsupported",
        parameter="weights",
        repository=repository,
        gated=gated,
    )


def _accept(repository: str) -> str:
    """What to do to get at a gated repository."""
    from huggingface_hub import constants

    return (
        f"Accept its terms at {constants.ENDPOINT}/{repository}. Then log in with the same account: `hf auth login`, "
        "or set HF_TOKEN."
    )
