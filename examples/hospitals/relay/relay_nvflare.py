"""Carries messages between a coordinator and its sites over NVFlare. It reads none of them.

At each site, `Ask` gives a message to the socket NAME.sock in the folder DPFC_SITE, and returns the reply. NAME is the
client's. At the server, `Serve` listens at NAME.sock in the folder DPFC_SOCKETS for each client of the job, and gives
what it hears to that client. An empty reply says that nobody is there. The coordinator then asks again.
"""

import os
import threading
import time
from functools import partial
from pathlib import Path

from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from relay_sockets import listen, reply

PAUSE = 5.0
"""Seconds between two looks at who is there, and for which a client may be silent then."""


def alive(topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
    """At a site: what the server is told when it looks who is there."""
    return make_reply(ReturnCode.OK)


class Ask(Executor):
    """At a site: what it replies. Where its socket is says its environment, not the job."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler("alive", alive)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        at = Path(os.environ["DPFC_SITE"], f"{fl_ctx.get_identity_name()}.sock")
        return Shareable({"bytes": reply(at, shareable["bytes"])})


class Serve(Controller):
    """At the server: a socket for each site. It ends with `nvflare job abort`, or when a client is lost."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        names = [client.name for client in self._engine.get_clients()]
        for name in names:
            at = Path(os.environ["DPFC_SOCKETS"], f"{name}.sock")
            self.log_info(fl_ctx, f"{at} is client {name}")
            carry = partial(self.carry, name, abort_signal)
            threading.Thread(target=listen, args=(at, carry), daemon=True).start()
        silent = set[str]()
        while not abort_signal.triggered:
            time.sleep(PAUSE)
            replies = self._engine.send_aux_request(names, "alive", Shareable(), PAUSE, fl_ctx, optional=True) or {}
            there = {name for name, each in replies.items() if each.get_return_code() == ReturnCode.OK}
            lost = set(names) - there
            if lost & silent:
                # NVFlare gives no job to a client that was started again.
                self.system_panic(f"lost: {sorted(lost & silent)}", fl_ctx)
            silent = lost

    def carry(self, name: str, abort_signal: Signal, data: bytes) -> bytes:
        """What a site replies, or nothing."""
        task = Task("ask", Shareable({"bytes": data}))
        with self._engine.new_context() as fl_ctx:
            self.send_and_wait(task, fl_ctx, targets=[name], abort_signal=abort_signal)
        if task.completion_status != TaskCompletionStatus.OK:
            return b""
        return bytes(task.client_tasks[0].result["bytes"])
