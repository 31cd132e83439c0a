"""The files of minisign: public keys, secret keys and signatures. Anyone can check them with `minisign -V`, too.

Each file is lines of text: an untrusted comment, which is not signed, then base64 of these bytes:

- public key: "Ed", the key's number (8), the point (32).
- secret key: "Ed", "Sc" if it is encrypted (else two zeros), "B2", salt (32), two limits for scrypt (8 each, little
  endian); then the number (8), the seed (32), the point (32) and a checksum (32). If it is encrypted, these 104 bytes
  are combined by exclusive or with scrypt's output for the password. The checksum is the BLAKE2b-256 of "Ed" and the
  72 bytes before it. Keys without a password have zeros there.
- signature: "ED", the number (8), the Ed25519 signature (64) of the BLAKE2b-512 of the signed file. ("Ed": of the file
  itself, as older versions did.) Then a line with a comment, and base64 of the signature (64) of that signature and the
  comment. So this comment is trusted as far as the key is.

The format is described at https://jedisct1.github.io/minisign/. This module holds no file names. What is wrong with a
file is a ValueError.
"""

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedIOBase

SUFFIX = ".minisig"
LINE = re.compile("RW[A-Za-z0-9+/]{54}")
"""A public key in one line."""
LARGEST = 2**16
"""Bytes of the largest file of a key or a signature."""
LONGEST_COMMENT = 2048
"""Bytes of the longest comment that is written. minisign reads up to 8,192."""
COST = 2**25, 2**30
"""The limits for scrypt in new keys, those of minisign: operations, and bytes of memory."""
_UNTRUSTED, _TRUSTED = b"untrusted comment: ", b"trusted comment: "
_PLAIN, _HASHED = b"Ed", b"ED"
_ENCRYPTED, _OPEN, _CHECKSUM = b"Sc", bytes(2), b"B2"
_BLOCK = 8
"""The r of scrypt."""


class PasswordError(ValueError):
    """The password of a secret key is wrong, or the key is damaged: they look the same."""


def _shown(number: bytes) -> str:
    return f"{int.from_bytes(number, 'little'):016X}"


@dataclass(frozen=True)
class PublicKey:
    """Who can sign. number: tells keys apart, and proves nothing. point: 32 bytes."""

    number: bytes
    point: bytes

    @property
    def name(self) -> str:
        """The number as minisign shows it."""
        return _shown(self.number)

    def line(self) -> str:
        """The key in 56 characters."""
        return base64.b64encode(_PLAIN + self.number + self.point).decode()

    def text(self) -> str:
        """What stands in its file."""
        return f"untrusted comment: minisign public key {self.name}\n{self.line()}\n"


@dataclass(frozen=True)
class Signature:
    """What stands in a signature's file, not checked."""

    hashed: bool
    number: bytes
    signed: bytes
    comment: bytes
    whole: bytes
    """The signature of `signed` and the comment."""

    @property
    def name(self) -> str:
        """The number of the key that it says it is by."""
        return _shown(self.number)

    def text(self) -> bytes:
        """What stands in its file."""
        first = base64.b64encode((_HASHED if self.hashed else _PLAIN) + self.number + self.signed)
        lines = [_UNTRUSTED + b"signature from dpfc", first, _TRUSTED + self.comment, base64.b64encode(self.whole)]
        return b"\n".join([*lines, b""])


