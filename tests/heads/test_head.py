"""A head is one file that says what it is."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.files import replace as replace_file
from dpfc_cli.heads.head import Head, encoded, newest, save, try_place
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.records.card import card_of
from tests.hostile import calibrated, card_as_written
from tests.support import refuses, replace

CARD = card_as_written(calibrated("dp-whitened", Privacy(epsilon=1.0)))


def saved(path: Path) -> Path:
    return save(encoded(head()), path)


def head(m: int = 3, d: int = 2) -> Head:
    rng = np.random.default_rng(0)
    card = replace(card_of(CARD), classes=tuple(map(str, range(m))))
    return Head(chain=(Clip(0.5),), weight=rng.normal(size=(d, m)), bias=rng.normal(size=m), card=card)


def test_the_same_head_always_gives_the_same_bytes() -> None:
    """safetensors orders metadata by chance: three keys stood in one of six orders."""
    assert len({encoded(head()) for _ in range(40)}) == 1


def test_scores_run_the_chain() -> None:
    x = np.array([[3.0, 4.0]], np.float32)
    expected = np.array([0.6, 0.8]) @ head().weight + head().bias
    assert np.allclose(head().scores(x), expected, atol=1e-5)


def test_what_is_saved_is_loaded_with_the_arrays_of_its_chain(tmp_path: Path) -> None:
    chain = (Clip(1e-30), Centre(np.array([0.25, -1.0])), Linear(np.array([[1.0, 2.0], [0.0, 3.0]])), Clip(0.5))
    made = replace(head(), chain=chain)
    save(encoded(made), tmp_path / "a.safetensors")
    again = Head.load(tmp_path / "a.safetensors")
    assert ([type(step) for step in again.chain], again.card) == ([Clip, Centre, Linear, Clip], made.card)
    x = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    assert np.array_equal(again.scores(x), made.scores(x))


def test_foreign_and_truncated_files_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save as bytes_of

    cut = saved(tmp_path / "b.safetensors").read_bytes()[:-8]
    path = tmp_path / "a.safetensors"
    for content in (b"", b"nonsense", b"\xff" * 100, bytes_of({"weight": np.zeros((2, 2))}), cut):
        path.write_bytes(content)
        with refuses("damaged"):
            Head.load(path)
    with refuses("missing"):
        Head.load(tmp_path / "c.safetensors")


SAVE = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.heads.test_head import saved
def die(*args): os.kill(os.getpid(), signal.SIGKILL)
for at in ("fsync", "link"):
    child = os.fork()
    if not child:
        setattr(os, at, die)
        saved(Path(sys.argv[1]))
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, at
"""


def test_killed_while_saving_no_head_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    subprocess.run([sys.executable, "-c", SAVE, str(path)], check=True)
    assert not path.exists()
    with refuses("missing", parameter="epsilon"):
        newest(tmp_path)


def test_heads_follow_the_umask(tmp_path: Path) -> None:
    for umask in (0o022, 0o002, 0o077):
        before = os.umask(umask)
        try:
            place = saved(tmp_path / oct(umask) / "a.safetensors")
            assert stat.S_IMODE(place.stat().st_mode) == 0o666 & ~umask
        finally:
            os.umask(before)


def test_no_temporary_file_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are random. Here they are guessed."""
    place, precious = tmp_path / "a.safetensors", tmp_path / "precious"
    precious.write_bytes(b"kept")
    guessed = tmp_path / ".a.safetensors.guessed.tmp"
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    for aim in (precious, tmp_path / "nothing"):
        for write, error in (
            (lambda: replace_file(place, b"ours"), OSError),
            (lambda: try_place(place, 1, 2), UserError),
            (lambda: save(b"head", place), UserError),
        ):
            guessed.unlink(missing_ok=True)
            guessed.symlink_to(aim)
            with pytest.raises(error):
                write()
    assert precious.read_bytes() == b"kept"
    assert not place.exists()
    assert not (tmp_path / "nothing").exists()


def test_the_private_head_with_the_newest_card_is_chosen_and_what_is_no_head_is_left_out(tmp_path: Path) -> None:
    """The times of files change when they are copied."""
    private = Privacy(epsilon=1.0)
    claims = [private, private, Privacy(), Privacy(epsilon=1.0, seed=7)]
    for day, (name, claim) in enumerate(zip(["old", "new", "exact", "seeded"], claims, strict=True), 1):
        made = {"date": f"2026-01-0{day}T00:00:00+00:00", "classes": ["0", "1", "2"]}
        card = card_of(card_as_written(calibrated("dp-whitened", claim)) | made)
        path = save(encoded(replace(head(), card=card)), tmp_path / f"{name}.safetensors")
        os.utime(path, ns=(0, (9 - day) * 10**9))
    (tmp_path / "gone.safetensors").symlink_to("nowhere")
    (tmp_path / "junk.safetensors").write_bytes(b"none")
    skipped = list[UserError]()
    assert newest(tmp_path, None, skipped.append).name == "new.safetensors"
    assert [Path(str(error.fields["path"])).name for error in skipped] == ["gone.safetensors", "junk.safetensors"]


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is made meanwhile: another training that begins would use it while this one removes it."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("os.mkdir", None)
    for place in ("empty", "new", "new/deeper"):
        try_place(tmp_path / place / "a.safetensors", 1, 2)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    long = "x" * 300
    for place in (f"new/deeper/{long}.safetensors", f"{long}/a.safetensors", "file/a", "link/a", ""):
        with refuses("unwritable"):
            try_place(tmp_path / place, 1, 2)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file", "link"]
