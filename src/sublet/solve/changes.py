"""A few classes that changed since a frontier was computed, kept beside it as steps taken away and steps added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sublet.solve.arrays import Floats
from sublet.solve.curves import Curve

__all__ = ["NOTHING", "Change", "Changes", "changes_of"]

# D steps that differ: the old ones of the changed classes with their amounts negative, and the new ones


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """One class as it is now, and the steps by which it differs from what it was."""

    curve: Curve
    replaced: bool  # whether the curve is another one than before
    rate: float
    price_D: Floats
    spend_D: Floats
    jobs_D: Floats
    spend: float  # difference of the cheapest configuration
    jobs: float

    @classmethod
    def between(cls, old: Curve, old_rate: float, curve: Curve | None, new_rate: float) -> Change:
        """The change from the old to the new; no curve means the old one."""
        new = curve or old
        was, weight = old_rate * old.weight, new_rate * new.weight
        return cls(
            curve=new,
            replaced=curve is not None,
            rate=new_rate,
            price_D=np.concatenate((old.price[1:], new.price[1:])),
            spend_D=np.concatenate(((-old_rate) * _steps(old.cost), new_rate * _steps(new.cost))),
            jobs_D=np.concatenate((-was * _steps(old.time), weight * _steps(new.time))),
            spend=(new_rate * new.cost[0] - old_rate * old.cost[0]).item(),
            jobs=(weight * new.time[0] - was * old.time[0]).item(),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """All changed classes together. Item j of the sums is the difference after the first j of the sorted steps."""

    of: Mapping[int, Change] = field(default_factory=dict)
    price_D: Floats = field(default_factory=lambda: np.zeros(0))
    spend_D1: Floats = field(default_factory=lambda: np.zeros(1))
    jobs_D1: Floats = field(default_factory=lambda: np.zeros(1))

    def __len__(self) -> int:
        return len(self.price_D)


NOTHING = Changes()


def changes_of(of: Mapping[int, Change]) -> Changes:
    """Sort the steps of all changes by price and add them up. Cost: O(D log D)."""
    price_D = np.concatenate([change.price_D for change in of.values()])
    order_D = np.argsort(price_D, kind="stable")
    spend = [change.spend_D for change in of.values()]
    jobs = [change.jobs_D for change in of.values()]
    return Changes(
        of=of,
        price_D=price_D[order_D],
        spend_D1=_sums(sum(change.spend for change in of.values()), np.concatenate(spend)[order_D]),
        jobs_D1=_sums(sum(change.jobs for change in of.values()), np.concatenate(jobs)[order_D]),
    )


def _sums(first: float, then_D: Floats) -> Floats:
    sums_D1 = np.empty(len(then_D) + 1)
    sums_D1[0] = first
    sums_D1[1:] = then_D
    return np.cumsum(sums_D1, out=sums_D1)


def _steps(at_vertices: Floats) -> Floats:
    return at_vertices[1:] - at_vertices[:-1]
