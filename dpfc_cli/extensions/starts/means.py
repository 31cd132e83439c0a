"""The mean of public records beside private ones, which makes the released one more accurate.

They come from the same backbone and from records that nobody needs to protect, so what is computed of them is a public
fact, and using it with what was released is post-processing. The guarantee does not depend on them.
"""

from dataclasses import replace

import numpy as np

from dpfc_cli.errors import damaged, quoted
from dpfc_cli.extensions.starts.card import PublicFeatures
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.methods.whitened import NORMALISE, Public
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.training.calibrate import Calibrated

ROWS = 8192


def inform(calibrated: Calibrated, public: FeatureSet, progress: Progress | None = None) -> Calibrated:
    """The same training with the mean of public records. progress(done, total) counts these.

    UserError where the public set is damaged.
    """
    public.verify(SPLIT)
    manifest, n = public.manifest, public.split(SPLIT).n
    known = Public(mean=mean_of(public, SPLIT, progress))
    said = PublicFeatures(name=public.name, rows=n, fingerprint=manifest.fingerprint, backbone=manifest.backbone)
    parts = {**calibrated.parts, "public_features": said}
    return replace(calibrated, options=replace(calibrated.options, public=known), parts=parts)


def mean_of(on: FeatureSet, split: str, progress: Progress | None = None) -> np.ndarray:
    """The mean of the records of a split, each scaled to length 1. UserError where none of them is finite.

    A record of zeros is one that could not be decoded.
    """
    used, total = 0, np.zeros(on.dim)
    for start, x, _ in on.stream(split)(ROWS):
        z = unit_rows(x)
        used, total = used + len(z), total + z.sum(axis=0)
        if progress:
            progress(start + len(x), on.split(split).n)
    if not used:
        raise damaged(f"{quoted(on.folder)} holds no finite features.", "Name another set.")
    return total / used


def unit_rows(x: np.ndarray) -> np.ndarray:
    """The finite records, each scaled to length 1, without those of zeros."""
    x = x.astype(np.float32)
    return np.asarray(chains.run((NORMALISE,), x[np.isfinite(x).all(axis=1) & x.any(axis=1)], np))
