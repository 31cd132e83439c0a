"""`dpfc train`: a feature set and a budget in, a head and a statement out."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli.cli import display, places, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.trained import show_head, show_plan, show_so_far
from dpfc_cli.cli.typed import with_sets
from dpfc_cli.options import Option
from dpfc_cli.training.observer import CHECKING, MATRICES, SOLVING, TUNING, Observer
from dpfc_cli.training.request import RUN, Request

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.processes import Processes


@command("train", Request, when_stopped="Nothing was charged, and no head was written.")
def train(
    features: Annotated[
        str | None, Option("Feature set, by path or name. Default: the newest one.", metavar="SET")
    ] = None,
    dry_run: Annotated[
        bool, Option("Do everything but the training: show plan, guarantee and cost, charge nothing.", RUN)
    ] = False,
    yes: Annotated[bool, Option("Do not ask before the charge.", RUN, flags=("--yes", "-y"))] = False,
    distributed: Annotated[
        bool,
        Option(
            "This process is one of several that train together, as srun, mpirun, a Kubernetes JobSet or "
            "JAX_COORDINATOR_ADDRESS has set them up. Each reads its part of the records. Their network must be "
            "private.",
            RUN,
        ),
    ] = False,
    full: Full = False,
    as_json: Annotated[bool, Option("Print one JSON object.", RUN, flags=("--json",))] = False,
    **asked: Any,
) -> None:
    """Train a classifier on a feature set with differential privacy, and charge it to the set's ledger.

    State the privacy once, as --epsilon, --noise-multiplier or --non-private. A charge cannot be taken back.
    """
    from dpfc_cli.training.distributed import Leader, serve
    from dpfc_cli.training.run import stands
    from dpfc_cli.training.train import finish, plan

    found, others = places.feature_set(features)
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(_processes(distributed))
        if processes is not None and processes.number:
            serve(processes, found)
            return
        observer = _Observer(stack, found, others, asks=not (yes or dry_run))
        # The other processes wait already: what cannot be opened ends them, too.
        request = Request(
            found,
            **with_sets(asked, Request),
            observer=observer,
            leader=None if processes is None else Leader(processes),
        )
        if others:
            display.say(f"Features: {found.folder} (the newest of {others + 1} sets; --features names another)")
        checked = plan(request, observer)
        if not dry_run:
            show_so_far(checked)
            stop.stands = "'dpfc budget' says whether the training is charged."
            trained = finish(checked, observer)
            stop.stands = stands(trained.charged, trained.path)
        if request.leader is not None:
            request.leader.end()
    if dry_run:
        show_plan(checked, as_json, full)
    else:
        show_head(trained, as_json, full, request.out is not None, features)


@contextlib.contextmanager
def _processes(distributed: bool) -> Iterator["Processes | None"]:
    """The processes of the training, or None if this one trains alone. They are left in any case."""
    from dpfc_cli.errors import UserError, parameter
    from dpfc_cli.processes import joined, started_with_others

    if not distributed:
        others = started_with_others()
        if others is not None:
            raise UserError(
                f"{others} says that this process is one of several. Each would train, and charge, by itself.",
                f"Let them train together with {parameter('distributed')}, or start one process.",
                code="conflict",
            )
        yield None
        return
    stop.at_once = True
    processes = joined()
    try:
        yield processes
    except BaseException:
        with contextlib.suppress(KeyboardInterrupt):
            processes.leave(together=False)
        raise
    # Ctrl-C ends the waiting for others. It takes nothing back.
    with contextlib.suppress(KeyboardInterrupt):
        processes.leave(together=True)


class _Observer(Observer):
    """Shows on stderr what a training says, and asks before the charge where the set was chosen for the user."""

    def __init__(self, stack: contextlib.ExitStack, found: "FeatureSet", others: int, asks: bool) -> None:
        self._stack, self._found, self._others, self._asks = stack, found, others, asks
        self._advance: display.Stages | None = None

    def warn(self, text: str) -> None:
        display.warn(text)

    def say(self, text: str) -> None:
        display.say(text)

    def progress(self, stage: str, done: int, total: int | None) -> None:
        if self._advance is None:
            self._advance = self._stack.enter_context(display.stages(stage, _unit_of))
        self._advance(stage, done, total)

    def confirm(self, charge: str) -> bool:
        """Ask on a terminal, if there are several sets and none was named."""
        stop.check()
        if not (self._asks and self._others and sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        self._stack.close()
        self._advance = None
        question = f"Charge {charge}, the newest of {self._others + 1} sets?"
        return display.confirmed(question)


def _unit_of(stage: str) -> str:
    """What a stage counts."""
    if stage == CHECKING:
        return "files"
    if stage in (MATRICES, SOLVING):
        return "classes"
    return "trainings" if stage.startswith(TUNING) else "records"
