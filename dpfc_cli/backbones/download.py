"""One file of the Hugging Face hub, from the cache or fetched."""

import re
from pathlib import Path
from typing import Any

from dpfc_cli.backbones.access import gated
from dpfc_cli.backbones.backbone import Progress
from dpfc_cli.errors import Code, UserError, parameter, sentence


def named_by(file: Path) -> str | None:
    """The SHA-256 that the cache names a file by; None if it is a small one, which has the name of a git object."""
    name = file.resolve().name
    return name if re.fullmatch("[0-9a-f]{64}", name) else None


def download(
    repository: str, file: str, progress: Progress | None, commit: str | None, optional: bool = False
) -> Path | None:
    """A file in the cache, fetched if it is not there.

    Args:
        repository: `owner/name`.
        file: its path there.
        progress: it is told how many bytes were downloaded.
        commit: the revision: a commit, a branch or a tag. None: the newest.
        optional: whether the repository may lack it.

    Returns:
        Its place; None if it is optional and the repository does not have it.

    Raises:
        UserError: for everything that goes wrong.

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
            raise gated(repository, file) from None
        # The cache also remembers which files the hub does not have.
        if optional and try_to_load_from_cache(repository, file, revision=commit) is _CACHED_NO_EXIST:
            return None
        problem = "it is not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
    except hub.EntryNotFoundError:
        if optional:
            return None
        problem, code = "the repository has no such file", "missing"
    except hub.GatedRepoError:
        raise gated(repository, file) from None
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
