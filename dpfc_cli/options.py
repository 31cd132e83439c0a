"""Options: what a user can set, declared once for the command line and for Python.

A call is a frozen dataclass, and its fields are its options:

    @dataclass(frozen=True, kw_only=True)
    class Training(Options):
        epsilon: float | None = option("ε to spend: the smaller, the more private.", "Privacy")

`cli` makes the command of it, and `takes` the Python function. Values are checked when the call is made, by both in the
same way. A help text names another option as `errors.parameter` does, ‹epsilon›: readers see `--epsilon`, or `epsilon`.

Nothing here loads what computes, so `--help` is fast.
"""

import functools
import inspect
import math
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from dpfc_cli import points
from dpfc_cli.errors import UserError, near, parameter, spelled, unknown
from dpfc_cli.places import Remote, local
from dpfc_cli.progress import show

SMALLEST, LARGEST = 1e-12, 1e12
"""Numbers outside these bounds would overflow during a training, after the budget is spent."""

_ANY = {"low": SMALLEST, "high": LARGEST}

Kind = Literal["integer", "number", "numbers", "choice", "switch", "text", "path", "place", "set", "other"]
Classes = int | Sequence[str] | Path
"""The classes of a set, a public fact: how many, their names, or a file with a name on each line."""
Value = Any
"""A value of an option, of the type that its declaration says."""
P = ParamSpec("P")
Call = TypeVar("Call", bound="Options")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
        help: what it is, in sentences.
        group: the panel of `--help` that shows it.
        metavar: what stands for a value, such as SET; it also says how a value is typed (`cli.typed`).
        flags: its flags, if they are not its name with dashes.
        argument: on the command line it is positional.
        typed: it can be typed there at all. Other options are for Python alone.
        low: the smallest value of a number.
        high: the largest value of a number.
        open: the bounds are none of the values.
        kind: the type of its value, which `declared` takes from the field's. A place is a path, or a name: ./mine is
            not mine.
        urls: a place may also be a URL.
        choices: the names to choose from, likewise. If they are declared, they are what a shell completes, and other
            values may be valid.

    """

    help: str
    group: str = ""
    _: KW_ONLY
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    argument: bool = False
    typed: bool = True
    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    kind: Kind = "other"
    urls: bool = False
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        named = self.kind != "choice" or all(each in self.help for each in self.choices)
        return self.help if named else f"{self.help} One of {listed(self.choices)}."

    def taken(self, name: str, value: object) -> Value:
        """A value as plain Python: an int, a float, a str, a bool, a Path or a tuple of floats. UserError: the value is
        not valid.
        """
        said = parameter(name)
        if self.kind == "choice":
            known = {each.lower(): each for each in self.choices}
            if not isinstance(value, str) or value.lower() not in known:
                raise unknown(said, str(value), self.choices)
            return known[value.lower()]
        if self.kind in ("integer", "number"):
            return self._number(said, value)
        if self.kind == "numbers":
            if not (found := floats(value)):
                raise UserError(f"{said} {value!r} is no list of numbers.", "Give one, such as 1,2.")
            return found
        wrong = {
            "switch": not isinstance(value, bool) and "true or false",
            "text": not isinstance(value, str) and "a text",
            **dict.fromkeys(("path", "place"), not isinstance(value, str | Path | Remote) and "a path"),
            # Its class lies in a room above.
            "set": all(each.__name__ != "FeatureSet" for each in type(value).__mro__) and "a feature set",
        }.get(self.kind, False)
        if wrong:
            remedy = "Open it with open_features." if self.kind == "set" else f"Give {wrong}."
            if hasattr(value, "__array__"):
                remedy = "Make a set of arrays: import_features({'train_x': x, 'train_y': y}, classes=…)."
            raise UserError(f"{said} is a {type(value).__name__}, not {wrong}.", remedy)
        if self.kind in ("path", "place") and not self.urls:
            path = local(str(value), said, "It must lie on a file system.")
            return path if self.kind == "path" else value
        return str(value) if self.kind == "text" else value

    def _number(self, said: str, value: object) -> float:
        """The value as an int or a float, because that is what a ledger keeps."""
        what = "a whole number" if self.kind == "integer" else "a number"
        if isinstance(value, bool) or not isinstance(value, Real):
            raise UserError(f"{said} must be {what}, not {value!r}.", "Give a number.")
        try:
            number = float(value)
        except OverflowError as error:
            what = f"{said} is beyond the numbers of this machine."
            raise UserError(what, "Give a smaller one.") from error
        within = self.low < number < self.high if self.open else self.low <= number <= self.high
        if self.kind == "integer":
            within = within and number.is_integer()
        if not within:
            raise UserError(f"{said} must be {what}{self._range}, not {value}.", "Give another one.")
        # An int beyond 2⁵³ is no float.
        return (int(value) if isinstance(value, Integral) else int(number)) if self.kind == "integer" else number

    @property
    def _range(self) -> str:
        if math.isinf(self.low):
            return ""
        if math.isinf(self.high):
            return f" above {self.low:g}" if self.open else f" of at least {self.low:g}"
        return f" {'above' if self.open else 'between'} {self.low:g} and {'below ' * self.open}{self.high:g}"


def listed(names: Sequence[str]) -> str:
    """'a, b or c'."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def floats(values: object) -> tuple[float, ...]:
    """Numbers as floats; () where one of them is no number. NumPy's count, true and false do not."""
    given = tuple(values) if isinstance(values, Iterable) else ("",)
    plain = all(isinstance(v, Real) and not isinstance(v, bool) for v in given)
    return tuple(map(float, given)) if plain else ()


