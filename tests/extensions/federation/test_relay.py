"""The relays of examples/hospitals carry what coordinator and sites say. A few names play Flower and NVFlare."""

import contextlib
import importlib
import json
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.heads.head import Head
from tests.extensions.federation.sites import PARTS, Serving, agreed, made_set, trained

NAMES = tuple(PARTS)
HOSPITALS = Path(__file__).parents[3] / "examples" / "hospitals"


def loaded(patch: pytest.MonkeyPatch, name: str, parts: dict[str, dict[str, Any]]) -> Any:
    """A module of the relay, with other modules as they are played."""
    for part, has in parts.items():
        module = ModuleType(part)
        vars(module).update(has)
        patch.setitem(sys.modules, part, module)
    patch.syspath_prepend(str(HOSPITALS / "relay"))
    patch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


class App:
    """An app of Flower: its decorators give back what they decorate."""

    def query(self) -> Callable[[Any], Any]:
        return lambda function: function

    main = query


def message(content: Any, node: int = 0, kind: str = "", reply_to: Any = None) -> SimpleNamespace:
    return SimpleNamespace(content=content, node=node, has_error=lambda: False)


class Flower:
    """SuperNodes in this process: number i is that of NAMES[i]. lost: as many messages are lost."""

    def __init__(self, patch: pytest.MonkeyPatch, lost: int) -> None:
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
        self._relay, self.lost, self.starts, self.over = loaded(patch, "relay", parts), lost, 0, False
        patch.setattr(self._relay, "PAUSE", 0.01)

    def serve(self, folder: str) -> None:
        with suppress(SystemExit):
            self._relay.serve(self, SimpleNamespace(run_config={"sockets": folder}))

    def nobody(self) -> bytes:
        """What a message to a site that is not there gives."""
        (reply,) = self.pull_messages([message(self._relay.content(b"ready"))])
        return bytes(self._relay.data_of(reply))

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


class Shareable(dict):
    def get_return_code(self) -> str:
        return str(self.get("rc", "OK"))


class Nvflare:
    """A server and its clients in this process. lost: as many tasks are lost. away: clients that are silent."""

    def __init__(self, patch: pytest.MonkeyPatch, lost: int) -> None:
        self.lost, self.away, self.ended = lost, set[str](), list[str]()
        names: dict[str, dict[str, Any]] = {
            "controller_spec": {
                "Task": lambda name, data: SimpleNamespace(data=data),
                "TaskCompletionStatus": SimpleNamespace(OK="ok"),
            },
            "event_type": {"EventType": SimpleNamespace(START_RUN="start")},
            "executor": {"Executor": object},
            "fl_constant": {"ReturnCode": SimpleNamespace(OK="OK")},
            "fl_context": {"FLContext": object},
            "impl": {},
            "impl.controller": {"Controller": object},
            "shareable": {"Shareable": Shareable, "make_reply": lambda rc: Shareable(rc=rc)},
            "signal": {"Signal": object},
        }
        parts = {f"nvflare.apis.{name}": has for name, has in names.items()}
        relay = loaded(patch, "relay_nvflare", {"nvflare": {}, "nvflare.apis": {}, **parts})
        patch.setattr(relay, "PAUSE", 0.01)
        patch.setenv("DPFC_SITE", ".")
        self._environment = patch
        self._ask, self._alive = relay.Ask(), dict[str, Any]()
        self._ask.handle_event("start", SimpleNamespace(get_engine=lambda: self))
        self._serve, self._signal = relay.Serve(), SimpleNamespace(triggered=False)
        vars(self._serve).update(
            _engine=self, log_info=lambda *_: None, system_panic=self.panic, send_and_wait=self.send_and_wait
        )

    @property
    def over(self) -> bool:
        return bool(self._signal.triggered)

    @over.setter
    def over(self, now: bool) -> None:
        self._signal.triggered = now

    def serve(self, folder: str) -> None:
        self._environment.setenv("DPFC_SOCKETS", folder)
        self._serve.control_flow(self._signal, None)

    def nobody(self) -> bytes:
        return self._asked("north", Shareable(bytes=b"ready"))

    def _asked(self, name: str, data: Shareable) -> bytes:
        return bytes(self._ask.execute("ask", data, SimpleNamespace(get_identity_name=lambda: name), None)["bytes"])

    def register_aux_message_handler(self, topic: str, handler: Any) -> None:
        self._alive[topic] = handler

    def get_clients(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in NAMES]

    def send_aux_request(
        self, names: list[str], topic: str, request: Any, timeout: float, fl_ctx: Any, optional: bool
    ) -> dict[str, Any]:
        return {name: self._alive[topic](topic, request, fl_ctx) for name in names if name not in self.away}

    @contextlib.contextmanager
    def new_context(self) -> Iterator[None]:
        yield

    def send_and_wait(self, task: Any, fl_ctx: Any, targets: list[str], abort_signal: Any) -> None:
        if self.lost:
            self.lost, task.completion_status = self.lost - 1, "dead"
            return
        result = Shareable(bytes=self._asked(targets[0], task.data))
        task.completion_status, task.client_tasks = "ok", [SimpleNamespace(result=result)]

    def panic(self, reason: str, fl_ctx: Any) -> None:
        self.ended.append(reason)
        self.over = True


@pytest.mark.parametrize("lost", [0, 3])
@pytest.mark.parametrize("carrier", [Flower, Nvflare])
def test_a_head_is_trained_over_the_relay(carrier: Any, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks. Messages to a node that is started again are lost, and the coordinator asks again."""
    sets = {name: made_set(name) for name in NAMES}
    plan = agreed(sets, method="dp-fc", options={"steps": 2}, colluding=1)
    Path("link").mkdir()
    carries = carrier(monkeypatch, lost)
    threading.Thread(target=carries.serve, args=("link",), daemon=True).start()
    assert carries.nobody() == b"", "the coordinator asks again"
    serving = Serving(plan, sets, NAMES)
    joint = trained(plan, sockets="link")
    for each in serving.heads().values():
        assert np.array_equal(Head.load(each.path).weight, joint.weight)
    assert {stat.S_IMODE(each.stat().st_mode) for each in Path("link").iterdir()} == {0o600}
    Path("other").mkdir(0o700)
    assert stat.S_IMODE(Path("other").stat().st_mode) == 0o700, "other files have the modes that they had"
    carries.over = True


def test_the_job_of_nvflare_ends_when_a_client_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVFlare gives no job to a client that was started again, so the job is submitted again."""
    Path("link").mkdir()
    carries = Nvflare(monkeypatch, 0)
    carries.away.add("south")
    carries.serve("link")
    assert carries.ended == ["lost: ['south']"]


def test_a_site_lets_nvflare_run_one_class_and_nothing_that_a_job_brings() -> None:
    site, job = HOSPITALS / "nvflare" / "site", HOSPITALS / "nvflare" / "job" / "app" / "config"
    rights = json.loads((site / "authorization.json").read_bytes())["permissions"]
    assert [*rights] == ["project_admin"]
    granted = {right for right, who in rights["project_admin"].items() if who != "none"}
    assert granted == {"submit_job", "manage_job", "view"}
    resources = json.loads((site / "resources.json").read_bytes())
    (executor,) = json.loads((job / "config_fed_client.json").read_bytes())["executors"]
    assert resources["class_allow_list"] == [executor["executor"]["path"]] == ["relay_nvflare.Ask"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert not resources["allow_log_streaming"]
