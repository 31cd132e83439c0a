"""Keys and signatures in minisign's format. What minisign 0.11 wrote stands here as it wrote it."""

import base64
from io import BufferedReader, BytesIO

import pytest

from dpfc_cli.heads import minisign
from dpfc_cli.heads.minisign import PasswordError, SecretKey, costs, public_key_in, secret_key_in, signature_in

DATA = b"a head that was signed"
PUBLIC = b"""untrusted comment: minisign public key 6B22FC1A7F878FB7
RWS3j4d/Gvwia4jwFIWF6Y0W9jTSthJAK7oR+DJTkCXl0YM4C+s3yjY4
"""
# It was made for these tests, and signs nothing else.
SECRET = b"""untrusted comment: minisign encrypted secret key
RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAt4+Hfxr8ImtyEzlM5velzUNMkbxVol9j2G9v11KcfK1\
Tvsvmosn2UojwFIWF6Y0W9jTSthJAK7oR+DJTkCXl0YM4C+s3yjY4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
"""
SIGNATURE = b"""untrusted comment: signature from minisign secret key
RUS3j4d/Gvwia9WASxVkWS+VOkA1jF5z+pFAniDl1wXwOQ2Jd8qqV81xJil9sdbZgWrrKyLdH1dN2sYbdVErvOocbKJHb5A8Vwg=
trusted comment: Ward 7, 2026
TutZ38u/bY0zVuNUZJDVBYZlYDbUytqNuIBeV54gdDE2yPaPgYj4UqDHBmhZXSZ7fxNIYduvuJzXLv84ByzeBw==
"""
LEGACY = b"""untrusted comment: signature from minisign secret key
RWS3j4d/GvwiawMEy862kPbqb+vLdGx8WVajGWagAmTFJDKeM09pj/hQUqalMe2YYrVri1LAf+l1Ko7NyAsQgfFNKDIhOzufBwA=
trusted comment: timestamp:1795355744\tfile:data
3ZNb+ebWf6POkwNZOEXBME1SJ0eMxAxSmMT1ri1GgTZMAPcF+U23WRXM2CbS5AghhMmNdMqCJMWDJWdVd4LUBA==
"""


def file(data: bytes = DATA) -> BufferedReader:
    return BufferedReader(BytesIO(data))


def never() -> str:
    raise AssertionError("the key is not encrypted, and its password was asked for")


@pytest.mark.parametrize(
    ("written", "comment"), [(SIGNATURE, b"Ward 7, 2026"), (LEGACY, b"timestamp:1795355744\tfile:data")]
)
def test_signatures_of_minisign_are_good_for_their_file_key_and_comment_alone(written: bytes, comment: bytes) -> None:
    key, other, signature = public_key_in(PUBLIC), SecretKey.new().public, signature_in(written)
    assert (key.name, signature.name, signature.comment) == ("6B22FC1A7F878FB7", "6B22FC1A7F878FB7", comment)
    assert minisign.is_of(signature, key, file())
    assert minisign.is_comment_of(signature, key)
    assert not minisign.is_of(signature, key, file(DATA + b"."))
    assert not minisign.is_of(signature, other, file())
    assert not minisign.is_comment_of(signature, other)
    changed = signature_in(written.replace(comment, comment + b"."))
    assert minisign.is_of(changed, key, file())
    assert not minisign.is_comment_of(changed, key)


def test_a_key_of_minisign_signs_as_minisign_does_to_the_byte() -> None:
    key = secret_key_in(SECRET, never)
    assert key.public == public_key_in(PUBLIC)
    assert key.public.text().encode() == PUBLIC
    assert key.text("").encode() == SECRET
    assert key.sign(file(), "Ward 7, 2026").text().splitlines()[1:] == SIGNATURE.splitlines()[1:]


def test_a_public_key_is_one_line_too_and_lines_may_end_as_on_windows() -> None:
    key = public_key_in(PUBLIC)
    assert public_key_in(key.line().encode()) == key
    assert public_key_in(PUBLIC.replace(b"\n", b"\r\n")) == key
    assert public_key_in(PUBLIC.removesuffix(b"\n")) == key
    assert signature_in(SIGNATURE.replace(b"\n", b"\r\n")) == signature_in(SIGNATURE)


def test_a_secret_key_is_not_shown() -> None:
    key = SecretKey.new()
    assert str(key.seed) not in repr(key)
    assert key.seed.hex() not in repr(key)
    assert key != SecretKey.new()


def test_an_encrypted_key_opens_with_its_password_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minisign, "COST", (2**15, 2**20))
    key = SecretKey.new()
    written = key.text("ünlock").encode()
    assert written != key.text("ünlock").encode()
    assert secret_key_in(written, lambda: "ünlock") == key
    for wrong in ("unlock", ""):
        with pytest.raises(PasswordError, match="the password is wrong"):
            secret_key_in(written, wrong.__str__)


def test_the_cost_of_a_password_is_what_libsodium_makes_of_the_limits() -> None:
    """By its rule. The first pair is for what it calls sensitive, and minisign takes it; the second for interactive."""
    assert costs(2**25, 2**30) == (2**20, 1)
    assert costs(2**19, 2**24) == (2**14, 1)
    assert costs(0, 2**30) == (2**10, 1)
    assert costs(2**25, 2**24) == (2**14, 64)
    for operations, memory in ((2**63, 2**20), (2**63, 2**63), (2**27, 2**32)):
        with pytest.raises(ValueError, match="more memory or time"):
            costs(operations, memory)


@pytest.mark.parametrize("whole", [PUBLIC, SECRET, SIGNATURE], ids=["public", "secret", "signature"])
def test_a_file_that_is_cut_or_garbled_is_refused(whole: bytes) -> None:
    reads = {PUBLIC: public_key_in, SECRET: lambda data: secret_key_in(data, never), SIGNATURE: signature_in}[whole]
    faults = [whole[:i] for i in range(len(whole) - 1)]
    faults += [whole.replace(b"RW", b"RV").replace(b"RU", b"RV"), whole.replace(b"comment", b"remark")]
    faults += [whole * 2, b"\n" + whole, whole + b"\n", b"\xff" * 200, whole.replace(b"=\n", b"*\n") + b"."]
    for fault in faults:
        with pytest.raises(ValueError, match=r"it has|it is of a kind"):
            reads(fault)


def test_a_secret_key_that_was_damaged_is_refused() -> None:
    comment, line, _ = SECRET.split(b"\n")
    for place in (62, 93, 94, 125):
        changed = bytearray(base64.b64decode(line))
        changed[place] ^= 1
        with pytest.raises(ValueError, match="do not fit together"):
            secret_key_in(comment + b"\n" + base64.b64encode(changed), never)
    with pytest.raises(ValueError, match="a way that is not known"):
        secret_key_in(SECRET.replace(b"RWQAAEIy", b"RWQBAEIy"), never)
