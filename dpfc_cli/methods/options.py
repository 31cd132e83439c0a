"""The options of methods, each declared once: its type, its bounds, its help and what tuning tries.

A method states its options as fields of a dataclass, made by the functions of this module:

    steps: int | None = integer("number of gradient steps T", default="20", value=20, high=10_000)

The command line builds `dpfc train --help` from these declarations, `methods.method` checks given values against them,
and tuning takes its grid from them. So a new option is written in one place, in its method's own module. The flag is
the field's name with dashes: `learning_rate` is `--learning-rate`.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfc_cli.errors import UserError, parameter, unknown

SMALLEST, LARGEST = 1e-12, 1e12
"""Numbers outside these bounds would overflow during a training, when the budget is spent already."""

Kind = Literal["integer", "number", "fractions", "choice", "switch"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of one option.

    help: what it is, as `dpfc train --help` says it. default: how its default reads there. low, high: bounds of a
    number, inclusive. choices: of a choice. parts: of fractions, the kind of release that each is for. private: it has
    an effect only where there is noise. optimum: it also has an effect where a training without noise runs to the
    optimum. grid: the factors of its default that tuning tries; empty if it is not tuned. hidden: it has no flag.
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

    def check(self, name: str, value: Any, method: str) -> None:
        """UserError unless `value` makes sense for this option, called `name`, of that method."""
        said = parameter(name)
        about: dict[str, Any] = {"parameter": name, "method": method}
        if self.kind == "choice":
            if value not in self.choices:
                raise unknown(name.replace("_", " "), str(value), self.choices)
        elif self.kind == "fractions":
            whole = len(value) == len(self.parts) and all(part > 0 for part in value) and abs(sum(value) - 1) <= 1e-9
            if not whole:
                raise UserError(
                    f"{said} {','.join(map(str, value))} is not {len(self.parts)} positive fractions that add up to 1.",
                    f"{method} takes one for each kind of release, in this order: {', '.join(self.parts)}.",
                    **about,
                )
        elif self.kind == "switch":
            if type(value) is not bool:
                raise UserError(f"{said} is true or false, not {value!r}.", "Give one of them.", **about)
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
            or (self.kind == "integer" and value != int(value))
        ):
            what = "a whole number" if self.kind == "integer" else "a number"
            raise UserError(
                f"{said} must be {what} between {self.low:g} and {self.high:g}, not {value}.",
                "Give a value in that range.",
                **about,
            )


def _declared(option: Option, value: Any) -> Any:
    return field(metadata={"option": option}) if value is ... else field(default=value, metadata={"option": option})


def integer(help: str, *, default: str, value: Any = ..., low: int = 1, high: int = 10_000, **more: Any) -> Any:
    """A whole number. value: its default, if it is a constant; otherwise the method computes it."""
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
    """True or false, by default false."""
    return _declared(Option(kind="switch", help=help, default="off", **more), False)


def declared(options: type[Any]) -> dict[str, Option]:
    """The options that a dataclass declares, by name. Fields that are no options are not among them."""
    fields = dataclasses.fields(options)
    return {each.name: each.metadata["option"] for each in fields if "option" in each.metadata}


# Options that several methods share in all but the default


def steps(value: int, **more: Any) -> Any:
    """T, the number of gradient steps."""
    return integer("Number of steps T.", default=str(value), value=value, **more)


def learning_rate(default: str, value: Any = ..., **more: Any) -> Any:
    """η."""
    return number("Learning rate η: the length of a step.", default=default, value=value, **more)


def damping(default: str, value: Any = ..., **more: Any) -> Any:
    """λ."""
    return number(
        "Damping λ: it is added to the diagonal of a noisy matrix before the matrix is inverted. More damping makes "
        "the result less sensitive to noise, and the steps smaller.",
        default=default,
        value=value,
        **more,
    )


def feature_clip(value: float) -> Any:
    """C."""
    return number(
        "Norm C that feature vectors are clipped to, in their own units. The default is smaller than almost every "
        "vector, so that all get the same length.",
        default=f"{value:g}",
        value=value,
        optimum=True,
    )


def gradient_clip(value: float, computed: bool = False) -> Any:
    """C_g."""
    return number(
        "Norm C_g that the gradient of each record is clipped to, in units of the feature vectors' length.",
        default=f"{value:g}",
        value=... if computed else value,
        private=True,
    )


def budget_split(*parts: str, default: str, value: Any = ...) -> Any:
    """Of μ²."""
    help = f"Fractions of the privacy budget μ² for {', '.join(parts[:-1])} and {parts[-1]}, in this order."
    return fractions(help, parts, default=default, value=value)


def loss(choices: tuple[str, ...]) -> Any:
    """Of logistic regression."""
    return choice("Loss function.", choices, value=choices[0], optimum=True)


def bias_feature(value: float, grid: tuple[float, ...] = ()) -> Any:
    """The constant feature that is appended to each vector; its weight is the bias."""
    return number(
        "Value of the constant feature that stands for the bias.",
        default=f"{value:g}",
        value=value,
        optimum=True,
        grid=grid,
        hidden=True,
    )
