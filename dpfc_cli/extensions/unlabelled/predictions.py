"""A head that what is predicted makes better: `predict --adapt`. It is made for these predictions and thrown away.

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

READING, ADAPTING = "Reading all that is predicted", "Adapting the head"


class Held(Source):
    """A source whose blocks are in memory. remark: what became of the head."""

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
        UserError: the training left nothing to adapt the head by, or the records do not fit into memory.

    """
    if head.evidence is None:
        raise unsupported(
            f"This head of {head.card.method} has nothing in its file by which it could be adapted. Only private heads "
            "of dp-whitened have, and those that a training adapted already have not.",
            f"Leave {parameter('adapt')} out.",
        )
    if source.private:
        raise conflict(
            "These are the records that the head was trained on. Predictions of an adapted head would depend on them "
            "without noise.",
            f"Predict other records, or leave {parameter('adapt')} out.",
        )
    check_memory(source.n, head.dim, len(head.classes), source.noun, "adapt")
    blocks, found = list[Block](), [np.empty((0, head.dim), np.float32)]
    with closing(source.blocks()) as made:
        for block in made:
            blocks.append(block)
            found.append(usable(np.delete(block.features, list(block.broken), axis=0)))
            if progress:
                progress(READING, block.start + len(block.features), source.n)
    x = np.concatenate(found)
    del found
    if progress:
        progress(ADAPTING, 0, None)
    better = adapt(head.weight, head.bias, head.evidence, np.asarray(run(head.chain, x, np), float))
    records = counted(len(x), source.noun)
    if not better.share:
        return head, Held(source, blocks, f"Not adapted: it is not clear that {records} would make the head better.")
    remark = (
        f"Adapted to {records}: {better.share:.0%} of each score comes from them, the rest from the head as it was "
        f"trained. The private loss falls by about "
        f"{better.gain:.2g} ± {better.deviation:.1g}. A prediction depends on what is predicted together, and says "
        "something of it."
    )
    serving = replace(head, weight=better.weight, bias=better.bias, evidence=None, path=None)
    return serving, Held(source, blocks, remark)


def usable(features: np.ndarray) -> np.ndarray:
    """The records that are finite and not 0 everywhere, which says that nothing could be read."""
    with np.errstate(over="ignore"):
        x = features.astype(np.float32)
    return np.asarray(x[np.isfinite(x).all(axis=1) & x.any(axis=1)])


def check_memory(n: int, dim: int, classes: int, noun: str, name: str) -> None:
    """UserError unless so many records fit into the memory. name: the parameter that wants them."""
    needed, free = n * (40 * dim + 16 * classes), free_memory()
    if needed > free:
        raise UserError(
            f"To adapt a head to them, {counted(n, noun)} take {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} "
            "GB are free.",
            f"Take fewer at once, or leave {parameter(name)} out.",
            code="memory",
        )