def option(help: str, group: str = "", *, default: object = None, **more: Value) -> Value:
    return field(default=default, metadata={"option": Option(help, group, **more)})


def said(help: str, group: str = "", **more: Value) -> dict[str, Option]:
    """The metadata of a field that is an option and has its own place: `field(kw_only=False, metadata=said("…"))`."""
    return {"option": Option(help, group, **more)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """A call: a value for each of its options, all of them checked when it is made."""

    def __post_init__(self) -> None:
        unset = {each.name for each in fields(self) if each.default is None}
        for name, said in declared(type(self)).items():
            value = getattr(self, name)
            if value is not None or name not in unset:
                object.__setattr__(self, name, said.taken(name, value))


def progress_option(unit: str = "") -> Value:
    """The option that is called with what is done."""
    counted = f", in {unit}" if unit else ""
    said = f"Called as progress(stage, done, total){counted}. Default: a bar, in a terminal or a notebook."
    return option(said, typed=False, default=show)


ENGINES = "dpfc.engines"
"""The group of entry points of what works on other processes or machines."""


def engine_option(group: str) -> Value:
    """The option that names an engine."""
    known = tuple(points.added(ENGINES))
    said = f"Do the work on an engine: {listed(known) or 'none is installed'}. Default: this process does it."
    return option(said, group, metavar="ENGINE", choices=known)


def engine_named(name: str) -> Value:
    """The engine of that name. UserError: there is none."""
    if name not in points.added(ENGINES):
        raise unknown("engine", name, tuple(points.added(ENGINES)))
    return points.load(ENGINES, name)


HEAD = "The head's file, its name in ./heads, or hf:OWNER/NAME."
"""What is said of an option that names a head."""
METHOD = "Method"
"""The panel of what says how to train."""
MethodName = Literal["auto", "dp-whitened", "dp-fc", "dp-ls", "dp-newton", "dp-sgd", "dp-momentum", "dp-adam"]
Loss = Literal["sigmoid", "softmax"]


@dataclass(frozen=True, kw_only=True)
class MethodOptions(Options):
    """The options of methods. Each method says which of them it has, and their defaults (`methods.options`)."""

    steps: int | None = option(
        "Number of gradient steps T. Default: 12 (dp-whitened), 20 (dp-fc), 10 (dp-newton), 100 (the others). Not for "
        "dp-ls. Default without noise: 100 (dp-whitened), and to the optimum (the others).",
        METHOD,
        low=1,
        high=10_000,
    )
    budget_split: Sequence[float] | None = option(
        "Shares of the budget, one for each kind of release, such as 3,7,90 for the mean, the Gram matrix and the "
        "gradients of dp-whitened. They are scaled to add up to 1. For dp-whitened, dp-fc, dp-ls and dp-newton.",
        METHOD,
        metavar="SHARES",
    )
    learning_rate: float | None = option(
        "Learning rate η: the factor of the gradient in a step; for dp-whitened and dp-newton, of the step that the "
        "method computes. Default: 1 for these, computed for the others. Not for dp-ls.",
        METHOD,
        **_ANY,
    )
    damping: float | None = option(
        "Damping λ, also called ridge: the number that is added to the diagonal of a noisy matrix, divided by the "
        "number of records, before it is inverted. In units of C², C being the feature clip; for dp-whitened as a "
        "multiple of the size of the noise in the matrix. More damping means less sensitivity to noise and shorter "
        "steps. Default: the size of the noise, for dp-whitened 0.25. For dp-whitened, dp-fc, dp-ls and dp-newton.",
        METHOD,
        **_ANY,
    )
    gradient_clip: float | None = option(
        "Norm C_g that the gradient of each record is clipped to, in units of the length of a clipped feature vector. "
        "Default: 0.5; 0.36 for dp-fc; 0.005 of raw features. Not for dp-ls and dp-newton.",
        METHOD,
        **_ANY,
    )
    loss: Loss | None = option(
        "Loss function: sigmoid or softmax. Default: sigmoid. For dp-fc, dp-sgd, dp-momentum and dp-adam.", METHOD
    )
    feature_clip: float | None = option(
        "Norm C that feature vectors are clipped to. Default: 0.005, which is smaller than almost every vector, so all "
        "vectors get the same length. Not for dp-whitened.",
        METHOD,
        **_ANY,
    )
    negative_weight: float | None = option(
        "Weight α: each class is fitted to its own records and, with this weight, to all records. Default: 0.1 without "
        "noise, larger with more noise. For dp-ls.",
        METHOD,
        low=0.0,
        high=LARGEST,
    )
    weight_decay: float | None = option(
        "Weight decay λ: each step makes the weights shorter by this times the learning rate. Default: 0. For dp-sgd, "
        "dp-momentum and dp-adam.",
        METHOD,
        low=0.0,
        high=LARGEST,
    )
    raw_features: bool | None = option(
        "Clip gradients of the features as they are, not of clipped features. Lengths of gradients are then in the "
        "features' own units. For dp-fc, dp-sgd, dp-momentum and dp-adam.",
        METHOD,
    )
    raw_matrices: bool | None = option(
        "Use noisy matrices as they are released. Otherwise their eigenvalues are corrected: none is negative, and "
        "those of dp-fc are shrunk. For dp-fc, dp-ls and dp-newton.",
        METHOD,
    )
    sampling_rate: float | None = option(
        "Probability with which each record (or person) takes part in a step (Poisson sampling). Default: 1, all take "
        "part. For dp-sgd, dp-momentum and dp-adam.",
        METHOD,
        low=SMALLEST,
        high=1.0,
    )
    average: bool | None = option(
        "Use the mean weights of the second half of the steps, not the last weights. For dp-sgd, dp-momentum and "
        "dp-adam.",
        METHOD,
    )
    bias_feature: float | None = option(
        "Value of the constant feature that stands for the bias. Default: 0.6 for dp-whitened, 1/√d for the others (1 "
        "beside raw features). 0: no bias is learned (not for dp-whitened). Not for dp-ls.",
        METHOD,
        low=0.0,
        high=LARGEST,
    )
    as_published: bool | None = option(
        "The method of the paper, Mehta et al. 2022, word by word: a preset of these options, and of ‹accounting›. "
        "Those that you set are as you set them. Not for dp-whitened.",
        METHOD,
    )

    @property
    def options(self) -> dict[str, Value]:
        """Those that are set."""
        values = {name: getattr(self, name) for name in declared(MethodOptions)}
        return {name: value for name, value in values.items() if value is not None}


def declared(of: type) -> dict[str, Option]:
    """The options of a dataclass by name: its own before those of the classes that it extends."""
    known = {each.name: each for each in fields(of) if "option" in each.metadata}
    names = [name for kind in of.__mro__ for name in inspect.get_annotations(kind) if name in known]
    return {name: of_type(known[name].metadata["option"], known[name].type) for name in names}


def of_type(said: Option, hint: object) -> Option:
    union = get_origin(hint) in (types.UnionType, Union)
    parts = [part for part in (get_args(hint) if union else (hint,)) if part is not types.NoneType]
    choices = tuple(name for part in parts if get_origin(part) is Literal for name in get_args(part))
    if MethodName in parts:
        choices = (*choices, *points.added("dpfc.methods"))
    kind: Kind = "other"
    if choices:
        kind = "choice"
    elif "FeatureSet" in str(hint):
        kind = "set"
    elif set(parts) <= {Path, str}:
        kind = "text" if Path not in parts else "place" if str in parts else "path"
    elif len(parts) == 1:
        kind = _KINDS.get(parts[0], "other")
    return replace(said, kind=kind, choices=choices or said.choices)


_KINDS: dict[object, Kind] = {bool: "switch", int: "integer", float: "number", Sequence[float]: "numbers"}


_ELSEWHERE = {
    "random_state": "Did you mean 'seed'? It ends the guarantee.",
    "cap": "A function sets it: set_cap.",
    "lr": "Did you mean 'learning_rate'?",
    "sigma": "Did you mean 'noise_multiplier'?",
    "max_grad_norm": "Did you mean 'gradient_clip'?",
    "epochs": "Did you mean 'steps'?",
    "steps": "Did you mean 'releases'?",
    "sample_rate": "Did you mean 'sampling_rate'?",
}
"""What is said of options that others have."""


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """TypeError for an option that a function does not have."""
    for name in given:
        if name not in known:
            hint = _ELSEWHERE.get(name) or near(name, list(known))
            raise TypeError(f"{function}() has no option '{name}'. {hint}".rstrip()) from None


def with_hooks(asked: Mapping[str, Any], hooks: Iterable["type[Options]"]) -> dict[str, Any]:
    """What was asked for, with the options of hooks as the hooks of which one is set."""
    of = {kind: {name: asked[name] for name in declared(kind) if name in asked} for kind in hooks}
    theirs = {name for given in of.values() for name in given}
    made = tuple(kind(**given) for kind, given in of.items() if any(value is not None for value in given.values()))
    return {name: value for name, value in asked.items() if name not in theirs} | ({"hooks": made} if made else {})


def takes(call: Callable[P, Call], *hooks: type[Options]) -> Callable[[Callable[[Call], Result]], Callable[P, Result]]:
    """Make a function of a call a function of its options: `train(Training(features, epsilon=1))` becomes
    `train(features, epsilon=1)`. Its signature and its docstring list the options. hooks: whose options it takes, too,
    see `with_hooks`.
    """
    kind: Any = call
    known = {name: each for of in (kind, *hooks) for name, each in inspect.signature(of).parameters.items()}

    def made(function: Callable[[Call], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                wanted = kind(*args, **with_hooks(kwargs, hooks))
            except TypeError as error:
                refuse_unknown(function.__name__, kwargs, known)
                # Python names the class.
                said = str(error).replace(f"{kind.__name__}.__init__()", f"{function.__name__}()")
                raise TypeError(said) from None
            return function(wanted)

        returned = function.__annotations__["return"]
        options = {name: said for of in (kind, *hooks) for name, said in declared(of).items()}
        listed = sorted((known[name] for name in options), key=lambda each: each.kind)
        called.__signature__ = inspect.Signature(listed, return_annotation=returned)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in listed} | {"return": returned}
        summary, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\nReturns:")
        called.__doc__ = f"{summary}\nArgs:\n{_arguments(options)}\n\nReturns:{rest}"
        return called

    return made


def _arguments(options: Mapping[str, Option]) -> str:
    lines = []
    for name, said in options.items():
        text = f"{name}: {spelled(said.text, lambda other: other)}".translate({ord("‹"): "`", ord("›"): "`"})
        lines.append(textwrap.fill(text, 112, initial_indent="    ", subsequent_indent="        "))
    return "\n".join(lines)
