"""Small sites, their plan, and threads in which they serve."""

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.extensions.federation import coordinator, messages
from dpfc_cli.extensions.federation import plan as plans
from dpfc_cli.extensions.federation.messages import ask
from dpfc_cli.extensions.federation.plan import Federation
from dpfc_cli.extensions.federation.site import Site, serve, site_of
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.parts import framed
from dpfc_cli.training.observer import Observer
from tests.support import LOST, blobs, feature_set
from tests.training.stopped import Listener

CLASSES = ("a", "b", "c")
X, Y = blobs(900, 8, 3)
PARTS = {"north": slice(0, 600), "south": slice(600, 900), "west": slice(300, 900)}
"""The records of west are those of others, too."""
NAMES = ("north", "south")
JOINT = Path("joint.safetensors")


def made_set(name: str, persons: bool = False, classes: tuple[str, ...] = CLASSES) -> FeatureSet:
    """A site's features, in a folder with a ledger of its own. classes: in the order in which the site has them."""
    x, y = X[PARTS[name]], Y[PARTS[name]]
    arrays = {"train_x": x, "train_y": np.array([classes.index(CLASSES[label]) for label in y])}
    arrays |= {"train_groups": np.arange(len(x)) // 2} if persons else {}
    np.savez(f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return feature_set(f"{name}.npz", Path(name, "set"), classes=classes)


def agreed(
    sets: Mapping[str, FeatureSet], epsilon: float = 2.0, others: Mapping[str, float] | None = None, **given: Any
) -> Federation:
    """The plan of these sets, written and read. others: the ε of sites that have another one."""
    for name, each in sets.items():
        Path(f"{name}.json").write_bytes(plans.invitation(each, name, (others or {}).get(name, epsilon)).data)
    made = plans.agreed([Path(f"{name}.json") for name in sets], **given)
    Path("plan.json").write_bytes(made.data)
    return plans.load(Path("plan.json"))


def trained(plan: Federation, start: str | None = None, sockets: str = ".") -> Head:
    """The coordinator's head. The ending of its name is left out, as it may be."""
    return coordinator.run(plan, Path(sockets), JOINT.with_suffix(""), Observer(), LOST, start)


def say(name: str, plan: Federation, asked: str, body: bytes = b"", **said: Any) -> str:
    """What a site says to a message: its state, or the word of its refusal."""
    return word(name, framed({"ask": asked, "plan": plan.digest, **said}, body))


def word(name: str, message: bytes) -> str:
    reply, _ = ask(Path(f"{name}.sock"), message, 2**24, LOST)
    return str(reply.get("state") or reply["error"])


def said(name: str, plan: Federation, asked: str, body: bytes = b"", **more: Any) -> bytes:
    """The bytes that a site sends."""
    message = framed({"ask": asked, "plan": plan.digest, **more}, body)
    return bytes(ask(Path(f"{name}.sock"), message, 2**24, LOST)[1])


def remote(patch: pytest.MonkeyPatch, **methods: Any) -> None:
    """What the coordinator does with a site is done so."""
    for name, method in methods.items():
        patch.setattr(coordinator.Remote, name, method)


def patience(patch: pytest.MonkeyPatch, seconds: float, **clock: Any) -> None:
    """Nobody waits longer for a message. clock: what stands for `time`."""
    patch.setattr(messages, "PATIENCE", seconds)
    if clock:
        patch.setattr(messages, "time", SimpleNamespace(**clock))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as each:
        return each.connect_ex(str(path)) == 0


class Serving:
    """Sites that serve in threads, until they have their heads.

    again: they are started again when they stop. at: the socket, if it is not the usual one. every: of replies.
    """

    def __init__(
        self,
        plan: Federation,
        sets: Mapping[str, FeatureSet],
        names: tuple[str, ...] = NAMES,
        again: bool = False,
        at: str | None = None,
        every: float = 0.0,
    ) -> None:
        self.again, self.at, self.every = again, at, every
        self.sites = {name: site_of(plan, name, sets[name], Path(name, "heads")) for name in names}
        self.ended: dict[str, Any] = {}
        self.log = Listener()
        self.threads = {name: threading.Thread(target=self._serve, args=(name,), daemon=True) for name in names}
        for each in self.threads.values():
            each.start()
        for name in names:
            while self.threads[name].is_alive() and not _listens(self._socket(name)):
                self.threads[name].join(0.01)

    def _serve(self, name: str) -> None:
        site: Site = self.sites[name]
        while True:
            try:
                self.ended[name] = serve(site, self._socket(name), self.log, self.every)
            except BaseException as error:
                self.ended[name] = error
            if not (self.again and isinstance(self.ended[name], BaseException)):
                return

    def _socket(self, name: str) -> Path:
        return Path(f"{name}.sock" if self.at is None else self.at)

    def heads(self) -> dict[str, Any]:
        """What became of each, when all have ended."""
        for each in self.threads.values():
            each.join(LOST)
        return self.ended
