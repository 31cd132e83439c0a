"""The options of a method: those of `dpfc_cli.options.MethodOptions` that it has, with its own defaults.

A method states its options as fields of a dataclass. A field has the name and the type of the option:

    steps: int | None = default(20, optimum=True)
    learning_rate: float = computed(grid=(0.3, 1.0, 3.0))

What the option is, its bounds and its defaults in words are said once, there. `methods.method` checks given values
against them. Tuning takes its grid from these fields.
"""

import math
from dataclasses import MISSING, dataclass, field, fields

from dpfc_cli import options
from dpfc_cli.errors import UserError, parameter


@dataclass(frozen=True, kw_only=True)
class Option(options.Option):
    """An option as one method has it.

    Attributes:
        parts: for fractions, the kind of release that each one is for.
        private: it has an effect only with noise.
        optimum: it also has an effect if a training without noise runs to the optimum.
        unless: the name of a switch with which it has no effect.
        grid: the factors of its default that tuning tries; empty if it is not tuned.

    """

    parts: tuple[str, ...] = ()
    private: bool = False
    optimum: bool = False
    unless: str = ""
    grid: tuple[float, ...] = ()

    def taken(self, name: str, value: object) -> options.Value:
        """A value as plain Python. Shares must be as many as there are parts. They are scaled to add up to 1."""
        found = super().taken(name, value)
        if self.kind != "numbers":
            return found
        if len(found) != len(self.parts) or not all(options.SMALLEST <= p <= options.LARGEST for p in found):
            shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            raise UserError(
                f"{parameter(name)} {shown} is not {len(self.parts)} positive shares.",
                f"Give one share for each kind of release, in this order: {', '.join(self.parts)}.",
            )
        total = math.fsum(found)
        # Those of a card stay what they are, to the last bit.
        return found if abs(total - 1) <= 1e-9 else tuple(share / total for share in found)


def default(value: object, **more: object) -> options.Value:
    return field(default=value, metadata=more)


def computed(**more: object) -> options.Value:
    return field(metadata=more)


def split(*parts: str, value: object = MISSING) -> options.Value:
    """The shares of μ² of the kinds of release `parts`, in plan order. They have no effect without noise."""
    return field(default=value, metadata={"parts": parts, "private": True})


def declared(of: type) -> dict[str, Option]:
    """The options that a dataclass of a method has, by name. Other fields are left out."""
    shared = options.declared(options.MethodOptions)
    own = [each for each in fields(of) if each.name in shared]
    return {each.name: Option(**{**vars(shared[each.name]), **each.metadata}) for each in own}
