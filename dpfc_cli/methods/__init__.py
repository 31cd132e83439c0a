"""Released sums in, head out: one module a method.

A method states its options and their defaults (functions of public facts), its plan, its memory and its solution.
`METHODS` is the table that the command line reads; a new method is a module and an entry here.
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
    """The method of that name, in letters of either case; UserError with the known ones otherwise.

    "auto" is dp-whitened, which measured best of all on records with one label, and dp-fc on those with several, whose
    classes do not compete as the softmax has it (argued, not measured).
    """
    name = name.lower()
    if name == AUTO:
        return whitened.METHOD if facts.k == 1 else dp_fc.METHOD
    try:
        return METHODS[name]
    except KeyError:
        raise unknown("method", name, [AUTO, *METHODS]) from None
