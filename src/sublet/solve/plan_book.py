"""Every plan of a class with phases and restarts that is best at some value of time, as a configuration of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.curves import Curves
from sublet.solve.phases import Phases, Plans, best_plans

# I classes, E phases, H plans of a class that are best at some value of time, N stretches looked at together
ROUNDING = 1e-12  # relative; two values that differ by less are the same sum in another order


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
