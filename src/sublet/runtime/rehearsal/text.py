"""Printed lines, and lines of files, held against those of another run: words must be the same, numbers nearly.

The allowed distance comes from a third run, which differs from the first in its random numbers alone. Numbers that
differ there though nothing is drawn are times of day, or what a step took.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

__all__ = ["Allowance", "Odd", "Twins", "apart", "first_odd", "weights_apart"]

RNG = 3.0  # times the effect of other random numbers
CHAOS, CHAOS_MOST = 20.0, 1e-4  # times what a rounding grows to, as long as it stays one
SUM = 8.0  # a sum of many is that much less exact than they are
NUMBER = re.compile(r"(?<![A-Za-z_\d.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|(?<!\w)(?:nan|inf)(?!\w)")
TAKES = re.compile(r"time|elapsed|\bsec|speed|\beta\b|\bdt\b|pid|date|per.?s\b|/s\b|lasted|took", re.IGNORECASE)
UNIT = re.compile(r"\s*(?:ms|us|s|sec|seconds?|minutes?|min|h)\b|\s*[\w-]*/s")
WIDTH = re.compile(r"worker|world|rank|process|gpu|device|width", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowed difference."""

    rounding: float

    def of(self, noise: float) -> float:
        """The allowance where random numbers make so much of a difference."""
        return max(self.rounding, RNG * noise, min(CHAOS * noise, CHAOS_MOST))


PRINTED = Allowance(rounding=1e-3)  # rounded to a few digits as they are


def apart(one: float, two: float) -> float:
    """As a part of the larger."""
    if one == two or (math.isnan(one) and math.isnan(two)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(two)):
        return math.inf
    return abs(one - two) / max(abs(one), abs(two))


def weights_apart(one: np.ndarray, two: np.ndarray) -> float:
    """Two states of a parameter (`Step.weights`), as a part of its length."""
    if one.shape != two.shape:
        return math.inf
    if np.array_equal(one, two, equal_nan=True):
        return 0.0
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return math.inf
    length, some = max(one[1], two[1]), max(float(np.linalg.norm(one[2:])), float(np.linalg.norm(two[2:])))
    found = [abs(one[0] - two[0]) / SUM / length, abs(one[1] - two[1]) / length]
    return float(max(*found, np.linalg.norm(one[2:] - two[2:]) / some if some else 0.0))


@dataclass(frozen=True, slots=True)
class Odd:
    """A line that the other run has otherwise; "" = it has none."""

    here: str
    there: str
    ratio: float | None = None  # of the number that differs


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    numbers: tuple[str, ...]
    takes: tuple[bool, ...]  # it is a time


@dataclass(frozen=True, slots=True)
class Twins:
    """The same lines of two runs that differ in their random numbers alone."""

    one: Sequence[str]
    two: Sequence[str]
    draws: bool = False  # random numbers make another training
    usual: float = 0.0  # how far its losses are apart then: one pair of numbers may be near by chance


def first_odd(base: Sequence[str], run: Sequence[str], twins: Twins, *, repeats: bool, workers: int = 1) -> Odd | None:
    """The first difference of `run` from `base`; None = nothing.

    With `repeats` lines may come twice, since steps are made again, and lines of its own are no matter.
    """
    known, found = _by_shape(base), _by_shape(run)
    ones, twos = _by_shape(twins.one), _by_shape(twins.two)
    for shape, lines in known.items():
        pairs = ones.get(shape, []), twos.get(shape, [])
        if len(pairs[0]) != len(pairs[1]) or (twins.draws and not pairs[0]):
            continue  # it depends on random numbers, or on the time
        allowed = _allowed(lines[0], *pairs, twins)
        odd = (_odd_in_sets if repeats else _odd_in_order)(lines, found.get(shape, []), allowed, workers)
        if odd is not None:
            return odd
    more = [lines[0] for shape, lines in found.items() if shape not in known and shape not in twos]
    return Odd(more[0].text, "") if more and not repeats else None


def _odd_in_order(
    lines: Sequence[_Line], others: Sequence[_Line], allowed: Sequence[float | None], workers: int
) -> Odd | None:
    for line, other in zip(lines, others, strict=False):
        if (at := _differs(line, other, allowed, workers)) is not None:
            return Odd(other.text, line.text, _ratio(line, other, at))
    if len(others) > len(lines):
        return Odd(others[len(lines)].text, "")
    return Odd("", lines[len(others)].text) if len(lines) > len(others) else None


def _odd_in_sets(
    lines: Sequence[_Line], others: Sequence[_Line], allowed: Sequence[float | None], workers: int
) -> Odd | None:
    for other in others:
        if all(_differs(line, other, allowed, workers) is not None for line in lines):
            near = max(lines, key=partial(_alike, other))
            return Odd(other.text, near.text)
    for line in lines:
        if all(_differs(line, other, allowed, workers) is not None for other in others):
            return Odd("", line.text)
    return None


def _alike(one: _Line, two: _Line) -> list[bool]:
    """Number by number; the first say most."""
    return [a == b for a, b in zip(one.numbers, two.numbers, strict=True)]


def _differs(line: _Line, other: _Line, allowed: Sequence[float | None], workers: int) -> int | None:
    """The first number that does."""
    for at, (one, two, most) in enumerate(zip(line.numbers, other.numbers, allowed, strict=True)):
        if most is None or one == two or (one == "1" and two == str(workers) and WIDTH.search(line.text)):
            continue
        if "." not in one + two and "e" not in one + two and most <= PRINTED.rounding:
            return at
        last_digit = 1.5 * 10.0 ** -len(one.partition(".")[2]) if "e" not in one.lower() else 0.0
        if apart(float(one), float(two)) > most and not abs(float(one) - float(two)) < last_digit:
            return at
    return None


def _ratio(line: _Line, other: _Line, at: int) -> float | None:
    one, two = float(line.numbers[at]), float(other.numbers[at])
    return two / one if one else None


def _allowed(line: _Line, ones: Sequence[_Line], twos: Sequence[_Line], twins: Twins) -> list[float | None]:
    """For each number of this shape how far two may be apart, as a part of them; None = it is a time."""
    columns: list[float | None] = []
    for at, number in enumerate(line.numbers):
        pairs = [(float(a.numbers[at]), float(b.numbers[at])) for a, b in zip(ones, twos, strict=True)]
        noise = max((apart(one, two) for one, two in pairs), default=0.0)
        is_time = line.takes[at] or (not twins.draws and noise > PRINTED.rounding)
        if twins.draws and (noise or not number.lstrip("+-").isdecimal()):
            noise = max(noise, twins.usual)
        columns.append(None if is_time else PRINTED.of(noise))
    return columns


def _by_shape(lines: Sequence[str]) -> dict[str, list[_Line]]:
    found: dict[str, list[_Line]] = defaultdict(list)
    for text in lines:
        numbers, takes, last = [], [], 0
        for match in NUMBER.finditer(text):
            numbers.append(match[0])
            takes.append(bool(TAKES.search(text[last : match.start()]) or UNIT.match(text[match.end() :])))
            last = match.end()
        found[NUMBER.sub("#", text)].append(_Line(text, tuple(numbers), tuple(takes)))
    return found
