"""Carries messages between a coordinator and its sites over Flower. It reads none of them.

In each SuperNode, `ask` gives a message to the socket of the site, and returns the reply. On the coordinator's machine,
`serve` listens at NAME.sock for each SuperNode that was registered as NAME, and gives what it hears to that SuperNode.
An empty reply says that nobody is there. The coordinator then asks again.
"""

import contextlib
import socket
import threading
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()
PAUSE = 1.0


def content(data: bytes) -> RecordDict:
    """A message of these bytes. Flower sends arrays in chunks."""
    return RecordDict({"relay": ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})})


def data_of(message: Message) -> bytes:
    return message.content["relay"]["bytes"].data


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side has said everything."""
    with connection.makefile("rb") as file:
        return file.read()


@client.query()
def ask(message: Message, context: Context) -> Message:
    """In a SuperNode: what the site replies. It waits while the site is connected."""
    reply = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as site:
        site.connect(str(context.node_config["socket"]))
        site.sendall(data_of(message))
        site.shutdown(socket.SHUT_WR)
        reply = received(site)
    return Message(content(reply), reply_to=message)


class Nodes:
    """The SuperNodes. A message to one that was started again since then is lost."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.started: dict[int, str] = {}

    def carry(self, node: int, data: bytes) -> bytes:
        """What a site replies, or nothing."""
        started = self.started[node]
        sent = self._grid.push_messages([Message(content(data), node, "query")])
        while self.started[node] == started:
            for reply in self._grid.pull_messages(sent):
                if reply.has_error():
                    raise ConnectionError(reply.error.reason)
                return data_of(reply)
            time.sleep(PAUSE)
        return b""

    def listen(self, node: int, path: Path) -> None:
        """Give what is said at a socket to a SuperNode, for ever."""
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
                        connection.sendall(self.carry(node, received(connection)))
                    except Exception as error:  # The coordinator asks again.
                        print(f"{path.name}: {str(error)!r}", flush=True)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """On the coordinator's machine: a socket for each site. It ends with `flwr stop`."""
    nodes, folder = Nodes(grid), Path(str(context.run_config["sockets"]))
    while True:
        for node in grid.get_nodes():
            known = node.node_id in nodes.started
            nodes.started[node.node_id] = node.last_activated_at
            if not known:
                at = folder / f"{node.name}.sock"
                print(f"{at} is SuperNode {node.node_id}", flush=True)
                threading.Thread(target=nodes.listen, args=(node.node_id, at), daemon=True).start()
        time.sleep(PAUSE)
