"""What all carriers share: bytes that come to a socket go on as they are, and so does the reply."""

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side has said everything."""
    with connection.makefile("rb") as file:
        return file.read()


def reply(path: Path | str, message: bytes) -> bytes:
    """What the site at this socket replies; nothing, if nobody is there. It waits while the site is connected."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as site:
        site.connect(str(path))
        site.sendall(message)
        site.shutdown(socket.SHUT_WR)
        return received(site)
    return b""


def listen(path: Path, carry: Callable[[bytes], bytes]) -> None:
    """Carry what is said at a socket, and the reply back, for ever. Of an empty reply the coordinator asks again."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        # Nobody can connect before it listens.
        path.chmod(0o600)
        door.listen()
        while True:
            connection, _ = door.accept()
            with connection:
                try:
                    connection.sendall(carry(received(connection)))
                except Exception as error:  # The coordinator asks again.
                    print(f"{path.name}: {str(error)!r}", flush=True)
