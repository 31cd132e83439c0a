"""`--classes`: what is typed becomes a number, names, or the path of a file of names."""

from pathlib import Path


def typed_classes(text: str | None) -> int | tuple[str, ...] | Path | None:
    """'10' is a number. A file's path, and a single word, is a path. Anything else is names, between commas."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    if Path(text).is_file() or ("," not in text and text.strip()):
        return Path(text)
    return tuple(name.strip() for name in text.split(","))
