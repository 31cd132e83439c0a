"""Released sums in, head out: one module a method.

A method states its options and their defaults (functions of public facts), its plan, its memory and its solution.
`METHODS` is the table that the command line reads; a new method is a module and an entry here.
"""

from typing import Any

from dpfc_cli.errors import unknown
from dpfc_cli.solvers import dp_fc, dp_ls, dp_newton, first_order
from dpfc_cli.solvers.method import Method

_ALL: tuple[Method[Any], ...] = (dp_fc.METHOD, dp_ls.METHOD, dp_newton.METHOD, *first_order.METHODS)
METHODS: dict[str, Method[Any]] = {method.name: method for method in _ALL}


def method_named(name: str) -> Method[Any]:
    """The method of that name; UserError with the known ones otherwise."""
    try:
        return METHODS[name]
    except KeyError:
        raise unknown("method", name, list(METHODS)) from None
