"""dpfc: image classifiers from features, with a proof of differential privacy."""

try:
    import fcntl  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "dpfc runs on Linux and macOS. On Windows, install it inside WSL: dpfc needs the file locks of POSIX."
    ) from None

__version__ = "0.1.0"
