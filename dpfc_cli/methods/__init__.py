"""Training methods: from released sums to a head. Each method is one module.

A method states its options and their defaults (functions of public facts), its plan, its memory and its solution. The
command line reads the table `METHODS`. A new method is a module and an entry in this table, or an entry point of
another package (docs/method.md).
"""

import functools
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from dpfc_cli.errors import unknown, unsupported
from dpfc_cli.methods import dp_fc, dp_ls, dp_newton, first_order, whitened
from dpfc_cli.methods.method import Method
from dpfc_cli.options import added_methods
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.version import code_digest

AnyMethod = Method[Any, Any]
_ALL: tuple[AnyMethod, ...] = (whitened.METHOD, dp_fc.METHOD, dp_ls.METHOD, dp_newton.METHOD, *first_order.METHODS)
METHODS: dict[str, AnyMethod] = {method.name: method for method in _ALL}


AUTO = "auto"


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
        raise unknown("method", name, [AUTO, *METHODS, *added_methods()])
    return found


def known(name: str) -> AnyMethod | None:
    """The method with exactly that name, if there is one. UserError: it is of a package that cannot be used."""
    return _added(name) if name in added_methods() else METHODS.get(name)


@functools.cache
def _added(name: str) -> AnyMethod:
    """A method of another package, with the digest of its source."""
    entry = added_methods()[name]
    package = "a package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    try:
        method = entry.load()
        if not isinstance(method, Method) or method.name != name:
            raise TypeError(f"{entry.value} is no Method of this name")
        names = accumulate(entry.module.split("."), "{}.{}".format)
        # Several packages may have parts in one namespace, which has no source of its own.
        digest = code_digest(next(each for each in names if getattr(find_spec(each), "origin", None)))
    except Exception as error:
        raise unsupported(
            f"The method '{name}' of {package} cannot be used: {type(error).__name__}: {error}.",
            "Mend the package, or remove it.",
            method=name,
        ) from error
    return replace(method, source={"package": package, "sha256": digest})
