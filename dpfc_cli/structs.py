"""Typed records of files: frozen structs, and the one strict decoder of what a file says.

A record is a class that lists what a file may have: `Card`, `Charge`, `Manifest`. Types and bounds stand there, in one
place. `decoded` makes one of the values of a JSON text, and takes exactly what the same record would be written as:

- All keys are known. (An `Open` record leaves others alone.)
- True is no number, 1.0 is no whole number, and a whole number is at most 2⁵³.
- NaN and infinities are no numbers.
- A key that may be missing is missing: null does not stand for that.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform

from msgspec import Meta, Struct, StructMeta, ValidationError, convert, field, to_builtins
from msgspec.structs import asdict

Json = Any
"""A value of a JSON text that nobody has looked at."""
Values = Mapping[str, Json]
"""An object of a JSON text that nobody has looked at."""
LARGEST = 2**53
"""The largest whole number that a file may state. Up to here float64 is exact."""
Whole = Annotated[int, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Number = Annotated[float, Meta(ge=-1e308, le=1e308)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Scalar = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | Number | str | bool | None
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""A SHA-256, in hex."""
Id = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""128 random bits, in hex."""
# No tuple of a fixed length may be in a union with a bounded number: decoding ends msgspec 0.22 with a signal.


class _Keyed(StructMeta):
    """Fields are given by name, in subclasses, too."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Json], **config: Json) -> "_Keyed":
        return super().__new__(mcs, name, bases, namespace, kw_only=True, **config)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Record(Struct, metaclass=_Keyed, frozen=True, forbid_unknown_fields=True):
    """What a file says, with these keys and no others."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Open(Struct, metaclass=_Keyed, frozen=True):
    """What a file says that may have further keys."""


class Fault(ValueError):  # noqa: N818 (it is of a file, not of the program)
    """Values of a file make no sense. place: of the first one, as a reader of the file would name it."""

    def __init__(self, place: str) -> None:
        self.place = place.lstrip(".") or "it"
        super().__init__(f"'{self.place[:80]}' in it is missing, unknown or makes no sense")


Kind = TypeVar("Kind")


def decoded(values: Json, kind: type[Kind]) -> Kind:
    """The record that the values of a JSON text are. Fault: they are none."""
    closed = not issubclass(kind, Open)
    try:
        found = convert(values if closed else _of_utf8(values), kind)
    except ValidationError as error:
        raise Fault(_place(str(error))) from None
    except UnicodeEncodeError:
        raise Fault("") from None
    if closed and (lost := _lost(values, encoded(found))) is not None:
        raise Fault(lost)
    return found


def _of_utf8(values: Json) -> Json:
    """The values without the keys that are no UTF-8, which is all that the library takes for a key of a record."""
    if isinstance(values, list):
        return [_of_utf8(each) for each in values]
    if not isinstance(values, dict):
        return values
    return {key: _of_utf8(each) for key, each in values.items() if key == key.encode(errors="ignore").decode()}


def optional(values: Json, kind: type[Kind]) -> Kind | None:
    """The same; None of null."""
    return None if values is None else decoded(values, kind)


def encoded(record: object) -> Json:
    """The values that a JSON text has of a record."""
    return to_builtins(record)


fields_of = asdict
"""The values of a record by name, as another record takes them."""


def _place(said: str) -> str:
    """Where msgspec found a fault. Its words may have values of the file, which nobody needs to see."""
    what, _, path = said.rpartition(" - at ")
    path = path.removeprefix("`key` in ").strip("`").removeprefix("$")
    if not what:
        what, path = said, ""
    begins = ("Object missing required field `", "Object contains unknown field `")
    name = next((what.removeprefix(each).removesuffix("`") for each in begins if what.startswith(each)), None)
    return path if name is None else f"{path}.{name}"


def _lost(read: Json, held: Json, place: str = "") -> str | None:
    """The place of a value that was read and would not be written."""
    if read == (list(held) if isinstance(held, tuple) else held):
        return None
    if isinstance(held, dict):
        if other := sorted(held.keys() ^ read.keys()):
            return f"{place}.{other[0]}"
        inside = [(f"{place}.{key}", read[key], value) for key, value in held.items()]
    elif isinstance(held, list | tuple):
        inside = [(f"{place}[{i}]", read[i], value) for i, value in enumerate(held)]
    else:
        return place
    return next((lost for at, one, other in inside if (lost := _lost(one, other, at)) is not None), None)
