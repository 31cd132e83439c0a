"""Training methods: from released sums to a head. Each method is one module.

A method states its options and their defaults (functions of public facts), its plan, its memory and its solution. The
command line reads the table `METHODS`. A new method is a module and an entry in this table, or an entry point of
another package (docs/method.md).
"""

import functools
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate

from dpfc_cli import points
from dpfc_cli.errors import unknown
from dpfc_cli.methods import dp_fc, dp_ls, dp_newton, first_order, whitened
from dpfc_cli.methods.method import AnyMethod as AnyMethod
from dpfc_cli.methods.method import Method
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.version import code_digest

_ALL: tuple[AnyMethod, ...] = (whitened.METHOD, dp_fc.METHOD, dp_ls.METHOD, dp_newton.METHOD, *first_order.METHODS)
METHODS: dict[str, AnyMethod] = {method.name: method for method in _ALL}


AUTO = "auto"
FEDERATED = tuple(name for name, method in METHODS.items() if method.federated)
"""The methods that a federation can train."""


def method_named(name: str, facts: Facts) -> AnyMethod:
    """The method with that name, in upper or lower case. UserError: there is no such method.

    "auto" is dp-whitened for records with one label, because it had the best accuracy in measurements. It is dp-fc for
    records with several labels: their classes do not compete, but the softmax loss of dp-whitened assumes that they do.
    (That choice is an argument, not a measurement.)
    """
    name = name.lower()
    if name == AUTO:
        return whitened.METHOD if facts.k == 1 else dp_fc.METHOD
    found = known(name)
    if found is None:
        raise unknown("method", name, [AUTO, *METHODS, *points.added("dpfc.methods")])
    return found


def known(name: str) -> AnyMethod | None:
    """The method with exactly that name, if there is one. UserError: it is of a package that cannot be used."""
    return METHODS.get(name) or (_added(name) if name in points.added("dpfc.methods") else None)


@functools.cache
def _added(name: str) -> AnyMethod:
    """A method of another package, with the digest of its source."""
    entry, method = points.added("dpfc.methods")[name], points.load("dpfc.methods", name, Method)
    names = accumulate(entry.module.split("."), "{}.{}".format)
    # Several packages may have parts in one namespace, which has no source of its own.
    digest = code_digest(next(each for each in names if getattr(find_spec(each), "origin", None)))
    return replace(method, name=name, source={"package": points.package_of(entry), "sha256": digest})
