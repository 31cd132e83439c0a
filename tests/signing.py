"""Keys, and signatures by the tool of the standard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from model_signing import hashing, signing, verifying


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """The files of a new private key and of its public one."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    key = ec.generate_private_key(ec.SECP256R1())
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def sign(head: Path, key: Path, *ignored: Path) -> Path:
    """Sign a file: the signature, HEAD.sig."""
    made = head.with_name(f"{head.name}.sig")
    config = signing.Config().use_elliptic_key_signer(private_key=key)  # type: ignore[no-untyped-call]
    left_out = hashing.Config().set_ignored_paths(paths=ignored)  # type: ignore[no-untyped-call]
    config.set_hashing_config(left_out).sign(head, made)
    return made


def meanwhile(patch: pytest.MonkeyPatch, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Somebody does this just before a signature is checked, and that just after it."""
    real = verifying.Config.verify

    def slow(*given: Any) -> None:
        before()
        real(*given)
        after()

    patch.setattr(verifying.Config, "verify", slow)
