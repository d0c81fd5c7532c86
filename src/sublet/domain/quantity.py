"""Refuse numbers that cannot be, naming the field, the value and the range; and numbers as words."""

from __future__ import annotations

import math

from sublet.errors import InvalidValue


def finite(field: str, value: float) -> None:
    """Neither NaN nor infinite."""
    if not _is_finite(value):
        raise InvalidValue(field, value, "a finite number")


def at_least(field: str, value: float, low: float) -> None:
    """Finite and not below `low`."""
    if not (_is_finite(value) and value >= low):
        raise InvalidValue(field, value, f"a finite number of at least {low:g}")


def positive(field: str, value: float) -> None:
    """Finite and above zero."""
    if not (_is_finite(value) and value > 0):
        raise InvalidValue(field, value, "a finite number above 0")


def within(field: str, value: float, low: float, high: float) -> None:
    """From `low` to `high`, both included."""
    if not low <= value <= high:
        raise InvalidValue(field, value, f"a number from {low:g} to {high:g}")


def whole(field: str, value: int, low: int = 0) -> None:
    """An integer (not a bool, not a float that happens to be round) of at least `low`."""
    if type(value) is not int or value < low:
        raise InvalidValue(field, value, f"a whole number of at least {low}")


def named(field: str, value: str) -> None:
    """A name that can be printed in one column: not empty, no white space at its ends, no line break."""
    if not value or value != value.strip() or not value.isprintable():
        raise InvalidValue(field, value, "a printable name without white space around it")


def counted(number: int, noun: str) -> str:
    """`1 preemption`, `0 preemptions`, `1,200 preemptions`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _is_finite(value: float) -> bool:
    """Also for whole numbers that no float can hold: those are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
