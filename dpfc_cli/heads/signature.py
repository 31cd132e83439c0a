"""Detached signatures of heads: who vouches for the bytes of a file. `minisign` has the format."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpfc_cli.errors import UserError, check_installed, check_new_name, parameter, printable
from dpfc_cli.files import check_plain, make
from dpfc_cli.heads import minisign
from dpfc_cli.heads.head import Head, located
from dpfc_cli.heads.hub import PREFIX
from dpfc_cli.heads.minisign import LONGEST_COMMENT, SUFFIX, PublicKey, Signature


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A signature that was made, or that was checked.

    Attributes:
        path: its file.
        key: the number of the key, as minisign shows it.
        comment: what the signature says besides. It is signed, too.

    """

    path: Path
    key: str
    comment: str


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A new key.

    Attributes:
        secret: the file with the secret key. Keep it secret.
        public: the file with the public key.
        line: the public key in one line.
        key: its number, as minisign shows it.

    """

    secret: Path
    public: Path
    line: str
    key: str


def new_key(path: Path | str, *, password: str = "") -> KeyPair:
    """Make a key for signing heads. minisign reads it, too.

    Args:
        path: the file for the secret key, mode 0600. The public key goes beside it, with the ending .pub.
        password: it encrypts the secret key. "": the key is not encrypted.

    Returns:
        The files, and the public key in one line.

    Raises:
        UserError: one of the files exists or cannot be written, or `cryptography` is not installed.

    """
    _check_installed()
    secret = Path(path)
    public = secret.with_suffix(".pub")
    if public == secret:
        raise UserError(
            "The ending .pub is for the public key.",
            f"Give the secret key another ending, such as .key: {parameter('new_key')}.",
            parameter="new_key",
        )
    check_new_name(secret.name)
    key = minisign.SecretKey.new()
    _make(public, key.public.text().encode())
    try:
        _make(secret, key.text(password).encode(), mode=0o600)
    except BaseException:
        # Nobody has the other half.
        public.unlink()
        raise
    return KeyPair(secret=secret, public=public, line=key.public.line(), key=key.public.name)


def sign(
    head: Path | str,
    *,
    key: Path | str,
    comment: str | None = None,
    password: str | Callable[[], str] | None = None,
) -> Signed:
    """Sign a head: whoever has the public key can see that the holder of the secret key vouches for its bytes.

    Args:
        head: its file, or its name in the folder for heads.
        key: the file of a secret key, made by `new_key` or by minisign.
        comment: what the signature says besides, one line. None: the time and the file's name.
        password: of the key, if it is encrypted; or a function that is called for it.

    Returns:
        The signature, in the file HEAD.minisig.

    Raises:
        UserError: the head contradicts itself, the key cannot be read, the password is wrong, the head has a signature
            already, or `cryptography` is not installed.

    """
    _check_installed()
    if str(head).startswith(PREFIX):
        raise UserError(
            f"'{head}' is on the Hugging Face hub, and a signature lies beside the file of a head.",
            "Sign the file, then push it: dpfc push HEAD hf:OWNER/NAME sends its signature, too.",
            parameter="head",
        )
    path = located(head)
    Head.load(path).refuse_contradictions()
    said = comment if comment is not None else f"{printable(path.name)}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    _check_comment(said)
    made = _signature_of(path)
    if made.exists():
        raise _taken(made, f"Remove '{made.name}' if it is to be replaced.")
    data, asked = _read(Path(key), "key"), password
    try:
        secret = minisign.secret_key_in(data, asked if callable(asked) else lambda: _given(asked, key))
    except minisign.PasswordError as error:
        remedy = "Try again. If you have lost the password, nobody can use this key any more."
        raise UserError(f"The key '{key}' cannot be opened: {error}.", remedy, path=str(key)) from None
    except ValueError as error:
        raise _damaged(Path(key), "a secret key", error) from None
    with path.open("rb") as file:
        signature = secret.sign(file, said)
    _make(made, signature.text())
    return Signed(path=made, key=signature.name, comment=said)


def check(head: Path, public_key: Path | str) -> Signed:
    """Check the signature beside a head.

    Args:
        head: the head's file. It need not be a head.
        public_key: the file of the key, or the key itself in one line.

    Raises:
        UserError: there is no signature, the key did not make it, or it is of another file.

    """
    return _checked(head, public_key)[0]


def check_bytes(head: Path, data: bytes, public_key: Path | str) -> bytes:
    """Check the signature beside a head for bytes that were read from the head's file: the bytes of the signature.

    Raises:
        UserError: as `check`.

    """
    return _checked(head, public_key, data)[1]


def _checked(head: Path, public_key: Path | str, data: bytes | None = None) -> tuple[Signed, bytes]:
    """The signature and its bytes. data: of the head, if they were read."""
    _check_installed()
    key, path = _public(public_key), _signature_of(head)
    if not path.exists():
        raise UserError(
            f"'{head}' is not signed: there is no file '{path}'.",
            f"Ask for the signature, or check the head without one: leave out {parameter('public_key')}.",
            code="missing",
            parameter="public_key",
            path=str(path),
        )
    text = _read(path, "head")
    try:
        signature = minisign.signature_in(text)
    except ValueError as error:
        raise _damaged(path, "a signature", error) from None
    if signature.number != key.number:
        raise UserError(
            f"'{head}' is signed by another key: '{path}' is by {signature.name}, and not by {key.name}.",
            "Ask whoever signed it for the public key, in a way that you trust.",
            code="conflict",
            parameter="public_key",
            path=str(path),
        )
    wrong = _wrong(signature, key, head, data)
    if wrong:
        raise UserError(
            f"The signature '{path}' is not good: {wrong}.",
            "Do not rely on the head: ask for it and its signature again.",
            code="damaged",
            path=str(path),
        )
    # Whoever signs may write any bytes.
    return Signed(path=path, key=key.name, comment=signature.comment.decode(errors="backslashreplace")), text


def exists(head: Path) -> bool:
    """Whether there is a signature beside a head, good or not."""
    return _signature_of(head).exists()


def _wrong(signature: Signature, key: PublicKey, head: Path, data: bytes | None) -> str | None:
    try:
        check_plain(head)
        opened: io.BufferedIOBase = head.open("rb") if data is None else io.BytesIO(data)
        with opened as file:
            same = minisign.is_of(signature, key, file)
    except OSError as error:
        raise _unreadable(head, error) from error
    if not same:
        return f"the key {key.name} signed another file than '{head}', or none"
    if not minisign.is_comment_of(signature, key):
        return "its comment was changed after the signing"
    return None


def _signature_of(head: Path) -> Path:
    return head.with_name(head.name + SUFFIX)


def _check_installed() -> None:
    check_installed("cryptography", "sign", "For signatures")


def _check_comment(said: str) -> None:
    if printable(said) != said or len(said.encode()) > LONGEST_COMMENT:
        raise UserError(
            f"{parameter('comment')} must be one line of at most {LONGEST_COMMENT:,} bytes.",
            "Give a shorter one, without line ends.",
            parameter="comment",
        )


def _given(password: str | None, key: Path | str) -> str:
    if password is None:
        raise UserError(
            f"The key '{key}' is encrypted.", f"Give its password: {parameter('password')}.", parameter="password"
        )
    return password


def _public(given: Path | str) -> PublicKey:
    path, line = Path(given), str(given)
    typed = minisign.LINE.fullmatch(line) and not path.exists()
    try:
        data = line.encode() if typed else _read(path, "public_key")
        return minisign.public_key_in(data)
    except ValueError as error:
        raise _damaged(path, "a public key", error) from None


def _read(path: Path, name: str) -> bytes:
    try:
        check_plain(path)
        with path.open("rb") as file:
            data = file.read(minisign.LARGEST + 1)
    except FileNotFoundError:
        raise UserError(
            f"There is no file '{path}'.",
            f"Name another one: {parameter(name)}. 'dpfc sign' makes keys and signatures, and so does minisign.",
            code="missing",
            parameter=name,
            path=str(path),
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > minisign.LARGEST:
        raise _damaged(path, "a key or a signature", ValueError("it is too large"))
    return data


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"'{path}' cannot be read: {error.strerror or error}.",
        "Look at the file and its rights.",
        code="unreadable",
        path=str(path),
    )


def _damaged(path: Path, what: str, error: ValueError) -> UserError:
    return UserError(
        f"'{path}' cannot be read as {what} of minisign's format: {error}.",
        "Name another file. If it is the right one, it is damaged: ask for it again.",
        code="damaged",
        path=str(path),
    )


def _make(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a new file, whole or not at all. One that is there stays as it is."""
    try:
        found = make(path, data, mode)
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be written: {error.strerror or error}.",
            "Choose a writable place, or make room.",
            code="unwritable",
            path=str(path),
        ) from error
    if found != "made":
        raise _taken(path, "Keys and signatures are never overwritten. Choose another name, or remove this file.")


def _taken(path: Path, remedy: str) -> UserError:
    return UserError(f"There is a file '{path}' already.", remedy, code="exists", path=str(path))
