"""Where the weights are: in a file, in a folder, or in a repository of the Hugging Face hub; and which bytes they have.

huggingface_hub downloads them. Its cache, its offline mode (HF_HUB_OFFLINE), its mirrors (HF_ENDPOINT), its tokens and
its way to continue a download work as its documentation says. A folder hub/OWNER/NAME in the cache of dpfc stands for
the whole repository: files that were got in another way lie there. (After a broken connection it continues. Since its
version 2, a process that was killed leaves nothing to continue from, except what hf_xet keeps in its own cache.)

The digest of weights is checked whenever they are loaded, also from the cache (`Located.digest`). The hub names a large
file by its SHA-256, and the cache keeps that name. This finds damage. It says nothing against the hub itself, or a
mirror. Where the table of models has a pin, commit and digest are those of the table, whatever the hub says.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dpfc_cli.downloads import Remote
from dpfc_cli.errors import Code, UserError, conflict, damaged, missing, parameter, quoted, sentence, unsupported
from dpfc_cli.files import json_in, sha256_of
from dpfc_cli.folders import cache_folder
from dpfc_cli.progress import Progress
from dpfc_cli.reading import readable

_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")
_KNOWN = (".safetensors", ".npz")
AGAIN = "Get the file again."
STATEMENTS = ("preprocessor_config.json", "processor_config.json", "open_clip_config.json")
"""What may lie beside weights, besides config.json, and say how they are used: see `stated`."""
_REPOSITORY = re.compile(r"hf:(?P<repository>[^/\s]+/[^/\s]+)(?:/(?P<file>\S+))?")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The one version of a file on the hub that is accepted: the commit of its repository, and the file's SHA-256."""

    commit: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Located:
    """Weights on this machine. id: `hf:owner/name/file`, or the name of a local file. config: the content of the
    config.json beside the file; {} if there is none. expected: the SHA-256 that the file must have; None where nobody
    says it. others: the content of the other files that say how weights are used (`STATEMENTS`), by name.
    """

    id: str
    file: Path
    config: dict[str, Any]
    expected: str | None
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    def digest(self) -> str:
        """The SHA-256 of the file. UserError if it was damaged or exchanged."""
        found = sha256_of(self.file)
        if self.expected not in (None, found):
            raise damaged(
                f"{quoted(self.file)} of '{self.id}' has the SHA-256 {found}, not {self.expected}: it was damaged or "
                "exchanged.",
                "Delete it and run the command again. If it comes back, do not use it.",
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a table of models says about the weights of one.

    Attributes:
        home: `owner/name/file` on the hub; None if they are not published.
        width: of a token or a place. The weights must have it; None if the name of the model does not say.
        pin: the version of the published weights. None: it was not established, and the newest is taken.
        text: which kind of text tower the weights have beside it (`backbones.text`); None: they have none.

    """

    home: str | None
    width: int | None
    pin: Pin | None = None
    text: Literal["clip", "siglip"] | None = None

    @property
    def dimensions(self) -> int | None:
        """The length of a feature vector; None: it depends on the weights."""
        return self.width

    @property
    def repository(self) -> str | None:
        """The repository on the hub with the weights, `owner/name`; None if there is none."""
        return None if self.home is None else self.home.rpartition("/")[0]

    def place(self, weights: str | None) -> tuple[str, Pin | None]:
        """Where the weights are, and which version is accepted.

        weights: a file, a folder or `hf:owner/name[/file]`; None: the published weights. If their own name is given, as
        feature sets state it, the version is the same.
        """
        published = f"hf:{self.home}"
        return (published, self.pin) if weights in (None, published) else (str(weights), None)

    def statements(self, where: str) -> tuple[str, ...]:
        """The names of the files that say how weights at this place are used: of the published ones the table does."""
        return () if where == f"hf:{self.home}" else STATEMENTS

    def find(
        self, weights: str | None, progress: Progress | None = None, expected: str | None = None
    ) -> tuple[Located, str]:
        """The weights, fetched if they are not on this machine, and their digest.

        weights: as for `place`. progress: told how many bytes of a file were downloaded. expected: the digest that they
        must have; None: any. UserError: the weights cannot be fetched, were damaged, or are others than expected.
        """
        where, pin = self.place(weights)
        located = locate(where, progress, pin)
        found = located.digest()
        if expected not in (None, found):
            raise conflict(
                f"'{located.id}' is not the checkpoint that the features were computed with: its digest is {found}, "
                f"not {expected}.",
                f"Name the weights of the features: {parameter('weights')}.",
            )
        others = {name: beside(where, name, progress, pin) for name in self.statements(where)}
        return replace(located, others={name: _json(each.file) for name, each in others.items() if each}), found

    def check_sizes(self, source: str, **found: int) -> None:
        """Refuse weights of other sizes than the model has. source: what messages call them. found: sizes by name."""
        for what, value in found.items():
            expected = getattr(self, what)
            if expected not in (None, value):
                raise conflict(
                    f"'{source}' is another model: its {what} is {value}, not {expected}.",
                    f"Name other {parameter('weights')}, or the {parameter('model')} that they belong to.",
                )


def check(weights: str) -> None:
    """Raise UserError for weights that cannot be read, before anything is fetched: there is no such file, or its name
    shows that it holds no weights.
    """
    file = _Place(weights).file
    if file and file.endswith(_PICKLES):
        raise _pickle(f"'{file}' is", path=file)
    if file and not file.endswith(_KNOWN):
        raise unsupported(
            f"{quoted(file)} is not a file of weights.",
            f"Name a file that ends in {' or '.join(_KNOWN)}: {parameter('weights')}.",
        )


def locate(weights: str, progress: Progress | None = None, pin: Pin | None = None, *, cached: bool = False) -> Located:
    """Find the file of weights, and fetch it if it is not here. For the arguments see `Published.find`; cached: whether
    nothing is fetched.
    """
    check(weights)
    place = _Place(weights, progress, pin, cached)
    file = place.file or "model.safetensors"
    path = place.get(file)
    if path is None:
        raise missing(
            f"'{place.where}' has no file {place.ahead}{file}.",
            f"Get it, or name another file with {parameter('weights')}. Pickles (.bin, .pt) are not opened.",
        )
    config = place.get("config.json")
    return Located(
        id=f"{place.where}/{place.ahead}{file}" if place.repository else Path(weights).expanduser().resolve().name,
        file=path,
        config=_json(config) if config else {},
        expected=named_by(path) if pin is None else pin.sha256,
    )


def here(weights: str, pin: Pin | None, more: Sequence[str] = ()) -> bool:
    """Whether weights, and more files beside them, are on this machine, so that the hub is not needed."""
    try:
        locate(weights, pin=pin, cached=True)
        place = _Place(weights, pin=pin, cached=True)
        return all(place.get(name) or name in STATEMENTS for name in more)
    except UserError:
        return False


def fetch(weights: str, progress: Progress | None, pin: Pin | None, more: Sequence[str] = ()) -> None:
    """Fetch weights, and more files beside them. UserError as `Published.find`."""
    locate(weights, progress, pin)
    for name in more:
        beside(weights, name, progress, pin)


def remotes(weights: str, pin: Pin | None, more: Sequence[str] = ()) -> list[Remote]:
    """The files that `fetch` fetches, as far as is known before; [] if the weights are in a folder of this machine.

    Sizes, and digests without a pin, are as the hub says, if it can be reached.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    place = _Place(weights, pin=pin)
    if place.repository is None:
        return []
    found, main = list[Remote](), place.file or "model.safetensors"
    for name in (main, "config.json", *more):
        url = hf_hub_url(place.repository, place.ahead + name, revision=place.commit)
        size, etag = None, pin.sha256 if pin is not None and name == main else None
        with suppress(Exception):  # As in `download`.
            try:
                said = get_hf_file_metadata(url)
            except errors.EntryNotFoundError:
                continue
            size, etag = said.size, etag or said.etag
        sha256 = etag if re.fullmatch("[0-9a-f]{64}", etag or "") else None
        found.append(Remote(f"hub/{place.repository}/{place.ahead}{name}", size, sha256, (url,)))
    return found


def beside(weights: str, name: str, progress: Progress | None = None, pin: Pin | None = None) -> Located | None:
    """Find another file in the folder of weights, and fetch it if it is not here; None if there is none.

    pin: the version of the weights. The file is that of its commit. Raises UserError if the hub cannot be reached.
    """
    place = _Place(weights, progress, pin)
    path = place.get(name)
    if path is None:
        return None
    id = f"{place.where}/{place.ahead}{name}" if place.repository else name
    return Located(id=id, file=path, config={}, expected=named_by(path))


class _Place:
    """A folder on this machine or in a repository of the hub. UserError: there is no such folder or file, or it is not
    clear which file of a folder is meant.

    where: it, as messages and ids name it. file: the name of the file of weights, if it is known. In a repository it
    may begin with a folder (`ahead`). repository: `owner/name` on the hub; None for a folder on this machine.
    """

    def __init__(
        self, weights: str, progress: Progress | None = None, pin: Pin | None = None, cached: bool = False
    ) -> None:
        self._progress, self.commit, self._cached = progress, None if pin is None else pin.commit, cached
        self.where, self.file, self.ahead = weights, "", ""
        self.repository: str | None = None
        if weights.startswith("hf:"):
            found = _REPOSITORY.fullmatch(weights)
            if found is None:
                raise UserError(
                    f"'{weights}' does not name a repository.",
                    f"Write {parameter('weights')} hf:OWNER/NAME, or hf:OWNER/NAME/FILE.",
                )
            self.repository, named = found["repository"], found["file"] or ""
            self.where, self._folder = f"hf:{self.repository}", cache_folder() / "hub" / self.repository
            self.ahead, self.file = named[: named.rfind("/") + 1], named[named.rfind("/") + 1 :]
            return
        path = Path(weights).expanduser()
        if not path.is_file() and not path.is_dir():
            raise missing(
                f"There are no weights at {quoted(weights)}.",
                f"Name a file, its folder, or hf:OWNER/NAME: {parameter('weights')}.",
            )
        self._folder, self.file = (path, _file_in(path)) if path.is_dir() else (path.parent, path.name)
        self.where = str(self._folder)

    def get(self, name: str) -> Path | None:
        """A file of the folder, fetched if it is not on this machine; None if there is none."""
        if self.repository is not None and not self._folder.is_dir():
            return download(self.repository, self.ahead + name, self._progress, self.commit, self._cached)
        path = self._folder / self.ahead / name
        return path if path.is_file() else None


def _file_in(folder: Path) -> str:
    """The name of the one file of weights in a folder; of a pickle if there is nothing else."""
    names = sorted(path.name for path in folder.iterdir())
    files = [name for name in names if name.endswith(_KNOWN)]
    pickled = [name for name in names if name.endswith(_PICKLES)]
    if len(files) == 1 or (pickled and not files):
        return (files or pickled)[0]
    held = "no file" if not files else "several files"
    raise UserError(
        f"The folder {quoted(folder)} holds {held} of weights: {', '.join(files or _KNOWN)}.",
        f"Name one file: {parameter('weights')} {folder / (files or ['FILE'])[0]}.",
        code="missing" if not files else "conflict",
    )


def _json(path: Path) -> dict[str, Any]:
    with readable(path, "JSON", AGAIN):
        content = json_in(path)
    return content if isinstance(content, dict) else {}


# On the hub


def named_by(file: Path) -> str | None:
    """The SHA-256 that the cache of the hub names a file by; None if it is another file, or a small one, which has the
    name of a git object.
    """
    name = file.resolve().name
    return name if re.fullmatch("[0-9a-f]{64}", name) else None


def download(
    repository: str, file: str, progress: Progress | None, commit: str | None, cached: bool = False
) -> Path | None:
    """A file of the hub in the cache, fetched if it is not there; None if it is not in the repository.

    Args:
        repository: `owner/name`.
        file: its path there.
        progress: it is told how many bytes were downloaded.
        commit: the revision: a commit, a branch or a tag. None: the newest.
        cached: whether only the cache is asked.

    Raises:
        UserError: for everything else that goes wrong.

    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub import errors as hub

    code: Code = "unreachable"
    try:
        if not cached and not isinstance(try_to_load_from_cache(repository, file, revision=commit), str):
            _reach(repository, file, commit)
        meter = _meter(file, progress)
        return Path(hf_hub_download(repository, file, revision=commit, tqdm_class=meter, local_files_only=cached))
    except hub.LocalEntryNotFoundError as error:
        # The hub answered, and not from a repository that it calls gated.
        if getattr(getattr(error.__cause__, "response", None), "status_code", None) in (401, 403):
            raise _gated(repository, file) from None
        # The cache also remembers which files the hub does not have.
        if try_to_load_from_cache(repository, file, revision=commit) is _CACHED_NO_EXIST:
            return None
        problem = "it is not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
    except hub.EntryNotFoundError:
        return None
    except hub.GatedRepoError:
        raise _gated(repository, file) from None
    except hub.RepositoryNotFoundError:
        problem, code = "there is no such public repository", "missing"
    except Exception as error:  # The library changed twice which exceptions the network raises.
        problem = (sentence(error).splitlines()[0].rstrip(".")) or type(error).__name__
    raise UserError(
        f"'{file}' of '{repository}' cannot be fetched from the Hugging Face hub: {problem}.",
        "Check the name and the network and try again. Or get all files in another way ('dpfc fetch --dry-run' lists "
        f"them), put them into a folder of your own, and name it with {parameter('weights')}.",
        code=code,
        problem=f"{file}: {problem}",
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
        gated=True,
    )


def only_a_pickle(model: str, place: str, gated: bool) -> UserError:
    """The error for a model whose publisher has nothing but a pickle on the hub, at `owner/name/file`. gated: the
    publisher gives the file only to whom accepted its terms.
    """
    repository, _, file = place.rpartition("/")
    first = f"{_accept(repository)} Then fetch" if gated else "Fetch"
    first += (
        f" the file: hf download {repository} {file}. Or name hf:{repository}, if it has a model.safetensors by now. "
    )
    what = f"All that the publisher of {model} has is '{file}' of '{repository}', which is"
    return _pickle(what, first, gated=gated)


def _pickle(what: str, first: str = "", **fields: Any) -> UserError:
    return unsupported(
        f"{what} a pickle. Whoever opens a pickle runs the code in it.",
        f"{first}Convert it where that code can do no harm: tensors = torch.load(FILE, weights_only=True), then "
        f"safetensors.torch.save_file(tensors, 'model.safetensors'). Name the new file: {parameter('weights')}.",
        **fields,
    )


def _accept(repository: str) -> str:
    """What to do to get at a gated repository."""
    from huggingface_hub import constants

    return (
        f"Accept its terms at {constants.ENDPOINT}/{repository}. Then log in with the same account: `hf auth login`, "
        "or set HF_TOKEN."
    )
