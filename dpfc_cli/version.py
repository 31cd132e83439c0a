"""The version of dpfc, and which code it is."""

import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"


@functools.cache
def code_digest(package: str | None = None) -> str:
    """SHA-256 of all source files of a package or module, with their names. None: of dpfc, whose code may differ from
    commit to commit of one version.
    """
    spec, digest = None if package is None else find_spec(package), hashlib.sha256()
    if spec is not None and not spec.submodule_search_locations:
        files = [Path(spec.origin or "")]
        folder = files[0].parent
    else:
        folder = Path(__file__).parent if spec is None else Path(next(iter(spec.submodule_search_locations or ())))
        files = sorted(folder.rglob("*.py"))
    for path in files:
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
