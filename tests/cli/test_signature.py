"""`dpfc verify` where it is said who must have signed: who vouches for the bytes of a head."""

import datetime
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from model_signing import signing
from sigstore.models import ClientTrustConfig

import dpfc_cli as dpfc_face
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.signature import LARGEST
from tests import instead
from tests.cli.conftest import Dpfc
from tests.signing import key_pair, sign
from tests.support import refuses

HEAD, SIGNATURE = Path("a.safetensors"), Path("a.safetensors.sig")
BY_KEY = ("verify", str(HEAD), "--public-key", "own.pub")


@pytest.fixture
def signed(dpfc: Dpfc, features: Path) -> None:
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", str(HEAD)).exit_code == 0
    sign(HEAD, key_pair(Path(), "own")[0])


def refused(dpfc: Dpfc, *line: str) -> bool:
    """Whether a line is refused with one message, and says nothing of the head."""
    ended = dpfc(*line)
    return (ended.exit_code in (2, 5), ended.stdout, len(ended.stderr.splitlines())) == (True, "", 2)


def test_a_signature_is_good_for_its_head_and_says_who_signed(dpfc: Dpfc, signed: None) -> None:
    assert sha256_of(Path("own.pub")) in dpfc(*BY_KEY, ends=0).stdout
    said = json.loads(dpfc(*BY_KEY, "--json").stdout)
    assert said["signature"]["path"] == str(SIGNATURE)
    assert "own.pub" in said["signature"]["by"]


def test_without_a_ledger_a_head_is_good_if_somebody_who_was_named_has_signed_it(dpfc: Dpfc, signed: None) -> None:
    shutil.rmtree("features")
    assert dpfc(*BY_KEY).exit_code == 0
    there = dpfc("verify", str(HEAD), ends=2)
    SIGNATURE.unlink()
    gone = dpfc("verify", str(HEAD), ends=2)
    assert (gone.stdout, gone.stderr) == (there.stdout, there.stderr)
    assert refused(dpfc, *BY_KEY)


def test_head_and_signature_may_have_other_names_and_be_links(dpfc: Dpfc, signed: None) -> None:
    HEAD.rename("real")
    Path("b.safetensors").symlink_to("real")
    SIGNATURE.rename("theirs")
    line = ("verify", "b.safetensors", "--public-key", "own.pub")
    assert refused(dpfc, *line)
    assert dpfc(*line, "--signature", "theirs").exit_code == 0


def test_a_signature_that_is_not_of_this_head_by_this_key_is_refused(dpfc: Dpfc, signed: None) -> None:
    other, public = key_pair(Path(), "other")
    good, head = SIGNATURE.read_bytes(), HEAD.read_bytes()
    for key in (public, other, HEAD, Path("none.pub"), Path()):
        assert refused(dpfc, "verify", str(HEAD), "--public-key", str(key)), key
    # A key that is none is a mistake of the line, and says nothing of the head.
    assert [dpfc("verify", str(HEAD), "--public-key", key).exit_code for key in ("own.key", "other.pub")] == [2, 5]
    # Of a file that is not what was signed, nothing is read.
    for changed in (head[:-1], head + b"\n", b"nonsense"):
        HEAD.write_bytes(changed)
        assert refused(dpfc, *BY_KEY)
    HEAD.write_bytes(head)
    sign(HEAD, other)
    theirs = json.loads(SIGNATURE.read_bytes())
    mixed = {**json.loads(good), "dsseEnvelope": theirs["dsseEnvelope"]}
    deep = b"[" * 10_000
    for wrong in (SIGNATURE.read_bytes(), json.dumps(mixed).encode(), good[:-60], b"{}", b"\xff", deep):
        SIGNATURE.write_bytes(wrong)
        assert refused(dpfc, *BY_KEY), wrong
    SIGNATURE.write_bytes(good + b" " * LARGEST)
    assert refused(dpfc, *BY_KEY)
    SIGNATURE.unlink()
    assert refused(dpfc, *BY_KEY)
    SIGNATURE.write_bytes(good)
    assert dpfc(*BY_KEY).exit_code == 0
    HEAD.unlink()
    assert refused(dpfc, *BY_KEY)


def test_a_signature_that_leaves_out_the_file_is_good_for_none(dpfc: Dpfc, signed: None) -> None:
    sign(HEAD, Path("own.key"), Path())
    assert refused(dpfc, *BY_KEY)


def certificate(name: str, issuer: str) -> Path:
    """A certificate for the key of this name, by the key of the issuer."""
    own, by = (load_pem_private_key(Path(f"{each}.key").read_bytes(), None) for each in (name, issuer))
    assert isinstance(own, EllipticCurvePrivateKey)
    assert isinstance(by, EllipticCurvePrivateKey)
    now, ca = datetime.datetime.now(datetime.UTC), name == issuer
    usage = x509.KeyUsage(True, False, False, False, False, ca, False, False, False)
    subject, signer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
    made = x509.CertificateBuilder(signer, subject, own.public_key(), 7, now, now + datetime.timedelta(days=1))
    made = made.add_extension(x509.BasicConstraints(ca, None), True).add_extension(usage, True)
    path = Path(f"{name}.pem")
    path.write_bytes(made.sign(by, SHA256()).public_bytes(Encoding.PEM))
    return path


def test_a_certificate_is_good_under_its_root_alone(dpfc: Dpfc, signed: None) -> None:
    roots = []
    for name in ("root", "other"):
        key_pair(Path(), name)
        roots.append(certificate(name, name))
    config = signing.Config().use_certificate_signer(  # type: ignore[no-untyped-call]
        private_key="own.key", signing_certificate=certificate("own", "root"), certificate_chain=roots[:1]
    )
    config.sign(HEAD, SIGNATURE)
    assert "'root.pem'" in dpfc("verify", str(HEAD), "--certificate-chain", str(roots[0]), ends=0).stdout
    assert refused(dpfc, "verify", str(HEAD), "--certificate-chain", str(roots[1]))
    assert refused(dpfc, *BY_KEY)
    HEAD.write_bytes(HEAD.read_bytes() + b" ")
    assert refused(dpfc, "verify", str(HEAD), "--certificate-chain", str(roots[0]))


def test_a_signature_by_a_key_is_none_by_an_identity(dpfc: Dpfc, signed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientTrustConfig, "production", partial(ClientTrustConfig.production, offline=True))
    who = ("--identity", "a@example.com", "--identity-provider", "https://example.com")
    assert refused(dpfc, "verify", str(HEAD), *who)


def test_it_must_be_clear_who_must_have_signed(dpfc: Dpfc, signed: None) -> None:
    for more in (
        ("--public-key", "own.pub", "--certificate-chain", "own.pub"),
        ("--public-key", "own.pub", "--identity-provider", "https://example.com"),
        ("--identity", "a@example.com"),
        ("--identity-provider", "https://example.com"),
        ("--signature", str(SIGNATURE)),
    ):
        assert refused(dpfc, "verify", str(HEAD), *more), more
    with refuses("conflict"):
        dpfc_face.verify(HEAD, signature=SIGNATURE)


def test_without_a_signer_nothing_is_said_of_the_signature(
    dpfc: Dpfc, signed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the library needed, which is told to be installed where it is."""
    instead.extras(monkeypatch)
    SIGNATURE.write_text("nonsense")
    assert json.loads(dpfc("verify", str(HEAD), "--json", ends=0).stdout)["signature"] is None
    assert refused(dpfc, *BY_KEY)
