"""The result of a budget with phases and restarts: the same price of time, with whole plans as configurations.

>>> jobs = Phases.from_tables([[[8.0, 7.0], [8.0, 1.0]]], [[1.0, 4.0]], restart=0.5)
>>> found = best_for_budget(jobs, rate_I=[1.0], budget=23.0)
>>> found.value_of_time, found.poorer.config_IE.tolist(), found.richer.config_IE.tolist(), found.share
(12.0, [[0, 1]], [[1, 1]], 0.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.curves import Curves
from sublet.solve.phases import Phases, Plans, best_plans

__all__ = ["PhaseSolution", "PlanBook", "best_for_budget", "plan_book"]

# I classes, E phases, H plans of a class that are best at some value of time, N stretches looked at together
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanBook:
    """Every plan that is best at some value of time. `curves` has them as configurations: `frontier(curves, rates)`."""

    curves: Curves
    config_IHE: tuple[tuple[Ints, ...], ...]  # plan h of class i, a configuration per phase


def plan_book(phases: Phases) -> PlanBook:
    """All plans worth having, so that every budget and every change of rates costs no further search.

    Between two plans of a class, the one to ask for is the best at the value of time at which the two are equal; if it
    is neither of them, it splits the stretch in two. All stretches of all classes are asked at once.

    Cost: O(E C) for each plan found, twice; there are at most E (C - 1) + 1 of them in a class without restarts.
    """
    ends = [best_plans(phases, 0.0), best_plans(phases, math.inf)]
    found: list[tuple[Ints, Plans]] = [(np.arange(len(phases)), plans) for plans in ends]
    class_N, left, right = found[0][0], ends[0], ends[1]
    while True:
        slower_N = left.time_I - right.time_I
        dearer_N = right.cost_I - left.cost_I
        open_N = (slower_N > ROUNDING * left.time_I) & (dearer_N > ROUNDING * right.cost_I)
        class_N, left, right = class_N[open_N], _some(left, open_N), _some(right, open_N)
        if not len(class_N):
            break
        some = phases.take(class_N)
        value_N = dearer_N[open_N] / (slower_N[open_N] * some.weight_I)
        between = best_plans(some, value_N)
        worth_N = value_N * some.weight_I
        better_N = worth_N * between.time_I + between.cost_I < (worth_N * left.time_I + left.cost_I) * (1 - ROUNDING)
        between, left, right = _some(between, better_N), _some(left, better_N), _some(right, better_N)
        class_N = class_N[better_N]
        found.append((class_N, between))
        class_N = np.concatenate((class_N, class_N))
        left, right = _both(left, between), _both(between, right)
    return _book(phases, found)


def _some(plans: Plans, which_N: Bools) -> Plans:
    return Plans(config_IE=plans.config_IE[which_N], time_I=plans.time_I[which_N], cost_I=plans.cost_I[which_N])


def _both(first: Plans, second: Plans) -> Plans:
    return Plans(
        config_IE=np.concatenate((first.config_IE, second.config_IE)),
        time_I=np.concatenate((first.time_I, second.time_I)),
        cost_I=np.concatenate((first.cost_I, second.cost_I)),
    )


def _book(phases: Phases, found: list[tuple[Ints, Plans]]) -> PlanBook:
    class_N = np.concatenate([classes for classes, _ in found])
    order_N = np.argsort(class_N, kind="stable")
    class_N = class_N[order_N]
    config_NE = np.concatenate([plans.config_IE for _, plans in found])[order_N]
    count_I = np.bincount(class_N, minlength=len(phases))
    place_N = np.arange(len(class_N)) - np.repeat(np.cumsum(count_I) - count_I, count_I)
    time_IH: Floats = np.full((len(phases), count_I.max()), np.inf)
    cost_IH = time_IH.copy()
    time_IH[class_N, place_N] = np.concatenate([plans.time_I for _, plans in found])[order_N]
    cost_IH[class_N, place_N] = np.concatenate([plans.cost_I for _, plans in found])[order_N]
    split = np.split(config_NE, np.cumsum(count_I)[:-1])
    return PlanBook(
        curves=Curves.from_tables(time_IH, cost_IH, phases.weight_I), config_IHE=tuple(tuple(rows) for rows in split)
    )
