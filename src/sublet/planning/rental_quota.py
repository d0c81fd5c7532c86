"""The best shares when the mean number of some GPUs is limited too: a small linear program.

Its multipliers are prices: of money, whose inverse is the value of time, and of every scarce kind, in the time that one
more GPU of it would save. Without limits the sort of `sublet.solve.price` finds the same, and faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible

__all__ = ["Limited", "Shared"]

Floats = npt.NDArray[np.float64]

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
            raise self._refusal(found)
        money, *scarce = (-found.ineqlin.marginals).tolist()
        value = 1 / money if money > 1e-12 else math.inf  # noqa: PLR2004 - a multiplier of rounding size is none
        price_K = np.array(scarce) * value if math.isfinite(value) else np.full(len(self.most_K), np.nan)
        return Shared(share_IC=self._spread(found.x), value_of_time=value, price_K=price_K)

    def cheapest(self) -> Shared:
        """The cheapest within the limits; `Infeasible` if no plan keeps them."""
        found = self._solved(self._money, math.inf)
        if not found.success:
            raise self._refusal(found)
        return Shared(share_IC=self._spread(found.x), value_of_time=0.0, price_K=-found.ineqlin.marginals[1:])

    @property
    def _runs_IC(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.weighted_IC)

    @property
    def _jobs(self) -> Floats:
        return self._flat(self.weighted_IC)

    @property
    def _money(self) -> Floats:
        return self._flat(self.cost_IC)

    def _flat(self, of_IC: Floats) -> Floats:
        return (self.rate_I[:, None] * of_IC)[self._runs_IC]

    def _spread(self, share_X: Floats) -> Floats:
        share_IC = np.zeros(self._runs_IC.shape)
        share_IC[self._runs_IC] = np.where(share_X > 1e-9, share_X, 0.0)  # noqa: PLR2004 - rounding
        shared: Floats = share_IC / share_IC.sum(axis=1, keepdims=True)
        return shared

    def _solved(self, least_X: Floats, budget: float, *, within: slice = slice(None)) -> Any:
        from scipy.optimize import linprog  # takes half a second to import, and few plans have quotas

        class_X = np.nonzero(self._runs_IC)[0]
        whole_IX = (class_X == np.arange(len(self.rate_I))[:, None]).astype(np.float64)
        held = [self._flat(held_IC) for held_IC in self.held_KIC[within]]
        limits = [budget if math.isfinite(budget) else 1e300, *self.most_K[within]]
        return linprog(
            least_X,
            A_ub=np.stack([self._money, *held]),
            b_ub=np.array(limits),
            A_eq=whole_IX,
            b_eq=np.ones(len(self.rate_I)),
        )

    def _refusal(self, found: Any) -> Exception:
        """Which limit is too low, and how high it would have to be by itself."""
        for at, (name, most) in enumerate(zip(self.names_K, self.most_K.tolist(), strict=True)):
            alone = self._solved(self._flat(self.held_KIC[at]), math.inf, within=slice(0, 0))
            if alone.fun > most * (1 + 1e-9):
                return _too_few(f"the quota of {name}, in GPUs held on average,", alone.fun, most)
        alone = self._solved(sum(map(self._flat, self.held_KIC), np.zeros(len(self._jobs))), math.inf, within=slice(0))
        if not found.success and alone.fun > self.most_K.sum():
            return _too_few("the sum of all quotas, in GPUs held on average,", alone.fun, self.most_K.sum())
        return _too_few("the quotas together, in GPUs held on average,", math.inf, self.most_K.sum())


def _too_few(binding: str, needed: float, available: float) -> Infeasible:
    return Infeasible(
        "this work needs more GPUs than the quota allows, whatever the budget",
        binding=binding,
        needed=needed,
        available=available,
        hint="raise the quota, offer another kind of GPU, or admit less work",
    )
