"""What coordinator and site tell each other: one message and one reply over a Unix socket, then it is closed.

A message and a reply are `privacy.parts.framed`: values, and bytes behind them. Before each stands its length. Whoever
reads it knows from public facts how long it can be, and takes no more. A carrier between two sockets relays all bytes
as they are (`examples/hospitals`).
"""

import contextlib
import errno
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dpfc_cli.errors import UserError, quoted, unwritable
from dpfc_cli.privacy.parts import LARGEST_SAID, Said, framed, unframed

Refusal = Literal["unreadable", "other-plan", "refused", "not-charged", "other-charges", "out-of-order", "failed"]
"""All that a site says of what is wrong. Texts could tell what is inside."""
_LENGTH, _AT_ONCE = 8, 2**20
PATIENCE = 600.0
"""Seconds that a whole message or reply may take at least: a pass over the records of a site, and what `left` adds."""
PAUSE = 0.2
"""Seconds until somebody who was not there is asked again."""
SHORT = LARGEST_SAID + 8
"""Bytes of a message, or of a reply, that has values alone."""


def query_bytes(d: int, m: int) -> int:
    """The most bytes of a message to a site: the chain of a query (means and a matrix) and θ; or a whole head."""
    return 2 * SHORT + 8 * (d * d + 4 * d + (d + 2) * m)


def left(every: float, took: float) -> float:
    """How many seconds a reply waits. It leaves at multiples of `every` seconds since its message came; 0: at once.

    So how long a pass over the records takes is not seen, if it takes less than that.
    """
    return every - took % every if every else 0.0


@dataclass
class Exchange:
    """A message that has come to a site, and the way of its reply.

    said: the values of the message. body: the bytes behind them. door: where others wait. every: see `left`.
    """

    said: Said
    body: memoryview
    connection: socket.socket
    door: socket.socket
    every: float
    _came: float = field(default_factory=time.monotonic, init=False)

    def reply(self, said: Said, body: bytes = b"") -> None:
        """Send the reply and close. Whoever asked may have gone: it will ask again."""
        data = framed(said, body)
        time.sleep(left(self.every, time.monotonic() - self._came))
        with contextlib.suppress(OSError), self.connection:
            _send(self.connection, data, self.door)

    def refuse(self, code: Refusal) -> None:
        """Reply that it cannot be, with a fixed word."""
        self.reply({"error": code})


class Door:
    """The socket of a site, for one message at a time. Only the own user can reach it. Who neither sends nor takes
    anything while somebody else waits is let go, and can come again.

    path: of the socket. limit: the most bytes of a message. every: see `left`. quiet: called where nobody has come for
    `PATIENCE`.
    """

    def __init__(self, path: Path, limit: int, every: float = 0.0, quiet: Callable[[], None] = lambda: None) -> None:
        self._path, self._limit, self._every, self._quiet = path, limit, every, quiet
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with contextlib.suppress(FileNotFoundError):
                # What a killed process left.
                if stat.S_ISSOCK(path.lstat().st_mode) and not _answers(path):
                    path.unlink()
            self._socket.bind(str(path))
            # Nobody can connect before it listens. A umask would be that of all threads.
            path.chmod(0o600)
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            if error.errno == errno.EADDRINUSE:
                what = f"{quoted(path)} is taken: another process answers there, or it is a file."
                raise UserError(what, "Leave the site to that process, or stop it.", code="busy") from error
            raise unwritable(
                f"Nobody can listen at {quoted(path)}: {error.strerror or error}.",
                "Name another place for the socket. Its path has 100 letters at most.",
            ) from error

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def exchanges(self) -> Iterator[Exchange]:
        """Messages as they come. What is none is refused, and not seen here."""
        while True:
            if not select.select([self._socket], [], [], PATIENCE)[0]:
                self._quiet()
            connection, _ = self._socket.accept()
            connection.setblocking(False)
            try:
                message = _receive(connection, self._limit, PATIENCE, self._socket)
            except ValueError:
                message = b""
            except OSError:
                connection.close()
                continue
            found = Exchange({}, memoryview(b""), connection, self._socket, self._every)
            try:
                found.said, found.body = unframed(message)
            except ValueError:
                found.refuse("unreadable")
                continue
            yield found


def _ask(path: Path, message: bytes, limit: int, seconds: float) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        _send(connection, message)
        # A carrier reads to the end. It need not know how long a message is.
        connection.shutdown(socket.SHUT_WR)
        return _receive(connection, limit, seconds)


def ask(
    path: Path, message: bytes, limit: int, patience: float, away: Callable[[], None] = lambda: None
) -> tuple[Said, memoryview]:
    """What a site replies to a message. Where nobody is there, it is asked again for so many seconds (patience).

    A reply may take as long, and `PATIENCE` at least. away: called once, before it waits.

    Raises:
        OSError: nobody listens, whoever listened has gone, or does not reply.
        ValueError: the reply is longer than `limit`, or none.

    """
    end, told = time.monotonic() + patience, False
    while True:
        try:
            return unframed(_ask(path, message, limit, max(patience, PATIENCE)))
        except OSError:
            if time.monotonic() > end:
                raise
        if not told:
            away()
        told = True
        time.sleep(PAUSE)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


def _send(connection: socket.socket, data: bytes, *door: socket.socket) -> None:
    """door: see `_receive`. OSError: whoever listens has gone, or takes nothing."""
    rest = memoryview(len(data).to_bytes(_LENGTH, "big") + data)
    while rest:
        if connection not in select.select(door, [connection], [], PATIENCE)[1]:
            raise TimeoutError("nobody takes it")
        rest = rest[connection.send(rest) :]


def _receive(connection: socket.socket, limit: int, seconds: float, *door: socket.socket) -> bytes:
    """The next message. ValueError: it would be longer than `limit`. OSError: it ends early, takes longer than so many
    seconds as a whole, or nothing comes of it while somebody waits at a door.
    """
    end, data, due = time.monotonic() + seconds, bytearray(), _LENGTH
    while len(data) < due:
        rest = end - time.monotonic()
        if rest <= 0 or connection not in select.select([connection, *door], [], [], rest)[0]:
            raise TimeoutError("it takes too long")
        more = connection.recv(min(due - len(data), _AT_ONCE))
        if not more:
            raise ConnectionError("the connection has ended")
        data += more
        if due == _LENGTH == len(data):
            due += int.from_bytes(data, "big")
            if due > _LENGTH + limit:
                raise ValueError("a message is too long")
    return bytes(data[_LENGTH:])