@dataclass(frozen=True)
class SecretKey:
    """What signs. It is never shown."""

    number: bytes
    seed: bytes = field(repr=False)

    @classmethod
    def new(cls) -> "SecretKey":
        return cls(secrets.token_bytes(8), secrets.token_bytes(32))

    @property
    def public(self) -> PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return PublicKey(self.number, Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw())

    def sign(self, file: BufferedIOBase, comment: str) -> Signature:
        """Sign a file and a comment of one line."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key, said = Ed25519PrivateKey.from_private_bytes(self.seed), comment.encode()
        signed = key.sign(_hash(file))
        return Signature(True, self.number, signed, said, key.sign(signed + said))

    def text(self, password: str) -> str:
        """What stands in its file. password: "" for a key that is not encrypted."""
        inner, salt, limits = self.number + self.seed + self.public.point, bytes(32), (0, 0)
        if password:
            salt, limits = secrets.token_bytes(32), COST
            inner = _xor(inner + _checksum(inner), _scrypt(password, salt, *limits))
        else:
            inner += bytes(32)
        outer = _PLAIN + (_ENCRYPTED if password else _OPEN) + _CHECKSUM + salt
        outer += b"".join(limit.to_bytes(8, "little") for limit in limits)
        return f"untrusted comment: minisign encrypted secret key\n{base64.b64encode(outer + inner).decode()}\n"


def public_key_in(data: bytes) -> PublicKey:
    """The public key in a file, or in a line alone. Raises ValueError."""
    lines = _lines(data)
    raw = _bytes(lines[0] if len(lines) == 1 else _after_comment(lines), 42, (_PLAIN,))
    return PublicKey(raw[2:10], raw[10:])


def secret_key_in(data: bytes, password: Callable[[], str]) -> SecretKey:
    """The secret key in a file.

    Args:
        data: the file.
        password: called only if the key is encrypted.

    Raises:
        PasswordError: the password is wrong.
        ValueError: it is no such file.

    """
    raw = _bytes(_after_comment(_lines(data)), 158, (_PLAIN,))
    kind, salt, inner = raw[2:4], raw[6:38], raw[54:]
    if kind not in (_OPEN, _ENCRYPTED) or raw[4:6] != _CHECKSUM:
        raise ValueError("it is encrypted in a way that is not known")
    if kind == _ENCRYPTED:
        limits = int.from_bytes(raw[38:46], "little"), int.from_bytes(raw[46:54], "little")
        inner = _xor(inner, _scrypt(password(), salt, *limits))
        if inner[72:] != _checksum(inner[:72]):
            raise PasswordError("the password is wrong, or the file is damaged")
    key = SecretKey(inner[:8], inner[8:40])
    if key.public.point != inner[40:72]:
        raise ValueError("its two halves do not fit together")
    return key


def signature_in(data: bytes) -> Signature:
    """The signature in a file. Raises ValueError."""
    lines = _lines(data)
    if len(lines) != 4 or not lines[2].startswith(_TRUSTED):
        raise ValueError("it has not the four lines of a signature")
    raw = _bytes(_after_comment(lines[:2]), 74, (_PLAIN, _HASHED))
    comment = lines[2].removeprefix(_TRUSTED)
    return Signature(raw[:2] == _HASHED, raw[2:10], raw[10:], comment, _bytes(lines[3], 64))


def is_of(signature: Signature, key: PublicKey, file: BufferedIOBase) -> bool:
    """Whether the key signed this file."""
    return _signed(key, signature.signed, _hash(file) if signature.hashed else file.read())


def is_comment_of(signature: Signature, key: PublicKey) -> bool:
    """Whether the key signed this comment, together with this signature."""
    return _signed(key, signature.whole, signature.signed + signature.comment)


def _signed(key: PublicKey, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.point).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _hash(file: BufferedIOBase) -> bytes:
    return hashlib.file_digest(file, hashlib.blake2b).digest()


def _checksum(inner: bytes) -> bytes:
    return hashlib.blake2b(_PLAIN + inner, digest_size=32).digest()


def _lines(data: bytes) -> list[bytes]:
    """The lines of a file. A last line may end without a line end; mail and Windows put returns before line ends."""
    return [line.rstrip(b"\r") for line in data.removesuffix(b"\n").split(b"\n")]


def _after_comment(lines: list[bytes]) -> bytes:
    if len(lines) != 2 or not lines[0].startswith(_UNTRUSTED):
        raise ValueError("it has not the two lines of a key")
    return lines[1]


def _bytes(line: bytes, size: int, kinds: tuple[bytes, ...] = ()) -> bytes:
    """Bytes from base64, so many, and of one of these kinds. Raises ValueError."""
    try:
        raw = base64.b64decode(line, validate=True)
    except binascii.Error:
        raise ValueError("it has a line that is no base64") from None
    if len(raw) != size:
        raise ValueError(f"it has {len(raw)} bytes where {size} belong")
    if kinds and raw[:2] not in kinds:
        raise ValueError("it is of a kind that is not known")
    return raw


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def costs(operations: int, memory: int) -> tuple[int, int]:
    """The N and p of scrypt for two limits, as libsodium chooses them (r is 8). Raises ValueError."""
    operations = max(operations, 2**15)
    bound = operations // (4 * _BLOCK) if operations < memory // 32 else memory // (128 * _BLOCK)
    # The least power of two, from 2 on, that is above half of the bound.
    n = max(2, 1 << (bound // 2).bit_length())
    p = 1 if operations < memory // 32 else operations // 4 // n // _BLOCK
    if p >= 2**10 or 128 * _BLOCK * n >= 2**31:
        raise ValueError("its password would take more memory or time than dpfc allows")
    return n, p


def _scrypt(password: str, salt: bytes, operations: int, memory: int) -> bytes:
    n, p = costs(operations, memory)
    most = 128 * _BLOCK * (n + p + 2)
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=_BLOCK, p=p, maxmem=most, dklen=104)
