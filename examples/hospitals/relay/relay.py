"""Carries messages between a coordinator and its sites over Flower. It reads none of them.

In each SuperNode, `ask` gives a message to the socket of the site, and returns the reply. On the coordinator's machine,
`serve` listens at NAME.sock for each SuperNode that was registered as NAME, and gives what it hears to that SuperNode.
An empty reply says that nobody is there. The coordinator then asks again.
"""

import threading
import time
from functools import partial
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from relay_sockets import listen, reply

client = ClientApp()
server = ServerApp()
PAUSE = 1.0


def content(data: bytes) -> RecordDict:
    """A message of these bytes. Flower sends arrays in chunks."""
    return RecordDict({"relay": ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})})


def data_of(message: Message) -> bytes:
    return message.content["relay"]["bytes"].data


@client.query()
def ask(message: Message, context: Context) -> Message:
    """In a SuperNode: what the site replies."""
    return Message(content(reply(str(context.node_config["socket"]), data_of(message))), reply_to=message)


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
            for answer in self._grid.pull_messages(sent):
                if answer.has_error():
                    raise ConnectionError(answer.error.reason)
                return data_of(answer)
            time.sleep(PAUSE)
        return b""


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
                threading.Thread(target=listen, args=(at, partial(nodes.carry, node.node_id)), daemon=True).start()
        time.sleep(PAUSE)
