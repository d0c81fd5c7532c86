"""The result of a budget with phases and restarts, by a search for the value of time: the twin of `plan_book`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.phases import Phases, Plans, best_plans

__all__ = ["PhaseSolution", "best_for_budget"]

ROUNDING = 1e-12  # relative; two values that differ by less are the same sum in another order
FAR = 1024.0  # factor by which to look beyond a value of time when nothing is known on the other side


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseSolution:
    """Each arriving job follows the richer plan of its class with probability `share`, else the poorer.

    Classes of which nothing arrives have plans too, but not always those for this value of time: ask `best_plans`.
    """

    budget: float
    value_of_time: float  # infinite when more money buys nothing
    poorer: Plans
    richer: Plans
    share: float
    spend: float
    jobs: float  # mean number in the system, weighted
    least: float  # the smallest budget that can be met
    most: float  # the budget beyond which nothing improves
    tried: int  # how many values of time were tried

    @property
    def binding(self) -> bool:
        """Whether more money would help."""
        return self.value_of_time < math.inf


@dataclass(frozen=True, slots=True)
class _End:
    """One end of the search: a plan for all, and the value of time for which it was made."""

    value: float
    plans: Plans
    spend: float
    jobs: float


def best_for_budget(phases: Phases, rate_I: npt.ArrayLike, budget: float) -> PhaseSolution:
    """The plans, and their mixture, with which `rate_I` jobs per unit of time spend the budget and are fewest.

    The search narrows a pair of plans around the budget. The next value of time to try is the one at which the two are
    equally good: if no plan is better there, the pair is the answer, exactly; else the better plan replaces one of the
    two. Every other value halves the distance instead, which bounds the number of steps.

    Precondition: one finite rate per class, 0 or more. Cost: `best_plans` a dozen or two times.
    """
    rate_I = np.asarray(rate_I, dtype=np.float64)
    if rate_I.shape != (len(phases),) or not ((rate_I >= 0) & np.isfinite(rate_I)).all():
        raise InvalidValue("rate_I", rate_I, f"finite, 0 or more, one for each of {len(phases)} classes")

    def end(value: float) -> _End:
        plans = best_plans(phases, value)
        return _End(value, plans, float(rate_I @ plans.cost_I), float((rate_I * phases.weight_I) @ plans.time_I))

    poor, rich = end(0.0), end(math.inf)
    least, most, tried = poor.spend, rich.spend, 2
    if math.isnan(budget):
        raise InvalidValue("budget", budget, "a number")
    if budget < least * (1 - ROUNDING):
        raise Infeasible(
            "the cheapest plan spends more than this",
            binding="the budget",
            needed=least,
            available=budget,
            hint=f"raise it to {least:.6g} or more, or admit less work",
        )
    money = max(budget, least)  # less than the least by a rounding error is the least
    value, share = math.inf, 1.0
    if money >= most:
        poor = rich
    else:
        while poor.jobs > rich.jobs:
            value = (rich.spend - poor.spend) / (poor.jobs - rich.jobs)
            between = end(value)
            tried += 1
            if value * between.jobs + between.spend >= (value * poor.jobs + poor.spend) * (1 - ROUNDING):
                break
            poor, rich = (between, rich) if between.spend <= money else (poor, between)
            between = end(_middle(poor.value, rich.value))
            tried += 1
            poor, rich = (between, rich) if between.spend <= money else (poor, between)
        share = min(max((money - poor.spend) / (rich.spend - poor.spend), 0.0), 1.0)
    return PhaseSolution(
        budget=budget,
        value_of_time=value,
        poorer=poor.plans,
        richer=rich.plans,
        share=share,
        spend=poor.spend + share * (rich.spend - poor.spend),
        jobs=poor.jobs + share * (rich.jobs - poor.jobs),
        least=least,
        most=most,
        tried=tried,
    )


def _middle(low: float, high: float) -> float:
    if low == 0:
        return high / FAR
    return low * FAR if math.isinf(high) else math.sqrt(low) * math.sqrt(high)
