"""Places at URLs: `s3://`, `gs://`, `az://` and `hf://`, by universal-pathlib and fsspec.

Credentials are found by the library of the provider, as its own tools find them. They are no part of a place: one that
is sent to another process finds its file system, and the credentials there, again by its URL.

What these libraries raise becomes an OSError with words of ours: their own texts may hold addresses of requests, keys
or signatures. No listing is kept: another process may write at the same time.
"""

from typing import TYPE_CHECKING

from dpfc_cli.errors import check_installed, unsupported

if TYPE_CHECKING:
    from dpfc_cli.extensions.buckets.remote import Place

LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""What speaks to a provider. `hf` is spoken by huggingface-hub, which dpfc needs in any case."""


def place(url: str) -> "Place":
    """The place at a URL. UserError: a library is not installed."""
    scheme = url.partition(":")[0]
    for package in ("fsspec", "upath", *([LIBRARIES[scheme]] if scheme in LIBRARIES else [])):
        check_installed(package, "buckets", f"For {scheme}://")
    from dpfc_cli.extensions.buckets.remote import Place

    if not url.split("/")[2]:
        raise unsupported("A URL names no bucket.", f"Write {scheme}://BUCKET/FOLDER.")
    return Place(url, use_listings_cache=False)
