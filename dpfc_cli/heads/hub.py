"""Heads in repositories of the Hugging Face hub: `hf:OWNER/NAME[/FILE][@REVISION]`.

A head is fetched by commit, with its signature if there is one. The cache of huggingface_hub has a folder for each
commit, so the place of a fetched file says where it came from (`origin`).
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from dpfc_cli.errors import UserError, missing
from dpfc_cli.heads.signature import SUFFIX

PREFIX = "hf:"
STEM = "head"
"""The name of a head in a repository, before its suffix."""
_NAMED = re.compile(r"hf:(?P<repository>[^/\s@]+/[^/\s@]+)(?:/(?P<file>[^\s@]+))?(?:@(?P<revision>\S+))?")
_FETCHED = re.compile(
    r"(?:.*/)?models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})/(?P<file>.+)"
)


def fetch(name: str, suffixes: Sequence[str]) -> Path:
    """The file of a head on the hub, fetched if it is not on this machine, with its signature beside it.

    name: `hf:OWNER/NAME[/FILE][@REVISION]`. Without FILE it is head.safetensors, or the name of a head without a
    guarantee. Without REVISION it is the newest commit. suffixes: how the names of heads end, in the order in which
    they are looked for. UserError: the name makes no sense, or the head cannot be fetched.
    """
    found = _NAMED.fullmatch(name)
    if found is None or ".." in PurePosixPath(found["file"] or "").parts:
        raise UserError(
            f"'{name}' does not name a head on the Hugging Face hub.",
            "Write hf:OWNER/NAME, hf:OWNER/NAME/FILE or hf:OWNER/NAME@REVISION.",
            parameter="head",
        )
    # It loads all families of backbones, and few heads are on the hub.
    from dpfc_cli.backbones import hub

    repository, revision = found["repository"], found["revision"]
    for file in [found["file"]] if found["file"] else [STEM + suffix for suffix in suffixes]:
        path = _download(repository, file, revision)
        if path is not None:
            break
    else:
        raise missing(
            f"The repository '{repository}' has no file {found['file'] or STEM + suffixes[0]}.",
            f"If its head has another name, write hf:{repository}/FILE.",
            parameter="head",
        )
    commit = path.parents[len(PurePosixPath(file).parts) - 1].name
    # Offline, the cache may not know whether there is a signature. Who checks it misses it then.
    with suppress(UserError):
        _download(repository, file + SUFFIX, commit)
    hub.checked(hub.File(repository=repository, name=file), path)
    return path


def origin(path: Path) -> str | None:
    """`hf:OWNER/NAME/FILE@COMMIT` of a file that was fetched; None for others."""
    found = _FETCHED.fullmatch(str(path))
    if found is None:
        return None
    return f"{PREFIX}{found['owner']}/{found['name']}/{found['file']}@{found['commit']}"


def _download(repository: str, file: str, revision: str | None) -> Path | None:
    from dpfc_cli.backbones import hub

    try:
        return hub.download(hub.File(repository=repository, name=file, commit=revision))
    except UserError as error:
        remedy = "Check the name, the revision and the network, and try again. Or get the file in another way."
        fields = {**error.fields, "parameter": "head"}
        raise UserError(error.what, remedy, code=error.code, **fields) from error
