"""A head that what is predicted makes better (`methods.unlabelled`). It is made for these predictions and thrown away.

The private records are not asked again: all of it is post-processing of a head that was released, so nothing is
charged. What is predicted needs no protection from whoever reads the predictions, but the adapted head contains the
means of its classes. So it has no file.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

import numpy as np

from dpfc_cli.errors import UserError, conflict, counted, parameter, unsupported
from dpfc_cli.heads.head import Head
from dpfc_cli.memory import free_memory
from dpfc_cli.methods.unlabelled import adapt
from dpfc_cli.prediction.sources import Block, Source
from dpfc_cli.privacy.chain import run
from dpfc_cli.progress import Progress

READING = "Reading all that is predicted"


class Held(Source):
    """A source whose blocks are in memory. remarks: those of the source, and what became of the head."""

    def __init__(self, source: Source, blocks: list[Block], remark: str) -> None:
        self.n, self.noun, self.warnings = source.n, source.noun, source.warnings
        self.remarks = (*source.remarks, remark)
        self._source, self._blocks = source, blocks

    def name(self, i: int) -> str:
        return self._source.name(i)

    def blocks(self) -> Generator[Block, None, None]:
        yield from self._blocks


def adapted(head: Head, source: Source, progress: Progress | None) -> tuple[Head, Source]:
    """The head that serves the records of a source best, and that source.

    Raises:
        UserError: the method left nothing to adapt the head by, or the records do not fit into memory.

    """
    if head.several_labels:
        what = f"{parameter('adapt')} is for records with one label, and this head gives several."
        raise conflict(what, "Leave it out.")
    if head.evidence is None:
        raise unsupported(
            f"This head of {head.card.method} has nothing in its file by which it could be adapted.",
            f"Leave {parameter('adapt')} out, or train a private head with dp-whitened.",
        )
    needed, free = 12 * source.n * head.dim, free_memory()
    if needed > free:
        raise UserError(
            f"To adapt a head to them, {counted(source.n, source.noun)} take {needed / 1e9:,.1f} GB of memory, and "
            f"{free / 1e9:,.1f} GB are free.",
            f"Predict fewer at once, or leave {parameter('adapt')} out.",
            code="memory",
        )
    blocks, usable = list[Block](), [np.empty((0, head.dim), np.float32)]
    with closing(source.blocks()) as made:
        for block in made:
            blocks.append(block)
            with np.errstate(over="ignore"):
                x = block.features.astype(np.float32)
            x[list(block.broken)] = np.nan
            usable.append(x[np.isfinite(x).all(axis=1)])
            if progress:
                progress(READING, block.start + len(x), source.n)
    x = np.concatenate(usable)
    found = adapt(head.weight, head.bias, head.evidence, np.asarray(run(head.chain, x, np), float))
    records = counted(len(x), source.noun)
    if found.strength is None:
        return head, Held(source, blocks, f"Not adapted: it is not clear that {records} would make the head better.")
    remark = (
        f"Adapted to {records}: the private loss is estimated to fall by {found.gain:.2g} ± {found.deviation:.1g}. A "
        "prediction depends on what is predicted together, and says something of it."
    )
    return replace(head, weight=found.weight, bias=found.bias), Held(source, blocks, remark)
