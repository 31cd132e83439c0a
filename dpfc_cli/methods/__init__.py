"""Training methods: from released sums to a head. Each method is one module.

A method states its options and their defaults (functions of public facts), its plan, its memory and its solution. The
command line reads the table `METHODS`. A new method is a module and an entry in this table.
"""

from typing import Any

from dpfc_cli.errors import unknown
from dpfc_cli.methods import dp_fc, dp_ls, dp_newton, first_order, whitened
from dpfc_cli.methods.method import Method
from dpfc_cli.privacy.facts import Facts

AnyMethod = Method[Any, Any]
_ALL: tuple[AnyMethod, ...] = (whitened.METHOD, dp_fc.METHOD, dp_ls.METHOD, dp_newton.METHOD, *first_order.METHODS)
METHODS: dict[str, AnyMethod] = {method.name: method for method in _ALL}


AUTO = "auto"


def method_named(name: str, facts: Facts) -> AnyMethod:
    """The method with that name, in upper or lower case.

    "auto" is dp-whitened for records with one label, because it had the best accuracy in measurements. It is dp-fc for
    records with several labels: their classes do not compete, but the softmax loss of dp-whitened assumes that they do.
    (That choice is an argument, not a measurement.)

    Args:
        name: the name of a method, or "auto".
        facts: the public facts.

    Raises:
        UserError: there is no such method.

    """
    name = name.lower()
    if name == AUTO:
        return whitened.METHOD if facts.k == 1 else dp_fc.METHOD
    try:
        return METHODS[name]
    except KeyError:
        raise unknown("method", name, [AUTO, *METHODS]) from None
