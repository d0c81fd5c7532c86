"""The best shares when the mean number of some GPUs is limited too: a small linear program.

Its multipliers are prices: of money, whose inverse is the value of time, and of every scarce kind, in the time that one
more GPU of it would save. Without limits the sort of `sublet.solve.price` finds the same, and faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.errors import Infeasible
from sublet.solve.arrays import Bools, Floats

ROUNDING = 1e-9
NO_LIMIT = 1e25  # what the solver takes for infinite

# I classes, C shapes (padded: infinite time), K limited kinds, X pairs of a class and a shape that it can run in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """Which share of each class takes which shape, and what money and scarce GPUs are worth then."""

    share_IC: Floats
    value_of_time: float  # money per weighted unit of time; infinite when money does not run short
    price_K: Floats  # money per GPU and unit of time, beside the rent; NaN when money does not run short


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limited:
    """Rates, weighted times and costs per job, GPUs of each limited kind, and how many may be held on average."""

    rate_I: Floats
    weighted_IC: Floats
    cost_IC: Floats
    held_KIC: Floats  # GPUs x time per job
    most_K: Floats
    names_K: tuple[str, ...]

    def at(self, budget: float) -> Shared:
        """The fastest within budget and limits; the budget must not be under `least`."""
        found = self._solved(self._jobs, budget)
        if not found.success:
            raise self._refusal()
        money, *scarce = (-found.ineqlin.marginals).tolist()
        value = 1 / money if money > ROUNDING**2 else math.inf  # a multiplier of rounding size is none
        price_K = np.array(scarce) * value if math.isfinite(value) else np.full(len(self.most_K), np.nan)
        return Shared(share_IC=self._spread(found.x), value_of_time=value, price_K=price_K)

    def cheapest(self) -> Shared:
        """The cheapest within the limits; `Infeasible` if no plan keeps them."""
        found = self._solved(self._money, math.inf)
        if not found.success:
            raise self._refusal()
        return Shared(share_IC=self._spread(found.x), value_of_time=0.0, price_K=-found.ineqlin.marginals[1:])

    @property
    def _can_run(self) -> Bools:
        return np.isfinite(self.weighted_IC)

    @property
    def _jobs(self) -> Floats:
        return self._flat(self.weighted_IC)

    @property
    def _money(self) -> Floats:
        return self._flat(self.cost_IC)

    def _flat(self, of_IC: Floats) -> Floats:
        return (self.rate_I[:, None] * of_IC)[self._can_run]

    def _spread(self, share_X: Floats) -> Floats:
        share_IC = np.zeros(self._can_run.shape)
        share_IC[self._can_run] = np.where(share_X > ROUNDING, share_X, 0.0)
        shared: Floats = share_IC / share_IC.sum(axis=1, keepdims=True)
        return shared

    def _solved(self, least_X: Floats, budget: float, *, excess: bool = False) -> Any:
        """The linear program; with `excess` every limit may be passed, and the sum by which it is, is made least."""
        from scipy.optimize import linprog  # takes half a second to import, and few plans have quotas

        class_X = np.nonzero(self._can_run)[0]
        whole_IX = (class_X == np.arange(len(self.rate_I))[:, None]).astype(np.float64)
        rows = np.stack([self._money, *(self._flat(held_IC) for held_IC in self.held_KIC)])
        if excess:
            kinds = len(self.most_K)
            least_X = np.concatenate((0.0 * least_X, np.ones(kinds)))
            rows = np.hstack([rows, np.vstack([np.zeros(kinds), -np.eye(kinds)])])
            whole_IX = np.hstack([whole_IX, np.zeros((len(self.rate_I), kinds))])
        return linprog(
            least_X,
            A_ub=rows,
            b_ub=np.array([budget if math.isfinite(budget) else NO_LIMIT, *self.most_K]),
            A_eq=whole_IX,
            b_eq=np.ones(len(self.rate_I)),
        )

    def _refusal(self) -> Infeasible:
        """Which limits are too low, and how high they would have to be."""
        over_K = self._solved(self._money, math.inf, excess=True).x[-len(self.most_K) :]
        short = [at for at, over in enumerate(over_K) if over > ROUNDING]
        available = float(self.most_K[short].sum())
        return Infeasible(
            "this work needs more GPUs than the quota allows, whatever the budget",
            binding=f"the quota of {' and '.join(self.names_K[at] for at in short)}, in GPUs held on average,",
            needed=available + float(over_K[short].sum()),
            available=available,
            hint="raise the quota, offer another kind of GPU, or admit less work",
        )
