"""The version of dpfc, and which code it is."""

import functools
import hashlib
from pathlib import Path

__version__ = "0.1.0"


@functools.cache
def code_digest() -> str:
    """SHA-256 of all source files of dpfc, with their names. Code of one version may differ from commit to commit."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
