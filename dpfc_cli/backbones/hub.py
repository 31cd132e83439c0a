"""Files of the Hugging Face hub on this machine, and the bytes that they must have.

huggingface_hub downloads them. Its cache, its offline mode (HF_HUB_OFFLINE), its mirrors (HF_ENDPOINT) and its tokens
work as its documentation says. A folder hub/OWNER/NAME in the cache of dpfc stands for the whole repository: files that
were got in another way lie there.

The digest of weights is checked whenever they are loaded, also from the cache (`File.local`). The hub names a large
file by its SHA-256, and the cache keeps that name. This finds damage. It says nothing against the hub itself, or a
mirror. Where the table of models states commit and digest, they count, whatever the hub says.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfc_cli.downloads import Remote
from dpfc_cli.errors import Code, UserError, conflict, damaged, missing, parameter, quoted, sentence
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import cache_folder
from dpfc_cli.progress import Progress

AGAIN = "Get the file again."


@dataclass(frozen=True, kw_only=True)
class Local:
    """A file on this machine. id: `hf:owner/name/file`, or the name of a local file. sha256: of its bytes."""

    id: str
    path: Path
    sha256: str

    def describe(self) -> dict[str, str]:
        """What manifests say of it."""
        return {"id": self.id, "sha256": self.sha256}

    def check_is(self, expected: str | None) -> None:
        """Raise UserError unless it has the digest that features were computed with; None: any."""
        if expected not in (None, self.sha256):
            raise conflict(
                f"'{self.id}' is not the checkpoint that the features were computed with: its digest is {self.sha256}, "
                f"not {expected}.",
                f"Get that version of them. If they are a file of your own, name it: {parameter('weights')}.",
            )


@dataclass(frozen=True, kw_only=True)
class File:
    """A file on the hub.

    Attributes:
        repository: `owner/name`.
        name: its path there.
        commit: the revision that is taken: a commit, a branch or a tag; None: the newest.
        sha256: the digest that it must have; None: the one that the hub says.

    """

    repository: str
    name: str = "model.safetensors"
    commit: str | None = None
    sha256: str | None = None

    @property
    def id(self) -> str:
        """What manifests and messages call it."""
        return f"hf:{self.repository}/{self.name}"

    def beside(self, name: str) -> "File":
        """Another file of the same repository and commit."""
        return replace(self, name=name, sha256=None)

    def find(self, progress: Progress | None = None, *, cached: bool = False) -> Path | None:
        """Its place on this machine, where it is fetched to if it is not here; None if the repository does not have it.

        progress: told how many bytes were downloaded. cached: whether nothing is fetched. UserError: it cannot be
        fetched.
        """
        folder = cache_folder() / "hub" / self.repository
        if not folder.is_dir():
            return download(self, progress, cached=cached)
        return folder / self.name if (folder / self.name).is_file() else None

    def local(self, progress: Progress | None = None) -> Local:
        """The file on this machine. UserError as `find`; or it is missing there, was damaged or exchanged."""
        path = self.find(progress)
        if path is None:
            raise missing(f"'hf:{self.repository}' has no file {self.name}.", "'dpfc fetch --dry-run' lists the files.")
        return Local(id=self.id, path=path, sha256=checked(self, path))

    def here(self) -> bool:
        """Whether it is on this machine."""
        with suppress(UserError):
            return self.find(cached=True) is not None
        return False

    def remote(self) -> Remote:
        """What is known before it is fetched: its size and digest are as the hub says, if it can be reached."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url, size, sha256 = hf_hub_url(self.repository, self.name, revision=self.commit), None, self.sha256
        with suppress(Exception):  # As in `download`.
            said = get_hf_file_metadata(url)
            size, sha256 = said.size, sha256 or _digest(said.etag or "")
        return Remote(f"hub/{self.repository}/{self.name}", size, sha256, (url,))


def checked(file: File, path: Path) -> str:
    """The SHA-256 of a file of the hub at its place. UserError if it was damaged or exchanged: it must be the stated
    one, or the one that the cache of the hub names it by.
    """
    found, expected = sha256_of(path), file.sha256 or _digest(path.resolve().name)
    if expected not in (None, found):
        raise damaged(
            f"{quoted(path)} of '{file.id}' has the SHA-256 {found}, not {expected}: it was damaged or exchanged.",
            "Delete it and run the command again. If it comes back, do not use it.",
        )
    return found


def _digest(name: str) -> str | None:
    """The SHA-256 that the hub names a large file by; None if it is the name of a git object, of a small one."""
    return name if re.fullmatch("[0-9a-f]{64}", name) else None


def download(file: File, progress: Progress | None = None, *, cached: bool = False) -> Path | None:
    """A file in the cache of huggingface_hub, fetched if it is not there. The arguments and errors are those of
    `File.find`.
    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub import errors as hub

    place: Any = {"repo_id": file.repository, "filename": file.name, "revision": file.commit}
    code: Code = "unreachable"
    try:
        if not cached and not isinstance(try_to_load_from_cache(**place), str):
            _reach(file)
        return Path(hf_hub_download(**place, tqdm_class=_meter(file.name, progress), local_files_only=cached))
    except hub.LocalEntryNotFoundError as error:
        # The hub answered, and not from a repository that it calls gated.
        if getattr(getattr(error.__cause__, "response", None), "status_code", None) in (401, 403):
            raise _gated(file) from None
        # The cache also remembers which files the hub does not have.
        if try_to_load_from_cache(**place) is _CACHED_NO_EXIST:
            return None
        problem = "it is not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
    except hub.EntryNotFoundError:
        return None
    except hub.GatedRepoError:
        raise _gated(file) from None
    except hub.RepositoryNotFoundError:
        problem, code = "there is no such public repository", "missing"
    except Exception as error:  # The library changed twice which exceptions the network raises.
        problem = (sentence(error).splitlines()[0].rstrip(".")) or type(error).__name__
    raise UserError(
        f"'{file.name}' of '{file.repository}' cannot be fetched from the Hugging Face hub: {problem}.",
        "Check the name and the network and try again. Or get the files of the model in another way: 'dpfc fetch "
        "--dry-run' says where to put them.",
        code=code,
        problem=f"{file.name}: {problem}",
    )


def _reach(file: File) -> None:
    """Raise LocalEntryNotFoundError if the hub cannot be reached.

    Without this, the library would try six times to fetch the file, for half a minute, and log each time.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(file.repository, file.name, revision=file.commit))
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


def _gated(file: File) -> UserError:
    """The error for a file that the hub does not give to this account, or to nobody without one."""
    from huggingface_hub import constants

    return UserError(
        f"'{file.name}' of '{file.repository}' is gated: its publisher gives it only to accounts that accepted the "
        "terms.",
        f"Accept its terms at {constants.ENDPOINT}/{file.repository}. Then log in with the same account: `hf auth "
        "login`, or set HF_TOKEN. If you did both, the page says whether the publisher still has to agree.",
        code="unreadable",
        gated=True,
    )
