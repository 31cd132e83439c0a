"""Signatures of heads by the OpenSSF's standard for models: who vouches for the bytes of a file.

`model_signing`, the tool of the standard, makes them. Here they are checked. No check of a card rests on them.
"""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from dpfc_cli.errors import Code, UserError, check_installed, conflict, missing, parameter, quoted, sentence
from dpfc_cli.files import sha256_of
from dpfc_cli.options import HEAD, Options, option, said

SUFFIX = ".sig"
LEDGER = "The ledger that its training was charged to. Default: that of the head's feature set, if it is here."
"""What is said of an option that names it."""
NOT_BEFORE = "Refuse a ledger whose newest row is of an earlier day: YYYY-MM-DD, in UTC."
LARGEST = 2**20
"""Bytes of the largest file of a key, of certificates or of a signature."""


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A signature that was checked. path: its file. by: who signed, in words."""

    path: Path
    by: str


def beside(head: Path) -> Path:
    return head.with_name(head.name + SUFFIX)


@dataclass(frozen=True, kw_only=True)
class Signer(Options):
    """Who must have signed a head; nothing, if no signature is to be checked."""

    signature: Path | str | None = option(
        "The signature that 'model_signing sign' made. Default: HEAD.sig.", metavar="FILE"
    )
    public_key: Path | str | None = option("The holder of its private key must have signed.", metavar="FILE")
    certificate_chain: Path | str | None = option(
        "The holder of a certificate under one of these must have signed.", metavar="FILE"
    )
    identity: str | None = option(
        "Who must have signed through Sigstore: a mail address. This needs the network.", metavar="NAME"
    )
    identity_provider: str | None = option("The https address of who knows this name.", metavar="URL")


@dataclass(frozen=True, kw_only=True)
class Checking(Signer):
    """A check of a head as it is asked for."""

    head: Path | str = field(kw_only=False, metadata=said(HEAD, argument=True))
    ledger: Path | str | None = option(LEDGER, metavar="FILE")
    not_before: str | None = option(NOT_BEFORE, metavar="DATE")


def check(copy: Path, head: Path, signer: Signer) -> Signed | None:
    """Check the signature of a head. None if it was not said who must have signed.

    `copy` has the bytes of `head`, and nobody else can change it. Without a named signature it lies `beside` the head.
    UserError: the signature is missing or not good, or it is not clear who must have signed.
    """
    public_key, certificate_chain = signer.public_key, signer.certificate_chain
    identity, identity_provider = signer.identity, signer.identity_provider
    named = [name for name in ("public_key", "certificate_chain", "identity") if getattr(signer, name) is not None]
    if not named and signer.signature is identity_provider is None:
        return None
    if len(named) != 1 or (identity is None) != (identity_provider is None):
        ways = [parameter("public_key"), parameter("certificate_chain"), f"{parameter('identity')} with its "]
        raise conflict(
            "It is not clear who must have signed.", f"Give one of {', '.join(ways)}{parameter('identity_provider')}."
        )
    check_installed("model_signing", "sign", "For signatures")
    path = beside(head) if signer.signature is None else Path(signer.signature)
    for name, file in {"signature": path, "public_key": public_key, "certificate_chain": certificate_chain}.items():
        if file is not None and not (Path(file).is_file() and Path(file).stat().st_size <= LARGEST):
            raise missing(
                f"There is no file {quoted(file)} of at most {LARGEST:,} bytes.",
                "Name the right one, or ask whoever signed the head for it.",
                parameter=name,
            )
    from model_signing import hashing, verifying

    class Whole(hashing.Config):
        def add_ignored_paths(self, *, model_path: hashing.PathLike, paths: Iterable[hashing.PathLike]) -> None:
            """A signature that leaves out the file itself would be good for any."""

    code: Code = "bad-value"
    wrong, remedy = f"{parameter(named[0])} cannot be used", "Name the right one: of a pair of keys the public one."
    config = verifying.Config().set_hashing_config(Whole())  # type: ignore[no-untyped-call]
    try:
        # The library prints warnings, and the standard output is for results.
        with redirect_stdout(sys.stderr):
            if public_key is not None:
                config.use_elliptic_key_verifier(public_key=public_key)
                key = Path(public_key)
                by = f"the holder of the private key of '{key.name}' (SHA-256 {sha256_of(key)})"
            elif certificate_chain is not None:
                config.use_certificate_verifier(certificate_chain=[certificate_chain])
                by = f"the holder of a certificate under '{Path(certificate_chain).name}'"
            elif identity is not None and identity_provider is not None:
                config.use_sigstore_verifier(identity=identity, oidc_issuer=identity_provider)
                by = f"{identity} ({identity_provider})"
            code, wrong = "damaged", f"The signature {quoted(path)} is not good"
            remedy = f"Do not rely on '{head}'. Ask whoever signed it for the head, its signature and the key again."
            config.verify(copy, path)
    # The library raises whatever comes up in a file of others.
    except Exception as error:
        reason = sentence(error).partition("\n")[0].partition(": [")[0].rstrip(" .") or type(error).__name__
        raise UserError(
            f"{wrong}: {reason[:300]}.",
            remedy + (" Sigstore needs the network." if identity else ""),
            code=code,
            parameter=named[0],
        ) from error
    return Signed(path=path, by=by)
