"""Public features beside private ones: read before anything is charged, reduced to moments, never part of a guarantee.

They come from the same backbone and from records that nobody needs to protect, so what is computed of them is a public
fact, and using it with what was released is post-processing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods.whitened import NORMALISE, Public, unit_chain
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.chain import Chain
from dpfc_cli.privacy.curator import BlockStream
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.training import SPLIT, Calibrated, check_memory, ledger

ROWS = 8192


def inform(
    calibrated: Calibrated,
    private: FeatureSet,
    public: FeatureSet,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """The same training with public features beside the private ones: plan and guarantee stay.

    memory: bytes, as for `training.prepare`. progress(done, total) counts records over two passes. UserError as
    `check`, and where the set is damaged.
    """
    check(calibrated, private, public)
    check_memory(calibrated, memory)
    public.verify(SPLIT)
    return replace(calibrated, options=replace(calibrated.options, public=moments_of(public, progress)))


def check(calibrated: Calibrated, private: FeatureSet, public: FeatureSet) -> None:
    """UserError where the method has no use for public features, where they are the private records, or where they come
    from another backbone.
    """
    if "public" not in calibrated.method.options.__dataclass_fields__:
        raise UserError(
            f"--public-features is no option of {calibrated.method.name}.", "Leave it out, or use dp-whitened."
        )
    if calibrated.guarantee is None:
        raise UserError("--public-features has no effect with --non-private.", "Leave it out.")
    check_other(private, public)


def check_other(private: FeatureSet, public: FeatureSet) -> None:
    """UserError unless the public set has other records than the private one, in every split, in the same features."""
    rows = public.split(SPLIT).n
    listed = {ledger.records_of(public.manifest, split) for split in public.manifest.splits}
    if ledger.records_of(private.manifest) in listed or private.folder.resolve() == public.folder.resolve():
        raise UserError(
            f"'{public.folder}' holds the private records themselves ({rows:,} of the same source): "
            "what is computed of them without noise would leak.",
            "Name features of other records, which nobody needs to protect.",
        )
    mine, other = _recipe(private.manifest), _recipe(public.manifest)
    names = [name for name in mine | other if mine.get(name) != other.get(name)]
    differ = [f"{name} ({other.get(name)}, not {mine.get(name)})" for name in names]
    if differ:
        raise UserError(
            f"'{public.folder}' are features of another backbone than '{private.folder}': they differ in "
            f"{', '.join(differ)}.",
            "Extract the public pictures with the private ones' --model and options.",
        )


def forebodings(public: FeatureSet) -> list[str]:
    """What cannot be refused, for only the operator knows better."""
    said = []
    if any(row.claim == "private" for row in ledger.read(ledger.ledger_path(public.folder))):
        said.append(
            f"'{public.folder}' has been trained on with a guarantee, which does not cover its use as public features."
        )
    if public.manifest.backbone.get("name") == "imported":
        said.append(
            f"'{public.folder}' was imported: that its features come from the private ones' backbone, and that none of "
            "its records is a private one, is your word."
        )
    return said


def moments_of(public: FeatureSet, progress: Progress | None = None) -> Public:
    """`moments` of a feature set's training records. UserError where none of them is finite."""
    manifest, n = public.manifest, public.split(SPLIT).n
    origin = {"name": public.name, "rows": n, "fingerprint": manifest.fingerprint, "backbone": manifest.backbone}
    try:
        return moments(public.stream(SPLIT), n, manifest.dim, origin, progress)
    except ValueError as error:
        raise UserError(f"'{public.folder}' holds no finite features.", "Name another set.") from error


def moments(
    stream: BlockStream, n: int, dim: int, origin: Mapping[str, Any], progress: Progress | None = None
) -> Public:
    """Mean and covariance of n records, as DP-Whitened defines them. Memory: one block and two d × d.

    ValueError where no record is finite. origin: what the card is to say of them.
    """

    def passed(chain: Chain, before: int) -> Iterator[np.ndarray]:
        """The chain on every finite record. A record of zeros is one that could not be decoded."""
        for start, x, _ in stream(ROWS):
            x = x.astype(np.float32)
            yield chains.run(chain, x[np.isfinite(x).all(axis=1) & x.any(axis=1)], np)
            if progress:
                progress(before + start + len(x), 2 * n)

    used, first, second = 0, np.zeros(dim), np.zeros((dim, dim))
    for z in passed((NORMALISE,), 0):
        used, first = used + len(z), first + z.sum(axis=0)
    if not used:
        raise ValueError("no finite record")
    mean = first / used
    for z in passed(unit_chain(mean, float(mean @ mean)), n):
        second += z.T @ z
    return Public(mean, second / used, origin)


def _recipe(manifest: Manifest) -> dict[str, Any]:
    """What makes features comparable. The file that features were imported from says nothing of their backbone."""
    return {**{name: value for name, value in manifest.backbone.items() if name != "from"}, "dimensions": manifest.dim}
