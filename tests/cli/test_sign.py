"""`dpfc sign` and `dpfc verify --public-key`: who vouches for the bytes of a head."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dpfc_cli as dpfc_face
from dpfc_cli import errors
from dpfc_cli.cli import sign as signing
from dpfc_cli.cli.app import app
from dpfc_cli.errors import UserError
from dpfc_cli.heads import minisign, signature
from dpfc_cli.heads.minisign import SecretKey
from tests.cli.conftest import Dpfc
from tests.cli.test_verify import forge, less_than_alone

HEAD, SIGNATURE = "a.safetensors", "a.safetensors.minisig"


@pytest.fixture
def head(dpfc: Dpfc, features: Path) -> Path:
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", HEAD).exit_code == 0
    return Path(HEAD)


@pytest.fixture
def signed(dpfc: Dpfc, head: Path) -> Path:
    assert dpfc("sign", "--new-key", "own.key").exit_code == 0
    assert dpfc("sign", HEAD, "--key", "own.key", "--comment", "for ward 7").exit_code == 0
    return head


def refused(dpfc: Dpfc, *line: str) -> str:
    """The one message of a line that is refused, without the remedy."""
    ended = dpfc(*line)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.output
    first, _remedy = ended.stderr.splitlines()
    return first


def test_a_signature_is_good_for_its_head_and_says_who_signed(dpfc: Dpfc, signed: Path) -> None:
    line = Path("own.pub").read_text().splitlines()[1]
    for key in ("own.pub", line):
        shown = dpfc("verify", HEAD, "--public-key", key)
        assert shown.exit_code == 0, shown.output
        assert "vouches for the bytes of the file; comment: for ward 7" in shown.stdout
        assert "that the noise was really drawn" in shown.stdout
        assert "who vouches for it" not in shown.stdout
    said = json.loads(dpfc("verify", HEAD, "--public-key", line, "--json").stdout)
    assert said["signature"] == {"path": SIGNATURE, "key": signature._public(line).name, "comment": "for ward 7"}


def test_without_a_public_key_nothing_is_said_of_the_signature(dpfc: Dpfc, signed: Path) -> None:
    Path(SIGNATURE).write_text("nonsense")
    shown = dpfc("verify", HEAD)
    assert shown.exit_code == 0, shown.output
    assert "cannot be known: there is one, and no public key was named" in shown.stdout
    assert "who vouches for it: no signature was checked" in shown.stdout
    assert json.loads(dpfc("verify", HEAD, "--json").stdout)["signature"] is None


def test_a_wrong_key_a_changed_head_a_changed_comment_and_a_cut_file_are_one_message_each(
    dpfc: Dpfc, signed: Path
) -> None:
    check, good = ("verify", HEAD, "--public-key", "own.pub"), Path(SIGNATURE).read_bytes()
    dpfc("sign", "--new-key", "other.key")
    assert "is signed by another key" in refused(dpfc, "verify", HEAD, "--public-key", "other.pub")
    Path(SIGNATURE).write_bytes(good.replace(b"ward 7", b"ward 8"))
    assert "its comment was changed" in refused(dpfc, *check)
    Path(SIGNATURE).write_bytes(good[:-60])
    assert "cannot be read as a signature" in refused(dpfc, *check)
    Path(SIGNATURE).write_bytes(b"x" * (minisign.LARGEST + 1))
    assert "it is too large" in refused(dpfc, *check)
    Path(SIGNATURE).unlink()
    assert "is not signed" in refused(dpfc, *check)
    Path(SIGNATURE).write_bytes(good)
    # Of a file that is not what was signed, nothing is read.
    data = signed.read_bytes()
    for changed in (data[:-1], data + b"\n", b"nonsense"):
        signed.write_bytes(changed)
        assert "signed another file" in refused(dpfc, *check)
    signed.unlink()
    assert "There is no head" in refused(dpfc, *check)


def test_a_key_of_the_same_number_is_still_another_key(dpfc: Dpfc, signed: Path) -> None:
    """The number of a key proves nothing: anyone may choose it."""
    number = signature._public("own.pub").number
    Path("forged.pub").write_text(SecretKey(number, bytes(32)).public.text())
    assert "signed another file" in refused(dpfc, "verify", HEAD, "--public-key", "forged.pub")


def test_a_secret_key_is_for_its_owner_alone_and_is_never_shown(dpfc: Dpfc, head: Path) -> None:
    made = dpfc("sign", "--new-key", "own.key")
    secret = Path("own.key")
    assert secret.stat().st_mode & 0o777 == 0o600
    shown = [made, dpfc("sign", HEAD, "--key", "own.key"), dpfc("verify", HEAD, "--public-key", "own.key")]
    assert [ended.exit_code for ended in shown] == [0, 0, 2]
    seed = minisign.secret_key_in(secret.read_bytes(), str).seed
    for text in [ended.output for ended in shown] + [Path(SIGNATURE).read_text(), Path("own.pub").read_text()]:
        assert secret.read_text().splitlines()[1] not in text
        assert seed.hex() not in text
    assert sorted(path.name for path in Path().glob(".*")) == []


def test_the_default_comment_names_the_file_and_the_time(dpfc: Dpfc, head: Path) -> None:
    dpfc("sign", "--new-key", "own.key")
    said = json.loads(dpfc("sign", HEAD, "--key", "own.key", "--json").stdout)
    assert said["path"] == SIGNATURE
    assert said["comment"].startswith(f"{HEAD}, 20")
    assert "\ntrusted comment: " + said["comment"] + "\n" in Path(SIGNATURE).read_text()


def test_a_password_is_asked_for_and_needed(dpfc: Dpfc, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minisign, "COST", (2**15, 2**20))
    made = CliRunner().invoke(app, ["sign", "--new-key", "own.key"], input="open sesame\n")
    assert "a password, and mode 0600" in made.stdout
    assert "no password" in dpfc("sign", "--new-key", "bare.key").stdout
    line = ["sign", HEAD, "--key", "own.key"]
    wrong = CliRunner().invoke(app, line, input="open barley\n")
    assert (wrong.exit_code, "the password is wrong" in wrong.stderr) == (2, True)
    assert not Path(SIGNATURE).exists()
    assert CliRunner().invoke(app, line, input="open sesame\n").exit_code == 0
    assert dpfc("verify", HEAD, "--public-key", "own.pub").exit_code == 0
    Path(SIGNATURE).unlink()
    with pytest.raises(UserError, match="is encrypted"):
        dpfc_face.sign(HEAD, key="own.key")
    assert dpfc_face.sign(HEAD, key="own.key", password="open sesame").path == Path(SIGNATURE)


def test_on_a_terminal_a_password_is_typed_unseen_and_a_new_one_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    typed = iter(["one", "one", "one", "two", ""])
    monkeypatch.setattr("getpass.getpass", lambda asked: next(typed))
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert signing._new_password() == "one"
    with pytest.raises(UserError, match="passwords differ"):
        signing._new_password()
    assert signing._new_password() == ""
    assert next(typed, None) is None
    monkeypatch.setattr(sys, "stdin", None)
    assert signing._new_password() == ""


def test_keys_and_signatures_are_never_overwritten(dpfc: Dpfc, signed: Path) -> None:
    before = {path: path.read_bytes() for path in map(Path, ("own.key", "own.pub", SIGNATURE))}
    assert "There is a file" in refused(dpfc, "sign", HEAD, "--key", "own.key")
    assert "There is a file 'own.pub'" in refused(dpfc, "sign", "--new-key", "own.key")
    assert {path: path.read_bytes() for path in before} == before
    Path("own.pub").unlink()
    assert "There is a file 'own.key'" in refused(dpfc, "sign", "--new-key", "own.key")
    assert not Path("own.pub").exists()
    assert Path("own.key").read_bytes() == before[Path("own.key")]


def test_a_head_that_contradicts_itself_is_not_signed(dpfc: Dpfc, signed: Path) -> None:
    Path(SIGNATURE).unlink()
    forge(less_than_alone)
    assert "is not what it says" in refused(dpfc, "sign", HEAD, "--key", "own.key")
    assert not Path(SIGNATURE).exists()


def test_a_wrong_line_is_told_what_to_type(dpfc: Dpfc, signed: Path) -> None:
    Path(SIGNATURE).unlink()
    assert refused(dpfc, "sign", HEAD) == "Error: --key is missing."
    assert refused(dpfc, "sign", "--key", "own.key") == "Error: HEAD is missing."
    assert "signs nothing" in refused(dpfc, "sign", HEAD, "--new-key", "new.key")
    assert "There is no file 'nowhere.key'" in refused(dpfc, "sign", HEAD, "--key", "nowhere.key")
    assert "There is no file 'nowhere'." in refused(dpfc, "verify", HEAD, "--public-key", "nowhere")
    assert "cannot be read as a secret key" in refused(dpfc, "sign", HEAD, "--key", "own.pub")
    assert "no regular file" in refused(dpfc, "sign", HEAD, "--key", ".")
    assert "one line" in refused(dpfc, "sign", HEAD, "--key", "own.key", "--comment", "two\nlines")
    assert "one line" in refused(dpfc, "sign", HEAD, "--key", "own.key", "--comment", "long" * 1_000)
    assert "The ending .pub" in refused(dpfc, "sign", "--new-key", "mine.pub")
    assert "cannot be written" in refused(dpfc, "sign", "--new-key", "no/folder/own.key")
    assert not Path(SIGNATURE).exists()


def test_a_comment_of_a_stranger_does_not_command_the_terminal(dpfc: Dpfc, signed: Path) -> None:
    key = minisign.secret_key_in(Path("own.key").read_bytes(), str)
    with signed.open("rb") as file:
        Path(SIGNATURE).write_bytes(key.sign(file, "\x1b[2Jcleared").text())
    shown = dpfc("verify", HEAD, "--public-key", "own.pub")
    assert shown.exit_code == 0, shown.output
    assert "comment: \\x1b[2Jcleared" in shown.stdout


def test_without_the_library_it_is_said_what_to_install(
    dpfc: Dpfc, signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    for line in (["sign", HEAD, "--key", "own.key"], ["sign", "--new-key", "k"], ["verify", HEAD, "--public-key", "k"]):
        assert "needs cryptography" in refused(dpfc, *line)
    assert dpfc("verify", HEAD).exit_code == 0


def test_the_library_has_it_too(dpfc: Dpfc, head: Path) -> None:
    pair = dpfc_face.new_key("own.key")
    made = dpfc_face.sign(HEAD, key=pair.secret, comment="for ward 7")
    shutil.rmtree("features")
    for key in (pair.public, str(pair.public), pair.line):
        assert dpfc_face.verify(HEAD, public_key=key).signature == made
    assert dpfc_face.verify(HEAD).signature is None
