"""Which records of a training split become a test split: their own names decide, or those of their persons.

The hash of a record's name decides where it goes. So a record that is added or removed does not move any other one, and
the sizes of the two splits depend on the names alone. They are only about in the proportion that was asked for. A
smaller fraction holds out some of the records that a larger one does. If the persons are known, the hash of the person
decides. So all records of a person land in one split, and the fraction is one of persons.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.sources.groups import Keys, sha256_of_key


def second_test_split(source: str, n: int, noun: str) -> UserError:
    """The error where there is a test split already. n: its records; noun: what they are called."""
    return UserError(
        f"'{source}' has a test split already, of {counted(n, noun)}.",
        f"Leave out {parameter('hold_out')}.",
        code="conflict",
        parameter="hold_out",
        name=source,
    )


def held_out(
    n: int, fraction: float, noun: str, name: Callable[[int], str] = str, keys: Keys | None = None
) -> dict[str, NDArray[np.int64]]:
    """The records of both splits.

    Args:
        n: how many records there are.
        fraction: about this part of them becomes the test split, between 0 and 1.
        noun: what a record is called, for messages.
        name: name(i) is what the source calls record i; its number if it has no name.
        keys: the person of each record, if the source says so.

    Returns:
        The numbers of the records of 'train' and of 'test', ascending.

    Raises:
        UserError: one of the splits would be empty (code "bad-value").

    """
    if keys is None:
        out = np.fromiter((_hashed(name(i)) < fraction for i in range(n)), bool, n)
    else:
        out = np.array([_fraction(sha256_of_key(person)) < fraction for person in keys.names])[keys.codes]
    if out.all() or not out.any():
        raise UserError(
            f"{parameter('hold_out')} {fraction:g} of {counted(n, noun)} leaves one of the two splits empty.",
            "Give another fraction, or a test split of your own.",
            code="bad-value",
            parameter="hold_out",
            value=fraction,
        )
    return {"train": np.flatnonzero(~out), "test": np.flatnonzero(out)}


def _hashed(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return _fraction(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())


def _fraction(digest: bytes) -> float:
    # A float holds 53 bits exactly.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
