"""`dpfc train --distributed`."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from dpfc_cli.cli import stop
from dpfc_cli.errors import conflict, parameter
from dpfc_cli.options import Options, option
from dpfc_cli.training.request import RUN

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet


@dataclass(frozen=True, kw_only=True)
class Distributed(Options):
    """What `dpfc train` is told of other processes."""

    distributed: bool = option(
        "This process is one of several that train together, as srun, mpirun, a Kubernetes JobSet or "
        "JAX_COORDINATOR_ADDRESS has set them up. Each reads its part of the records. Their network must be private.",
        RUN,
        default=False,
    )

    @contextlib.contextmanager
    def around(self, features: "FeatureSet") -> Iterator[dict[str, object]]:
        """Train with the other processes. They are left in any case. All but process 0 end here.

        UserError: this process is one of several, and nobody said that they train together; or they do not meet.
        """
        from dpfc_cli.extensions.engine.leader import Leader, serve
        from dpfc_cli.extensions.engine.processes import joined, started_with_others

        if not self.distributed:
            if (others := started_with_others()) is not None:
                raise conflict(
                    f"{others} says that this process is one of several. Each would train, and charge, by itself.",
                    f"Let them train together with {parameter('distributed')}, or start one process.",
                )
            yield {}
            return
        stop.at_once = True
        processes = joined()
        try:
            if processes.number:
                serve(processes, features)
            else:
                leader = Leader(processes)
                yield {"summing": leader}
                leader.end()
        except BaseException:
            with contextlib.suppress(KeyboardInterrupt):
                processes.leave(together=False)
            raise
        # Ctrl-C ends the waiting for others. It takes nothing back.
        with contextlib.suppress(KeyboardInterrupt):
            processes.leave(together=True)
        if processes.number:
            raise typer.Exit
