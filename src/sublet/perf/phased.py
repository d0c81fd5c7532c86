"""A speed that changes at known points of progress: training scales better late than early.

>>> slow_then_fast = Phased(ends=(10.0, 30.0), rates=lambda gpu, spread: (1.0, 2.0 * sum(spread)))
>>> slow_then_fast.seconds("T4", (2,), 0.0, 30.0)
15.0
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sublet.domain.quantity import positive
from sublet.domain.shape import Spread
from sublet.errors import InvalidValue

Rates = Callable[[str, Spread], Sequence[float]]  # (GPU kind, spread) -> work per second in each phase


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Phased:
    """Phase i reaches up to the progress `ends[i]`; the last one goes on for ever.

    `rates` is asked once for each (GPU kind, spread); after that `seconds` and `work` cost O(log phases). A phase with
    rate 0 is never got through. Bisection is over Python lists: np.searchsorted takes ten times as long for one number.
    Two of them are equal only if they are the same object: nothing can tell whether two functions are.
    """

    ends: tuple[float, ...]
    rates: Rates
    _curves: dict[tuple[str, Spread], _Curve] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not self.ends:
            raise InvalidValue("ends", self.ends, "the end of at least one phase")
        for end in self.ends:
            positive("ends", end)
        if any(after <= before for before, after in pairwise(self.ends)):
            raise InvalidValue("ends", self.ends, "increasing")

    def __repr__(self) -> str:
        return f"Phased(phases={len(self.ends)})"  # a job is printed in error messages, and its speed with it

    def phase(self, done: float) -> int:
        """The phase in which work goes on at progress `done`."""
        return min(bisect_right(self.ends, done), len(self.ends) - 1)

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """Work per second at progress `done`."""
        return self._curve(gpu, spread).rates[self.phase(done)]

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        """Time to get from `done` to `goal`; infinite if a phase with rate 0 lies between."""
        if goal <= done:
            return 0.0
        curve, ends, first = self._curve(gpu, spread), self.ends, self.phase(done)
        rate = curve.rates[first]
        if rate == 0.0:
            return math.inf
        if first == len(ends) - 1 or goal <= ends[first]:
            return (goal - done) / rate
        last = min(bisect_left(ends, goal), len(ends) - 1)
        if last >= curve.stuck[first]:
            return math.inf
        whole_phases_s = curve.starts_s[last] - curve.starts_s[first + 1]
        return (ends[first] - done) / rate + whole_phases_s + (goal - ends[last - 1]) / curve.rates[last]

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        """Progress reached after `seconds` from `done`; the inverse of `seconds`."""
        curve, ends, first = self._curve(gpu, spread), self.ends, self.phase(done)
        rate = curve.rates[first]
        if rate == 0.0 or seconds <= 0.0:
            return done
        if first == len(ends) - 1:
            return done + rate * seconds
        left_s = seconds - (ends[first] - done) / rate
        if left_s <= 0.0:
            return min(done + rate * seconds, ends[first])
        at_s = curve.starts_s[first + 1] + left_s
        last = bisect_right(curve.starts_s, at_s, first + 1) - 1
        stuck = curve.stuck[first]
        if last >= stuck:
            return ends[stuck - 1]
        reached = ends[last - 1] + (at_s - curve.starts_s[last]) * curve.rates[last]
        return reached if last == len(ends) - 1 else min(reached, ends[last])

    def _curve(self, gpu: str, spread: Spread) -> _Curve:
        curve = self._curves.get((gpu, spread))
        if curve is None:
            curve = self._curves[gpu, spread] = _curve_from_rates(self.ends, self.rates(gpu, spread))
        return curve


@dataclass(frozen=True, slots=True)
class _Curve:
    rates: list[float]
    starts_s: list[float]  # time at which each phase begins, counted from 0; phases with rate 0 count as 0 s
    stuck: list[int]  # the first phase with rate 0, from each phase on; the number of phases if there is none


def _curve_from_rates(ends: Sequence[float], given: Sequence[float]) -> _Curve:
    rates = list(map(float, given))
    if len(rates) != len(ends):
        raise InvalidValue("rates", len(rates), f"one rate for each of the {len(ends)} phases")
    bad = [rate for rate in rates if not 0.0 <= rate < math.inf]
    if bad:
        raise InvalidValue("rate", bad[0], "a finite number of at least 0")
    starts_s, begin, at_s = [], 0.0, 0.0
    for end, rate in zip(ends, rates, strict=True):
        starts_s.append(at_s)
        at_s += (end - begin) / rate if rate > 0.0 else 0.0
        begin = end
    stuck = [len(rates)] * len(rates)
    if 0.0 in rates:
        for phase in reversed(range(len(rates))):
            after = stuck[phase + 1] if phase + 1 < len(rates) else len(rates)
            stuck[phase] = phase if rates[phase] == 0.0 else after
    return _Curve(rates, starts_s, stuck)
