"""What the processes of a training do that are not process 0: they sum their part of the records."""

import json
from typing import Any

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import parts, passes
from dpfc_cli.privacy.directions import Directions
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import Grid
from dpfc_cli.privacy.sums import Summed
from dpfc_cli.processes import Processes
from dpfc_cli.training.check import check_devices
from dpfc_cli.training.shelf import shelf_for
from dpfc_cli.training.together import digest_of, reached, verify_part


def serve(processes: Processes, features: FeatureSet) -> None:
    """Do what process 0 asks (`together.Leader`), until the training ends.

    Raises:
        UserError: this process cannot do it, or process 0 has ended. The others are told.

    """
    try:
        while (asked := json.loads(processes.told()))["ask"] != "end":
            facts = Facts(**asked["facts"])
            if asked["ask"] == "verify":
                if digest_of(features) != asked["manifest"]:
                    raise UserError(
                        f"'{features.folder}' is not the feature set of process 0.",
                        "Name the same set in all processes: one folder, or equal copies.",
                        code="conflict",
                    )
                check_devices()
                verify_part(processes, features, asked["split"], facts)
            else:
                _follow(processes, features, facts, asked)
    except BaseException as error:
        processes.failed(error)
        raise


def _follow(processes: Processes, features: FeatureSet, facts: Facts, asked: dict[str, Any]) -> None:
    grid: Grid = Reals() if asked["bits"] is None else Lattice(asked["bits"])
    part, split = passes.part_of(facts, processes.number, processes.count), asked["split"]
    by_person = facts.rows is not None
    stream: BlockStream = features.grouped(split, part.begin) if by_person else features.stream(split, part.begin)
    records, folder = len(reached(part, facts)), features.folder.resolve()
    shelf = shelf_for(asked["side"], records, facts, grid, 0, asked["memory"], folder)
    try:
        directions = None if shelf is None else Directions(shelf)
        parts.follow(processes, Summed(features.watched(stream), facts, grid, directions=directions))
    finally:
        if shelf is not None:
            shelf.clear()
