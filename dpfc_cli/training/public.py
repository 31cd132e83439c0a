"""Public features beside private ones: read before anything is charged, and reduced to their mean.

They come from the same backbone and from records that nobody needs to protect, so what is computed of them is a public
fact, and using it with what was released is post-processing. The guarantee does not depend on them.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dpfc_cli.errors import conflict, damaged, parameter, quoted
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import SPLIT, check_public
from dpfc_cli.methods.whitened import NORMALISE, Public
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.training.calibrate import Calibrated

ROWS = 8192


def inform(calibrated: Calibrated, public: FeatureSet, progress: Progress | None = None) -> Calibrated:
    """The same training with public features beside the private ones, after `check`. Plan and guarantee stay.

    progress(done, total) counts records. UserError where the public set is damaged.
    """
    public.verify(SPLIT)
    manifest, n = public.manifest, public.split(SPLIT).n
    origin = {"name": public.name, "rows": n, "fingerprint": manifest.fingerprint, "backbone": manifest.backbone}
    known = Public(mean=mean_of(public, SPLIT, progress), origin=origin)
    return replace(calibrated, options=replace(calibrated.options, public=known))


def check(calibrated: Calibrated, private: FeatureSet, public: FeatureSet) -> None:
    """UserError where the method has no use for public features, where they are the private records, or where they come
    from another backbone.
    """
    why = "Only dp-whitened releases the mean that they improve."
    check_method(calibrated, "public_features", "public", why)
    check_other(private, public, "public_features")


def check_method(calibrated: Calibrated, name: str, option: str, why: str) -> None:
    """UserError where the method has no use for something public, or has no noise. name: the parameter that names it.
    option: its name among the method's public options. why: why other methods have no use for it.
    """
    if option not in calibrated.method.public:
        one = "Leave it out, or use dp-whitened."
        many = "Leave it out: dp-whitened is for records with one label."
        raise conflict(
            f"{parameter(name)} is no option of {calibrated.method.name}. {why}",
            one if calibrated.facts.k == 1 else many,
        )
    if calibrated.mechanism is None:
        raise conflict(f"{parameter(name)} has no effect with {parameter('non_private')}.", "Leave it out.")


def check_other(private: FeatureSet, public: FeatureSet, option: str) -> None:
    """UserError unless the set can be public (`check_public`) and has the same features. option: its parameter."""
    check_public(public, option, private=private)
    mine, other = recipe(private.manifest), recipe(public.manifest)
    names = differing(private, public)
    differ = [f"{name} ({other.get(name)}, not {mine.get(name)})" for name in names]
    if differ:
        raise conflict(
            f"{quoted(public.folder)} has features of another backbone than '{private.folder}'. They differ in "
            f"{', '.join(differ)}.",
            f"Extract the public pictures with the same {parameter('model')} and options as the private ones.",
        )


def warnings_of(public: FeatureSet) -> list[str]:
    """What cannot be refused, because only the operator can know it."""
    if public.manifest.backbone.get("name") != "imported":
        return []
    return [
        f"'{public.folder}' was imported. dpfc cannot know that its features come from the private ones' backbone, nor "
        "that none of its records is a private one: you assert both."
    ]


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


def differing(one: FeatureSet, other: FeatureSet) -> list[str]:
    mine, theirs = recipe(one.manifest), recipe(other.manifest)
    return [name for name in mine | theirs if mine.get(name) != theirs.get(name)]


def recipe(manifest: Manifest) -> dict[str, Any]:
    return {**manifest.backbone, "dimensions": manifest.dim}
