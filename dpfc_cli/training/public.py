"""Public features beside private ones: read before anything is charged, and reduced to their mean.

They come from the same backbone and from records that nobody needs to protect, so what is computed of them is a public
fact, and using it with what was released is post-processing. The guarantee does not depend on them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods.whitened import NORMALISE, Public
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.training.asserted import check_public
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.request import SPLIT

ROWS = 8192


def inform(
    calibrated: Calibrated,
    private: FeatureSet,
    public: FeatureSet,
    progress: Progress | None = None,
) -> Calibrated:
    """The same training with public features beside the private ones. Plan and guarantee stay.

    Args:
        calibrated: the training.
        private: the private records.
        public: records that nobody needs to protect.
        progress: progress(done, total) counts records.

    Raises:
        UserError: as `check`, and where the public set is damaged.

    """
    check(calibrated, private, public)
    public.verify(SPLIT)
    return replace(calibrated, options=replace(calibrated.options, public=mean_of(public, progress)))


def check(calibrated: Calibrated, private: FeatureSet, public: FeatureSet) -> None:
    """UserError where the method has no use for public features, where they are the private records, or where they come
    from another backbone.
    """
    why = "Only dp-whitened releases the mean that they improve."
    check_method(calibrated, "public_features", "public", why)
    check_other(private, public, "public_features")


def check_method(calibrated: Calibrated, name: str, option: str, why: str) -> None:
    """UserError where the method has no use for something public, or has no noise.

    Args:
        calibrated: the training.
        name: the parameter that names what is public.
        option: its name among the method's public options.
        why: why other methods have no use for it.

    """
    if option not in calibrated.method.public:
        one = "Leave it out, or use dp-whitened."
        many = "Leave it out: dp-whitened is for records with one label."
        raise UserError(
            f"{parameter(name)} is no option of {calibrated.method.name}. {why}",
            one if calibrated.facts.k == 1 else many,
            code="conflict",
            parameter=name,
        )
    if calibrated.mechanism is None:
        raise UserError(
            f"{parameter(name)} has no effect with {parameter('non_private')}.",
            "Leave it out.",
            code="conflict",
            parameter=name,
        )


def check_other(private: FeatureSet, public: FeatureSet, option: str) -> None:
    """UserError unless the set can be public (`asserted`) and has the same features. option: the parameter of it."""
    check_public(public, option, private=private)
    mine, other = recipe(private.manifest), recipe(public.manifest)
    names = [name for name in mine | other if mine.get(name) != other.get(name)]
    differ = [f"{name} ({other.get(name)}, not {mine.get(name)})" for name in names]
    if differ:
        raise UserError(
            f"'{public.folder}' has features of another backbone than '{private.folder}'. They differ in "
            f"{', '.join(differ)}.",
            f"Extract the public pictures with the same {parameter('model')} and options as the private ones.",
            code="conflict",
            path=str(public.folder),
            differ=names,
        )


def warnings_of(public: FeatureSet) -> list[str]:
    """What cannot be refused, because only the operator can know it."""
    if public.manifest.backbone.get("name") != "imported":
        return []
    return [
        f"'{public.folder}' was imported. dpfc cannot know that its features come from the private ones' backbone, nor "
        "that none of its records is a private one: you assert both."
    ]


def mean_of(public: FeatureSet, progress: Progress | None = None) -> Public:
    """The mean of a feature set's training records, each scaled to length 1. UserError where none of them is finite."""
    manifest, n = public.manifest, public.split(SPLIT).n
    origin = {"name": public.name, "rows": n, "fingerprint": manifest.fingerprint, "backbone": manifest.backbone}
    try:
        mean = unit_mean(public.stream(SPLIT), manifest.dim, lambda done: progress(done, n) if progress else None)
    except ValueError as error:
        raise UserError(
            f"'{public.folder}' holds no finite features.",
            "Name another set.",
            code="damaged",
            path=str(public.folder),
        ) from error
    return Public(mean=mean, origin=origin)


def unit_mean(stream: BlockStream, dim: int, told: Callable[[int], object]) -> np.ndarray:
    """The mean of records, each scaled to length 1. ValueError where none is finite. told: how many were read.

    A record of zeros is one that could not be decoded.
    """
    used, total = 0, np.zeros(dim)
    for start, x, _ in stream(ROWS):
        x = x.astype(np.float32)
        z = chains.run((NORMALISE,), x[np.isfinite(x).all(axis=1) & x.any(axis=1)], np)
        used, total = used + len(z), total + z.sum(axis=0)
        told(start + len(x))
    if not used:
        raise ValueError("no finite record")
    return total / used


def recipe(manifest: Manifest) -> dict[str, Any]:
    """What makes features comparable. The file that features were imported from says nothing of their backbone."""
    return {**{name: value for name, value in manifest.backbone.items() if name != "from"}, "dimensions": manifest.dim}
