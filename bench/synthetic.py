"""Made-up feature sets that differ as real ones do, so that no default is fitted to two real sets only.

Each class is Gaussian around its mean. A set is described by: its sizes; how fast the spectrum of the covariance
decays; how far apart the classes are in units of the covariance, and whether they differ in its strong directions or in
all; a common offset; how unequal the sizes of the classes are; heavy tails; rank.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

TEST = 4000
PUBLIC = 5
"""Records of each class that nobody needs to protect."""


@dataclass(frozen=True)
class Family:
    """One set.

    Attributes:
        n, d, m: numbers of records, dimensions and classes.
        decay: eigenvalue k of the covariance is k^-decay.
        apart: root mean square distance of the class means from their centre, in the whitened space.
        strong: the energy of that distance falls as the eigenvalues to this power.
        offset: the fraction of the records' mean square that belongs to their mean.
        zipf: class j has a fraction ∝ (j + 1)^-zipf of the records.
        tails: degrees of freedom of Student's t; 0 for a normal distribution.
        rank: of the covariance; 0 for d.
    """

    n: int
    d: int
    m: int
    decay: float
    apart: float
    strong: float = 0.5
    offset: float = 0.4
    zipf: float = 0.0
    tails: int = 0
    rank: int = 0


FAMILY = {
    "many-classes": Family(10_000, 384, 77, decay=1.0, apart=6.5),
    "most-classes": Family(18_000, 384, 150, decay=0.7, apart=7.0, offset=0.3),
    "wide": Family(16_000, 1280, 10, decay=1.2, apart=3.0, offset=0.75),
    "tabular": Family(16_000, 16, 26, decay=0.5, apart=4.0, offset=0.3),
    "unequal": Family(20_000, 192, 50, decay=1.0, apart=5.0, zipf=1.0),
    "heavy-tails": Family(30_000, 256, 20, decay=1.5, apart=4.0, offset=0.5, tails=4),
    "deficient": Family(20_000, 512, 10, decay=2.0, apart=3.0, strong=0.0, offset=0.6, rank=100),
    "flat": Family(40_000, 64, 50, decay=0.5, apart=5.0, strong=0.0, offset=0.2),
    "few-records": Family(1_500, 64, 10, decay=1.0, apart=4.0, offset=0.7),
}


def draw(family: Family, seed: int = 0) -> dict[str, np.ndarray]:
    """`{train,test}_{x,y}`: float32 and int32; `class_vectors`: the mean of `PUBLIC` other records of each class."""
    rng = np.random.default_rng(seed)
    rank = family.rank or family.d
    values = np.arange(1, rank + 1) ** -family.decay
    axes = np.linalg.qr(rng.normal(size=(family.d, rank)))[0]
    means = rng.normal(size=(family.m, rank)) * values ** (family.strong / 2)
    means *= family.apart / np.sqrt((means**2).sum(axis=1).mean())
    shares = np.arange(1, family.m + 1) ** -family.zipf

    def records(y: np.ndarray) -> np.ndarray:
        inner = rng.normal(size=(len(y), rank))
        if family.tails:
            inner *= np.sqrt(family.tails / rng.chisquare(family.tails, (len(y), 1)))
        return np.asarray(((means[y] + inner) * np.sqrt(values)) @ axes.T)

    made: dict[str, np.ndarray] = {}
    shift: np.ndarray | None = None
    for split, count in (("train", family.n), ("test", TEST)):
        y = rng.choice(family.m, count, p=shares / shares.sum())
        x = records(y)
        if shift is None:
            direction = rng.normal(size=family.d)
            length = np.sqrt((x**2).sum(axis=1).mean() * family.offset / (1 - family.offset))
            shift = direction * length / np.linalg.norm(direction)
        made[f"{split}_x"], made[f"{split}_y"] = (x + shift).astype(np.float32), y.astype(np.int32)
    public = records(np.repeat(np.arange(family.m), PUBLIC)) + shift
    made["class_vectors"] = public.reshape(family.m, PUBLIC, family.d).mean(axis=1).astype(np.float32)
    return made


def write(folder: Path) -> list[Path]:
    """Write the family as folders that `bench.sets.load` reads. Folders that exist are not written again."""
    for name, family in FAMILY.items():
        place = folder / name
        if not (place / "test_y.npy").exists():
            place.mkdir(parents=True, exist_ok=True)
            for part, array in draw(family).items():
                np.save(place / f"{part}.npy", array)
    return [folder / name for name in FAMILY]
