"""`--classes`: what is typed becomes a number, names, or the path of a file of names."""

import os
from pathlib import Path


def typed_classes(text: str | None) -> int | tuple[str, ...] | Path | None:
    """'10' is a number. A file's path, and a single word, is a path. Anything else is names, between commas."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    # Names may be longer together than a path can be. Then `os.path.isfile` says no, and `Path.is_file` raises.
    if os.path.isfile(text) or ("," not in text and text.strip()):
        return Path(text)
    return tuple(name.strip() for name in text.split(","))
