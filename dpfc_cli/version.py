"""The version of dpfc, and which code it is."""

import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"
TRAINING = tuple(f"dpfc_cli.{each}" for each in ("privacy", "kernels", "methods", "features.reader", "features.hdf5"))
"""What decides which head a training makes of a charge and its records, and so which pieces belong to one answer: of
two readings of a record they may have a larger norm together than one of them.
"""


@functools.cache
def code_digest(*packages: str) -> str:
    """SHA-256 of all source files of packages or modules, with their names. The code of dpfc may differ from commit to
    commit of one version.
    """
    digest = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"there is no source of {package}")
        origin = Path(spec.origin)
        folder = origin.parent
        files = [origin] if spec.submodule_search_locations is None else sorted(folder.rglob("*.py"))
        for path in files:
            for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
                digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
