"""Speed models with one phase: linear, Amdahl, power law, and a measured table.

Of the analytic models, the unit of work is one second on one GPU of the reference kind; `kinds` says how much of it
one GPU of each kind does per second. Put samples per second there, and the unit of work is the sample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sublet.domain.quantity import at_least, named, positive, whole
from sublet.domain.shape import Spread
from sublet.errors import InvalidValue


class ConstantRate(ABC):
    """Time and progress of any speed whose rate does not depend on progress."""

    __slots__ = ()

    ends: ClassVar[tuple[float, ...]] = ()  # one phase without end

    @abstractmethod
    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """Work per second."""

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        """Time to get from `done` to `goal`; infinite where the rate is 0."""
        if goal <= done:
            return 0.0
        rate = self.rate(gpu, spread, done)
        return (goal - done) / rate if rate > 0 else math.inf

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        """Progress reached after `seconds` from `done`."""
        rate = self.rate(gpu, spread, done)
        return done + rate * seconds if rate > 0 else done  # 0 x infinity would be NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Analytic(ConstantRate):
    """A curve over the number of GPUs, times the speed of one GPU of the kind."""

    kinds: Mapping[str, float] = field(default_factory=dict, hash=False)  # empty = every kind is 1.0

    def __post_init__(self) -> None:
        for kind, speed in self.kinds.items():
            named("kind", kind)
            positive(f"kinds[{kind}]", speed)

    def rate(self, gpu: str, spread: Spread, done: float) -> float:  # noqa: ARG002 - one phase: `done` is of no account
        """Work per second; 0 on a kind that `kinds` does not name."""
        gpus = sum(spread)
        one = self.kinds.get(gpu, 0.0) if self.kinds else 1.0
        return one * self.speedup(gpus) if gpus > 0 and one > 0 else 0.0

    @abstractmethod
    def speedup(self, gpus: int) -> float:
        """How many times as fast as one GPU of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Analytic):
    """k GPUs are k times as fast."""

    def speedup(self, gpus: int) -> float:
        """The number of GPUs itself."""
        return float(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl(_Analytic):
    """The part `parallel` of the work is shared by k GPUs, the rest is not: 1 / (1 - p + p / k)."""

    parallel: float

    def __post_init__(self) -> None:
        _Analytic.__post_init__(self)
        _fraction("parallel", self.parallel)

    def speedup(self, gpus: int) -> float:
        """Amdahl's law; never above 1 / (1 - p)."""
        return 1.0 / ((1.0 - self.parallel) + self.parallel / gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw(_Analytic):
    """k GPUs are k ** exponent times as fast."""

    exponent: float

    def __post_init__(self) -> None:
        _Analytic.__post_init__(self)
        _fraction("exponent", self.exponent)

    def speedup(self, gpus: int) -> float:
        """A power of the number of GPUs."""
        return float(gpus**self.exponent)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table(ConstantRate):
    """Measured rates at some numbers of GPUs, per kind; linear between them, and 0 outside: nothing is extrapolated.

    A rate of 0 says that this number of GPUs cannot run; numbers between it and its neighbour then cannot either.
    """

    rates: Mapping[str, Mapping[int, float]]  # kind -> GPUs -> work per second
    _curves: dict[str, tuple[list[int], list[float]]] = field(init=False, compare=False)
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.rates:
            raise InvalidValue("rates", dict(self.rates), "a table with at least one GPU kind")
        for kind, measured in self.rates.items():
            named("kind", kind)
            if not measured:
                raise InvalidValue(f"rates[{kind}]", dict(measured), "at least one measurement")
            for gpus, rate in measured.items():
                whole(f"GPUs in rates[{kind}]", gpus, 1)
                at_least(f"rates[{kind}][{gpus}]", rate, 0.0)
        curves = {kind: (sorted(by), [by[gpus] for gpus in sorted(by)]) for kind, by in self.rates.items()}
        object.__setattr__(self, "_curves", curves)
        facts = frozenset((kind, *counts, *rates) for kind, (counts, rates) in curves.items())
        object.__setattr__(self, "_hash", hash(facts))  # once: jobs are looked up by their speed all the time

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Table(kinds={sorted(self.rates)}, rates={sum(map(len, self.rates.values()))})"

    def rate(self, gpu: str, spread: Spread, done: float) -> float:  # noqa: ARG002 - one phase: `done` is of no account
        """Work per second."""
        gpus = sum(spread)
        counts, rates = self._curves.get(gpu, ([], []))
        if not counts or not counts[0] <= gpus <= counts[-1]:
            return 0.0
        at = bisect_left(counts, gpus)
        if counts[at] == gpus:
            return rates[at]
        low, high = rates[at - 1], rates[at]
        if low == 0.0 or high == 0.0:
            return 0.0
        return low + (high - low) * (gpus - counts[at - 1]) / (counts[at] - counts[at - 1])


def _fraction(field_name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidValue(field_name, value, "between 0 and 1")
