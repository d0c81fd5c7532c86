"""The price of time: which configuration each class should use so that a budget buys the fewest jobs in the system.

    minimise  sum of rate x weight x time(c)   over a configuration c per class,   with  sum of rate x cost(c) <= budget

`rate` is work arriving per unit of time, `time` and `cost` are per unit of work. By Little's law the objective is the
(weighted) mean number of jobs in the system. One number solves it: the value of time v, at which every class on its own
minimises v x weight x time + cost. A budget between two such plans is met exactly by mixing them.

>>> curves = Curves.from_tables([[1.0, 0.5], [1.0, 0.4]], [[1.0, 2.0], [1.0, 1.9]])
>>> found = frontier(curves, [1.0, 1.0]).at(3.4)
>>> found.value_of_time, found.poorer.tolist(), found.richer.tolist(), round(found.share, 9), round(found.jobs, 9)
(2.0, [0, 1], [1, 1], 0.5, 1.15)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints
from sublet.solve.curves import Curves

# I classes, S steps of all hulls in order of price; S1: S + 1 sums, of which item n is after the first n steps
ROUNDING = 1e-12  # a budget this much under the least, relatively, is the least computed in another order


def frontier(curves: Curves, rate_I: npt.ArrayLike) -> Frontier:
    """Everything that any budget can buy, when `rate_I` of work arrives per unit of time in each class.

    Precondition: one finite rate per class, 0 or more. Cost: O(S), without a sort.
    """
    rate_I = np.array(rate_I, dtype=np.float64)  # a copy: what the caller does to theirs later must not show here
    if rate_I.shape != (len(curves),):
        raise InvalidValue("rate_I", rate_I.shape, f"one rate per class, {len(curves)}")
    wrong = np.flatnonzero(~((rate_I >= 0) & np.isfinite(rate_I)))
    if len(wrong):
        raise InvalidValue(f"rate_I[{wrong[0]}]", rate_I[wrong[0]].item(), "finite, 0 or more")
    hulls = curves.hulls
    cheapest_I, fastest_I = hulls.start[:-1], hulls.start[1:] - 1
    spend_S1, jobs_S1 = np.empty(len(curves.class_S) + 1), np.empty(len(curves.class_S) + 1)
    rate_S = rate_I.take(curves.class_S, out=jobs_S1[:-1], mode="clip")  # in place: fresh pages cost more than sums
    spend_S1[0] = rate_I @ hulls.cost_V[cheapest_I]
    np.multiply(rate_S, curves.cost_S, out=spend_S1[1:])
    np.cumsum(spend_S1, out=spend_S1)
    rate_S *= curves.time_S
    jobs_S1[-1] = (rate_I * curves.weight_I) @ hulls.time_V[fastest_I]
    from_fastest = jobs_S1[::-1]  # from this end all terms are positive, so that nothing cancels
    np.cumsum(from_fastest, out=from_fastest)
    return Frontier(curves=curves, rate_I=rate_I, spend_S1=spend_S1, jobs_S1=jobs_S1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Solution:
    """The best that a budget buys: each arriving job follows the richer plan with probability `share`, else the poorer.

    Both plans are optimal at `value_of_time`; they differ only in classes for which two configurations are then equally
    good. The plans are computed when asked for.
    """

    frontier: Frontier
    budget: float
    value_of_time: float  # money per weighted unit of time; infinite when more money buys nothing
    share: float
    spend: float
    jobs: float  # mean number in the system, weighted

    def __repr__(self) -> str:
        return (
            f"Solution(budget={self.budget:g}, value_of_time={self.value_of_time:g}, share={self.share:g}, "
            f"spend={self.spend:g}, jobs={self.jobs:g})"
        )

    @property
    def binding(self) -> bool:
        """Whether more money would help."""
        return self.value_of_time < math.inf

    @property
    def poorer(self) -> Ints:
        """A configuration per class. Cost: O(V)."""
        return self.frontier.configs(self.value_of_time, richer=False)

    @property
    def richer(self) -> Ints:
        """A configuration per class. Cost: O(V)."""
        return self.frontier.configs(self.value_of_time, richer=True)

    def choice(self, index: int) -> tuple[int, int]:
        """The poorer and the richer configuration of one class. Cost: O(log C)."""
        curve = self.frontier.curves.curve(index)
        richer = int(np.searchsorted(curve.price, self.value_of_time, "right"))
        poorer = int(np.searchsorted(curve.price, self.value_of_time, "left")) if self.binding else richer
        return int(curve.config[poorer - 1]), int(curve.config[richer - 1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Frontier:
    """Spend against jobs in the system, from the cheapest plan to the fastest. Make it with `frontier`."""

    curves: Curves
    rate_I: Floats
    spend_S1: Floats
    jobs_S1: Floats

    def __repr__(self) -> str:
        return f"Frontier(classes={len(self.curves)}, least={self.least:g}, most={self.most:g})"

    @property
    def least(self) -> float:
        """The smallest budget that can be met: every class on its cheapest configuration."""
        return float(self.spend_S1[0])

    @property
    def most(self) -> float:
        """The budget beyond which nothing improves: every class on its fastest configuration."""
        return float(self.spend_S1[-1])

    def at(self, budget: float) -> Solution:
        """The best for this budget; `Infeasible` if it is under `least`. Cost: O(log S)."""
        if math.isnan(budget):
            raise InvalidValue("budget", budget, "a number")
        if budget < self.least * (1 - ROUNDING):
            raise Infeasible(
                "the cheapest plan spends more than this",
                binding="the budget",
                needed=self.least,
                available=budget,
                hint=f"raise it to {self.least:.6g} or more, or admit less work",
            )
        if budget >= self.most:
            spend, jobs = self._sums(math.inf, "right")
            return Solution(frontier=self, budget=budget, value_of_time=math.inf, share=1.0, spend=spend, jobs=jobs)
        value_of_time = self._critical(budget)
        poor_spend, poor_jobs = self._sums(value_of_time, "left")
        rich_spend, rich_jobs = self._sums(value_of_time, "right")
        more = rich_spend - poor_spend
        share = min(max((budget - poor_spend) / more, 0.0), 1.0) if more > 0 else 1.0
        return Solution(
            frontier=self,
            budget=budget,
            value_of_time=value_of_time,
            share=share,
            spend=poor_spend + share * more,
            jobs=poor_jobs + share * (rich_jobs - poor_jobs),
        )

    def points(self) -> tuple[Floats, Floats, Floats]:
        """The corners for a plot: spend, jobs, and the value of time beyond which each is the best (0 at the first).

        Cost: O(S). Between corners the frontier is straight.
        """
        price_S = self.curves.price_S
        corner_S1 = np.concatenate(([0], np.flatnonzero(np.diff(price_S, append=np.inf)) + 1))
        corner_S1 = corner_S1[np.diff(self.spend_S1[corner_S1], prepend=-np.inf) > 0]
        value = np.concatenate(([0.0], price_S))[corner_S1]
        return self.spend_S1[corner_S1], self.jobs_S1[corner_S1], value

    def configs(self, value_of_time: float, *, richer: bool) -> Ints:
        """A configuration per class at this value of time; `richer` decides where two are equally good."""
        return self.curves.configs(value_of_time, richer=richer or value_of_time == math.inf)

    def _critical(self, budget: float) -> float:
        """The lowest price at which all steps bought together exceed the budget."""
        at = int(self.spend_S1[1:].searchsorted(budget, "right"))
        return float(self.curves.price_S[at]) if at < len(self.curves.price_S) else math.inf

    def _sums(self, value_of_time: float, side: Literal["left", "right"]) -> tuple[float, float]:
        """Spend and jobs when all steps under this price are bought (left), or those at this price too (right)."""
        at = self.curves.price_S.searchsorted(value_of_time, side)
        return self.spend_S1[at].item(), self.jobs_S1[at].item()
