"""One training of several processes: what process 0 asks of the others (`Leader`), and how they answer (`serve`).

Process 0 goes the whole way of a training: it checks, charges, draws the noise and writes the head. The others open
the same feature set. They check their part of it, and then they sum it for each query (`privacy.parts`). They read no
record before process 0 has asked for the first sum, which it does after the charge.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dpfc_cli.errors import conflict
from dpfc_cli.extensions.engine.processes import LostError, Processes
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import parts, passes, persons
from dpfc_cli.privacy.directions import Directions
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.privacy.queries import Grid
from dpfc_cli.privacy.sums import Summed
from dpfc_cli.structs import Json
from dpfc_cli.training.machine import check_devices, shelf_for


@dataclass(frozen=True)
class Leader:
    """What process 0 asks of the others, who sum with it (`training.summing.Summing`)."""

    processes: Processes

    def verify(self, features: FeatureSet, split: str, facts: Facts, progress: Progress | None = None) -> None:
        """All processes have the same set, and each of them finds its part unchanged. UserError: they do not."""
        self._ask("verify", manifest=digest_of(features), split=split, facts=dataclasses.asdict(facts))
        verify_part(self.processes, features, split, facts, progress)

    @contextmanager
    def begun(
        self, split: str, facts: Facts, grid: Grid, side: int | None, memory: float | None
    ) -> Iterator[parts.Sum]:
        bits = grid.bits if isinstance(grid, Lattice) else None
        self._ask("sum", split=split, facts=dataclasses.asdict(facts), bits=bits, side=side, memory=memory)
        yield parts.Together(self.processes)
        # There are no more sums.
        self.processes.tell(b"")

    def records(self, facts: Facts) -> int:
        return len(reached(passes.part_of(facts, self.processes.number, self.processes.count), facts))

    def end(self) -> None:
        """The training is at its end. A process that is gone by now changes nothing: its sums were used. Nor does
        Ctrl-C: the head is written.
        """
        with suppress(LostError, KeyboardInterrupt):
            self._ask("end")

    def _ask(self, what: str, **fields: object) -> None:
        self.processes.tell(json.dumps({"ask": what, **fields}).encode())


def digest_of(features: FeatureSet) -> str:
    """A digest of the manifest as it was opened. The file may be another one by now."""
    return hashlib.sha256(features.manifest.to_json()).hexdigest()


def reached(part: passes.Part, facts: Facts) -> range:
    """The records that a pass over a part may read and use. The last person of a part may have more records behind it,
    and those that count are used.
    """
    stop = part.stop if facts.rows is None else part.stop + passes.block_rows(facts) + persons.MOST
    return range(part.begin, min(stop, facts.records))


def verify_part(
    processes: Processes, features: FeatureSet, split: str, facts: Facts, progress: Progress | None = None
) -> None:
    """Check the shards that hold a process's part. It returns when all processes have done so."""
    part = passes.part_of(facts, processes.number, processes.count)
    features.verify(split, progress, reached(part, facts))
    processes.gathered("")


def serve(processes: Processes, features: FeatureSet) -> None:
    """Do what process 0 asks (`Leader`), until the training ends. UserError: this process cannot do it, or process 0
    has ended. The others are told.
    """
    try:
        while (asked := json.loads(processes.told()))["ask"] != "end":
            facts = Facts(**asked["facts"])
            if asked["ask"] == "verify":
                if digest_of(features) != asked["manifest"]:
                    raise conflict(
                        f"'{features.folder}' is not the feature set of process 0.",
                        "Name the same set in all processes: one folder, or equal copies.",
                    )
                check_devices()
                verify_part(processes, features, asked["split"], facts)
            else:
                _follow(processes, features, facts, asked)
    except BaseException as error:
        processes.failed(error)
        raise


def _follow(processes: Processes, features: FeatureSet, facts: Facts, asked: dict[str, Json]) -> None:
    grid: Grid = Reals() if asked["bits"] is None else Lattice(asked["bits"])
    part, split = passes.part_of(facts, processes.number, processes.count), asked["split"]
    by_person = facts.rows is not None
    stream = features.stream(split, part.begin, groups=by_person)
    records, folder = len(reached(part, facts)), features.scratch
    shelf = shelf_for(asked["side"], records, facts, grid, 0, asked["memory"], folder)
    try:
        directions = None if shelf is None else Directions(shelf)
        parts.follow(processes, Summed(features.watched(stream), facts, grid, directions=directions))
    finally:
        if shelf is not None:
            shelf.clear()
