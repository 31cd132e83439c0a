"""A lack of memory stops the run. It never makes a null record, whatever is decoded beside a picture."""

import errno
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest
from PIL import Image

from dpfc_cli.errors import UserError
from dpfc_cli.images import decoding
from dpfc_cli.images.memory import MOST_PIXELS, TOGETHER, Room, bound
from dpfc_cli.images.sets import UnreadableError
from dpfc_cli.memory import proved
from tests.images.pictures import AS_SQUARE, png

TRIAL = """
import json, resource, sys
from pathlib import Path
from dpfc_cli.errors import UserError
from dpfc_cli.images import Geometry, batches, open_images

folder, megabytes = sys.argv[1], int(sys.argv[2])
split = open_images("imagefolder:" + folder, geometry=Geometry(resize=8, crop=8)).splits["train"]
# What is loaded when it is first used is loaded now.
split.pixels(1, 2)
now = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (now + (megabytes << 20), resource.RLIM_INFINITY))
wanted = [(None, split, i, i + 1) for i in range(split.n)]
try:
    null = [split.name(batch.start) for _, batch in batches(wanted, workers=4) if batch.null[0]]
    print(json.dumps({"null": null}))
except UserError as error:
    print(json.dumps({"code": error.code, "path": Path(error.fields["path"]).name}))
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS has no effect elsewhere")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A progressive JPEG that takes 230 MiB to decode, six pictures that take 25 MiB, and one that is cut off."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    Image.new("CMYK", (4480, 4480)).save(folder / "a" / "00.jpg", progressive=True)
    for i in range(11, 17):
        Image.new("RGB", (2560, 2560)).save(folder / "b" / f"{i}.png")
    (folder / "b" / "17.png").write_bytes(png(1)[:50])
    return folder


def trial(pictures: Path, megabytes: int) -> dict[str, object]:
    """Decode the pictures in four threads of a process that may take so much more memory."""
    # A heap of its own for each thread would take room that the limit counts.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", TRIAL, str(pictures), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@linux
def test_a_large_picture_makes_no_null_record_of_its_neighbours(pictures: Path) -> None:
    """It leaves too little memory for them while it is decoded. Only the one that is damaged is a null record."""
    assert trial(pictures, 280) == {"null": ["b/17.png"]}


@linux
def test_a_picture_that_the_memory_cannot_hold_stops_the_run(pictures: Path) -> None:
    assert trial(pictures, 220) == {"code": "memory", "path": "00.jpg"}


def failing(decode: Callable[..., object], *errors: Exception) -> Callable[..., object]:
    """`decode`, which fails with these errors first."""
    left = list(errors)

    def failed(*given: object, **named: object) -> object:
        if left:
            raise left.pop(0)
        return decode(*given, **named)

    return failed


@pytest.mark.parametrize(
    "error",
    [
        OSError("broken data stream when reading image file"),
        OSError("decoder error -9"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=repr,
)
def test_a_picture_that_failed_beside_others_is_decoded_again_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Image, "open", failing(Image.open, error))
    assert (decoding.decode(png(7), "a.png", AS_SQUARE) == 7).all()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "memory"),
        (RecursionError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files"), "unreadable"),
        (OSError(errno.EIO, "Input/output error"), "unreadable"),
    ],
    ids=repr,
)
def test_what_comes_from_the_system_is_no_property_of_a_picture(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    monkeypatch.setattr(Image, "open", failing(Image.open, error, error))
    with pytest.raises(UserError) as refused:
        decoding.decode(png(7), "a.png", AS_SQUARE)
    assert (refused.value.code, type(refused.value)) == (code, UserError)


def test_a_failure_without_proved_memory_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """libjpeg's lack of memory looks like a damaged file. So without the memory nobody knows which of both it is."""

    def refuse(*given: object, **named: object) -> object:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with pytest.raises(UnreadableError):
        decoding.decode(b"no picture", "a.png", AS_SQUARE)
    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(UserError) as refused:
        decoding.decode(b"no picture", "a.png", AS_SQUARE)
    assert refused.value.code == "memory"
    # What succeeds needs no proof.
    with proved(1):
        pass


def test_decoders_run_at_once_as_far_as_their_bounds_fit() -> None:
    room, together = Room(10), Barrier(2, timeout=60)
    inside, order = Event(), []

    def small() -> None:
        with room.share(5):
            together.wait()
            inside.wait(60)
            order.append("small")

    def large(name: str, size: int) -> None:
        with room.share(size):
            order.append(name)

    threads = [Thread(target=small), Thread(target=small)]
    for thread in threads:
        thread.start()
    # More than there is: it waits until nobody else is there.
    threads.append(Thread(target=large, args=("large", 99)))
    threads[-1].start()
    inside.set()
    for thread in threads:
        thread.join(60)
    assert order == ["small", "small", "large"]


def test_the_room_is_free_again_after_an_error() -> None:
    room = Room(10)
    for _ in range(3):
        with pytest.raises(ValueError, match="damaged"), room.alone():
            raise ValueError("damaged")


def test_the_largest_picture_is_decoded_alone() -> None:
    assert bound(0, MOST_PIXELS) == TOGETHER
