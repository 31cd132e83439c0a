"""The relay of examples/hospitals carries what coordinator and sites say. Flower is played by a few names."""

import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.heads.head import Head
from tests.extensions.federation.sites import PARTS, Serving, agreed, made_set, trained

NAMES = tuple(PARTS)
RELAY = Path(__file__).parents[3] / "examples" / "hospitals" / "relay" / "relay.py"


class App:
    """An app of Flower: its decorators give back what they decorate."""

    def query(self) -> Callable[[Any], Any]:
        return lambda function: function

    main = query


def message(content: Any, node: int = 0, kind: str = "", reply_to: Any = None) -> SimpleNamespace:
    return SimpleNamespace(content=content, node=node, has_error=lambda: False)


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Any:
    parts: dict[str, dict[str, Any]] = {
        "flwr": {},
        "flwr.app": {
            "Array": lambda dtype, shape, stype, data: SimpleNamespace(data=data),
            **dict.fromkeys(("ArrayRecord", "RecordDict"), dict),
            **{"Context": object, "Message": message},
        },
        "flwr.clientapp": {"ClientApp": App},
        "flwr.serverapp": {"ServerApp": App, "Grid": object},
    }
    for name, has in parts.items():
        module = ModuleType(name)
        vars(module).update(has)
        monkeypatch.setitem(sys.modules, name, module)
    spec = spec_from_file_location("relay", RELAY)
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    monkeypatch.setattr(found, "PAUSE", 0.01)
    return found


class Grid:
    """SuperNodes in this process: number i is that of NAMES[i]. lost: as many messages are lost."""

    def __init__(self, relay: Any, lost: int = 0) -> None:
        self._relay, self.lost, self.starts, self.over = relay, lost, 0, False

    def get_nodes(self) -> list[Any]:
        if self.over:
            # It ends the thread of the relay.
            raise SystemExit
        return [SimpleNamespace(node_id=i, name=name, last_activated_at=self.starts) for i, name in enumerate(NAMES)]

    def push_messages(self, sent: list[Any]) -> list[Any]:
        if self.lost:
            self.lost, self.starts = self.lost - 1, self.starts + 1
            return []
        return sent

    def pull_messages(self, sent: list[Any]) -> list[Any]:
        node = {"socket": f"{NAMES[sent[0].node]}.sock"} if sent else {}
        return [self._relay.ask(each, SimpleNamespace(node_config=node)) for each in sent]


@pytest.mark.parametrize("lost", [0, 3])
def test_a_head_is_trained_over_the_relay(relay: Any, lost: int) -> None:
    """With masks. Messages to a SuperNode that is started again are lost, and the coordinator asks again."""
    sets = {name: made_set(name) for name in NAMES}
    plan = agreed(sets, method="dp-fc", options={"steps": 2}, colluding=1)
    Path("link").mkdir()
    grid = Grid(relay, lost)

    def serve() -> None:
        with suppress(SystemExit):
            relay.serve(grid, SimpleNamespace(run_config={"sockets": "link"}))

    threading.Thread(target=serve, daemon=True).start()
    (nobody,) = grid.pull_messages([message(relay.content(b"ready"), 0)])
    assert relay.data_of(nobody) == b"", "the coordinator asks again"
    serving = Serving(plan, sets, NAMES)
    joint = trained(plan, sockets="link")
    for each in serving.heads().values():
        assert np.array_equal(Head.load(each.path).weight, joint.weight)
    assert {stat.S_IMODE(each.stat().st_mode) for each in Path("link").iterdir()} == {0o600}
    Path("other").mkdir(0o700)
    assert stat.S_IMODE(Path("other").stat().st_mode) == 0o700, "other files have the modes that they had"
    grid.over = True
