"""Feature sets that are not finished: whether a run may go on with one, and the locks of those who are at work on it.

The identity of a set says what it is made of and how: data set, listing, backbone, settings. A second run
with the same identity makes the shards that are missing. A run with another identity is refused if there is a finished
shard, which it would have to delete. If there is none, what was begun is removed and the new run starts from nothing. A
run that ends without a finished shard removes what it began.

A run that keeps bad records as null records (`on_error`) may also go on with what was begun without that setting: the
finished shards of such a run contain no bad records. From then on the identity of the set has that setting, whichever
process finishes it.
"""

import errno
import fcntl
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfc_cli import files, schema
from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.features import digests
from dpfc_cli.features.manifest import MANIFEST, Manifest, load
from dpfc_cli.features.shards import writing
from dpfc_cli.files import opened
from dpfc_cli.folders import PARTIAL

SETTINGS = "settings.json"
"""The name of the file in which an unfinished set says what it is made of and how."""


def goes_on(identity: dict[str, Any], begun: Any) -> bool:
    """Whether shards that were made under the identity `begun` may become part of a set of `identity`.

    They may if both are the same. They also may if the only difference is that `begun` refused bad records: then the
    finished shards contain none.
    """
    return begun in (identity, {name: value for name, value in identity.items() if name != "on_error"})


def continues(begun: str, wanted: str) -> bool:
    """`goes_on`, for the settings of a partial set."""
    try:
        old, new = files.json_of(begun), files.json_of(wanted)
        return goes_on(new["identity"], old["identity"]) and {**old, "identity": None} == {**new, "identity": None}
    except (ValueError, LookupError, TypeError):
        return False


def begun_shards(
    partial: Path, counts: dict[str, int], rows: dict[str, int], identity: dict[str, Any]
) -> dict[str, int]:
    """The numbers of shards of the splits with which a set was begun; `counts` if it was not. rows: of the splits."""
    try:
        stored = files.json_in(partial / SETTINGS)
    except (OSError, ValueError):
        return counts
    numbers = schema.record({split: schema.whole(1, n) for split, n in rows.items()})
    known = schema.record({"identity": schema.anything, "shards": numbers})
    if schema.fault(stored, known) is not None:
        return counts
    return {split: stored["shards"][split] for split in counts} if goes_on(identity, stored["identity"]) else counts


def already_complete(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether `folder` is a finished set of this identity, or one that may take its place (see `goes_on`).

    Raises:
        UserError: the folder is a set of another identity, or something else.

    """
    if not folder.exists():
        return False
    manifest = load(folder)
    if goes_on(identity, manifest.source.get("identity")):
        # The run that finished it may have been killed before it tidied up.
        tidy(folder)
        return True
    raise UserError(
        f"'{folder}' exists and was made from another source or with other settings.",
        f"Choose another {parameter('out')}, or delete it.",
        code="exists",
        path=str(folder),
    )


def asserted(folder: Path, wanted: Manifest) -> Manifest:
    """The manifest of a finished set. Classes that `wanted` asserts replace the ones that it has so far."""
    manifest = load(folder)
    if wanted.origin == "asserted" and (manifest.origin, manifest.classes) != (wanted.origin, wanted.classes):
        manifest = replace(manifest, origin=wanted.origin, classes=wanted.classes)
        with writing(folder):
            files.replace(folder / MANIFEST, manifest.to_json())
    return manifest


def kept(folder: Path) -> str:
    """What there is of a feature set after its making was stopped, in a sentence, and what to do next."""
    partial = folder.with_name(folder.name + PARTIAL)
    if (folder / MANIFEST).exists():
        return f"'{folder}' is complete."
    made = len(list(partial.glob("*.h5")))
    if not made:
        return "No shard was finished, so nothing was kept. Run the same command to begin again."
    return f"{counted(made, 'finished shard')} kept in '{partial}'. Run the same command to go on."


def tidy(folder: Path) -> None:
    """Remove what only an unfinished set needs from a finished one."""
    with suppress(OSError):
        notes = (*folder.glob("*.sha256"), *folder.glob(f"*.h5{digests.NOTE}"))
        for left in (*notes, *folder.glob("*.tmp"), folder / SETTINGS):
            left.unlink(missing_ok=True)


def written_first(path: Path, text: str) -> bool:
    """Write a file unless there is one of that name; False if there was. Of several processes one is first."""
    return not path.exists() and files.make(path, text.encode()) == "made"


PATIENCE = 20
"""How often to try."""


class ReplacedError(FileNotFoundError):
    """What was opened under a name is no longer there."""


def locked_soon(folder: Path, kind: int) -> int:
    """`locked`, with repeated tries for a shared lock: another process may hold the folder alone for a moment, to see
    whether it is the last one.
    """
    for _ in range(PATIENCE):
        try:
            return locked(folder, kind)
        except BlockingIOError:
            if kind == fcntl.LOCK_EX:
                raise
            time.sleep(0.05)
    return locked(folder, kind)


def locked(folder: Path, kind: int) -> int:
    """Lock a folder.

    Args:
        folder: the folder.
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.

    Returns:
        A descriptor of the folder. It holds the lock until it is closed or the process ends.

    Raises:
        BlockingIOError: another process holds the lock.
        FileNotFoundError: there is no such folder. ReplacedError: it was removed or renamed meanwhile.
        NotADirectoryError: its name leads elsewhere, or to a file.

    """
    descriptor = opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # If the folder was renamed between these two calls, we have locked the wrong one.
        if not os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
            raise ReplacedError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def claimed(path: Path) -> int | None:
    """Lock a file that holds values of records. It is made if it is not there, for its owner alone.

    A link under that name is removed and not followed.

    Returns:
        A descriptor of the file, which holds the lock; None if another process holds it.

    """
    while True:
        try:
            descriptor = opened(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            path.unlink(missing_ok=True)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                # A file that an earlier version began may be open to others.
                os.fchmod(descriptor, 0o600)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        # The process that held the lock has renamed the file: what we locked is a finished shard now.
        os.close(descriptor)


def let_go(*descriptors: int) -> None:
    """Let go of locks. Nothing is written through these descriptors, so nothing is lost if that fails."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
