"""The options of methods. Each is declared once, with its type, its bounds, its help text and what tuning tries.

A method states its options as fields of a dataclass. The functions of this module make the fields:

    steps: int | None = integer("Number of gradient steps T.", default="20", value=20, high=10_000)

The command line builds `dpfc train --help` from these declarations. `methods.method` checks given values against them,
and tuning takes its grid from them. So a new option is written in one place: in the module of its method. The flag is
the name of the field with dashes: `learning_rate` is `--learning-rate`.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from dpfc_cli.errors import UserError, parameter, unknown

SMALLEST, LARGEST = 1e-12, 1e12
"""Numbers outside these bounds would overflow during a training, after the budget is spent."""

Kind = Literal["integer", "number", "fractions", "choice", "switch"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of one option.

    Attributes:
        kind: the type of its value.
        help: what it is, for `dpfc train --help`.
        default: its default in words, for the sentence "Default: X (methods); Y (methods)."
        low: the smallest value of a number.
        high: the largest value of a number.
        choices: the names to choose from.
        parts: for fractions, the kind of release that each one is for.
        private: it has an effect only with noise.
        optimum: it also has an effect if a training without noise runs to the optimum.
        grid: the factors of its default that tuning tries; empty if it is not tuned.
        hidden: it has no flag.

    """

    kind: Kind
    help: str
    default: str
    low: float = SMALLEST
    high: float = LARGEST
    choices: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    private: bool = False
    optimum: bool = False
    grid: tuple[float, ...] = ()
    hidden: bool = False

    def taken(self, name: str, value: Any, method: str) -> Any:
        """A value of this option as plain Python: an int, a float, a str, a bool or a tuple of floats.

        Args:
            name: the name of the option.
            value: the value.
            method: the name of the method.

        Raises:
            UserError: the value is not valid.

        """
        said = parameter(name)
        about: dict[str, Any] = {"parameter": name, "method": method}
        if self.kind == "choice":
            if not isinstance(value, str) or value not in self.choices:
                raise unknown(name.replace("_", " "), str(value), self.choices)
            return str(value)
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise UserError(f"{said} must be true or false, not {value!r}.", "Give one of these values.", **about)
            return value
        if self.kind == "fractions":
            parts = _floats(value)
            if len(parts) != len(self.parts) or not all(p > 0 for p in parts) or abs(sum(parts) - 1) > 1e-9:
                shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
                raise UserError(
                    f"{said} {shown} is not {len(self.parts)} positive fractions that add up to 1.",
                    f"{method} takes one fraction for each kind of release, in this order: {', '.join(self.parts)}.",
                    **about,
                )
            return parts
        (number,) = _floats((value,)) or (math.nan,)
        if not self.low <= number <= self.high or (self.kind == "integer" and number != int(number)):
            what = "a whole number" if self.kind == "integer" else "a number"
            raise UserError(
                f"{said} must be {what} between {self.low:g} and {self.high:g}, not {value}.",
                "Give a value in that range.",
                **about,
            )
        return int(number) if self.kind == "integer" else number


def _floats(values: Any) -> tuple[float, ...]:
    """Numbers as floats; () where one of them is no number. NumPy's count, true and false do not."""
    try:
        given = tuple(values)
    except TypeError:
        return ()
    plain = all(isinstance(v, Real) and not isinstance(v, bool) for v in given)
    return tuple(map(float, given)) if plain else ()


def _declared(option: Option, value: Any) -> Any:
    return field(metadata={"option": option}) if value is ... else field(default=value, metadata={"option": option})


def integer(help: str, *, default: str, value: Any = ..., low: int = 1, high: int = 10_000, **more: Any) -> Any:
    """A whole number. value: its default if that is a constant. Without a value the method computes the default."""
    return _declared(Option(kind="integer", help=help, default=default, low=low, high=high, **more), value)


def number(help: str, *, default: str, value: Any = ..., low: float = SMALLEST, **more: Any) -> Any:
    """A real number."""
    return _declared(Option(kind="number", help=help, default=default, low=low, **more), value)


def fractions(help: str, parts: tuple[str, ...], *, default: str, value: Any = ...) -> Any:
    """Positive fractions that add up to 1, one for each kind of release. They have no effect without noise."""
    return _declared(Option(kind="fractions", help=help, default=default, parts=parts, private=True), value)


def choice(help: str, choices: tuple[str, ...], *, value: str, **more: Any) -> Any:
    """One of several names."""
    return _declared(Option(kind="choice", help=help, default=value, choices=choices, **more), value)


def switch(help: str, **more: Any) -> Any:
    """True or false. The default is false."""
    return _declared(Option(kind="switch", help=help, default="off", **more), False)


def declared(options: type[Any]) -> dict[str, Option]:
    """The options that a dataclass declares, by name. Other fields are left out."""
    fields = dataclasses.fields(options)
    return {each.name: each.metadata["option"] for each in fields if "option" in each.metadata}


# Options that several methods have, with different defaults


def steps(value: int, **more: Any) -> Any:
    """The number of gradient steps, T in the paper."""
    return integer("Number of gradient steps T.", default=str(value), value=value, **more)


def learning_rate(default: str, value: Any = ..., **more: Any) -> Any:
    """The learning rate, η in the paper."""
    return number("Learning rate η: the factor of the gradient in a step.", default=default, value=value, **more)


def damping(default: str, value: Any = ..., **more: Any) -> Any:
    """The damping, λ in the paper."""
    return number(
        "Damping λ: the number that is added to the diagonal of a noisy matrix before it is inverted. More damping "
        "means less sensitivity to noise and shorter steps.",
        default=default,
        value=value,
        **more,
    )


def feature_clip(value: float) -> Any:
    """The norm that features are clipped to, C in the paper."""
    return number(
        "Norm C that feature vectors are clipped to. The default is smaller than almost every vector, so all vectors "
        "get the same length.",
        default=f"{value:g}",
        value=value,
        optimum=True,
    )


def gradient_clip(value: float, computed: bool = False, private: bool = True) -> Any:
    """The norm that gradients are clipped to, C_g in the paper."""
    return number(
        "Norm C_g that the gradient of each record is clipped to, in units of the length of a clipped feature vector.",
        default=f"{value:g}",
        value=... if computed else value,
        private=private,
    )


def budget_split(*parts: str, default: str, value: Any = ...) -> Any:
    """Fractions of μ² for the kinds of release `parts`, in plan order."""
    of = f"{default} for {', '.join(parts[:-1])} and {parts[-1]}"
    return fractions("Fractions of the budget, one for each kind of release.", parts, default=of, value=value)


def loss(choices: tuple[str, ...]) -> Any:
    """The loss of logistic regression."""
    return choice("Loss function.", choices, value=choices[0], optimum=True)


def bias_feature(value: float, grid: tuple[float, ...] = ()) -> Any:
    """The constant feature that is appended to each vector. Its weight gives the bias."""
    return number(
        "Value of the constant feature that stands for the bias.",
        default=f"{value:g}",
        value=value,
        optimum=True,
        grid=grid,
        hidden=True,
    )
