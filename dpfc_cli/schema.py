"""Whether values that came from a file are what they must be: their types, their ranges, and which keys there are.

A *check* is a function of a value. It returns None if the value is right. Otherwise it returns the place of the first
fault inside the value, such as `.plan[0].rate` (empty: the value itself). The functions of this module make checks of
checks:

    check = record({"n": whole(1), "classes": each(text)}, date=text)
    fault({"n": 3, "classes": ["a", 7]}, check)  # → "classes[1]"
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

Check = Callable[[Any], str | None]
LARGEST = 2**53
"""The largest whole number that a file may state. Up to here float64 is exact."""


def fault(value: Any, check: Check) -> str | None:
    """The place of the first fault in a value, as a reader of the file would name it; None if there is none."""
    found = check(value)
    return None if found is None else found.lstrip(".") or "it"


def test(holds: Callable[[Any], bool]) -> Check:
    return lambda value: None if holds(value) else ""


anything = test(lambda value: True)
text = test(lambda value: type(value) is str)
null = test(lambda value: value is None)
boolean = test(lambda value: type(value) is bool)


def whole(low: int, high: int = LARGEST) -> Check:
    """A whole number from low to high. True and False are none."""
    return test(lambda value: type(value) is int and low <= value <= high)


def number(low: float, high: float, beyond: bool = False) -> Check:
    """A finite number from low to high. beyond: it must be larger than low."""
    return test(lambda value: type(value) in (int, float) and low <= value <= high and not (beyond and value == low))


def among(names: Collection[str]) -> Check:
    return test(lambda value: type(value) is str and value in names)


def either(*checks: Check) -> Check:
    """What one of the checks takes. The place of a fault is that of the last one."""

    def check(value: Any) -> str | None:
        found: str | None = ""
        for one in checks:
            found = one(value)
            if found is None:
                break
        return found

    return check


def each(item: Check, least: int = 0) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not list or len(value) < least:
            return ""
        faults = ((i, item(each)) for i, each in enumerate(value))
        return next((f"[{i}]{found}" for i, found in faults if found is not None), None)

    return check


def mapping(item: Check) -> Check:
    """An object with any keys."""

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return ""
        faults = ((key, item(each)) for key, each in value.items())
        return next((f".{key}{found}" for key, found in faults if found is not None), None)

    return check


def record(needed: Mapping[str, Check], **others: Check) -> Check:
    """An object with some keys. others: keys that it may lack. Keys that are not named are not looked at."""
    known = {**needed, **others}

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return ""
        lacking = next((f".{key}" for key in needed if key not in value), None)
        if lacking is not None:
            return lacking
        faults = ((key, item(value[key])) for key, item in known.items() if key in value)
        return next((f".{key}{found}" for key, found in faults if found is not None), None)

    return check


def closed(needed: Mapping[str, Check], **others: Check) -> Check:
    """An object with these keys, maybe some of the others, and no more."""
    inside, more = record(needed, **others), mapping(test(lambda value: False))
    known = {*needed, *others}

    def check(value: Any) -> str | None:
        found = inside(value)
        return found if found is not None else more({key: value[key] for key in value if key not in known})

    return check


scalar = either(null, boolean, text, number(-1e308, 1e308))
"""A value that is not a list or an object."""
