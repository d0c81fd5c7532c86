"""The successors of moments like this one: a Markov model of instances and losses, smoothed by a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sublet.domain.quantity import at_least, positive, whole
from sublet.market.forecast import asked_for, bounded
from sublet.solve.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The successors of moments with about as many recent instances and losses: a Markov model, smoothed by a kernel.

    Every past moment has a say, the more the nearer it was in both; no change has a say of `calm` moments exactly like
    this one. The answer is the weighted median of what changed within each number of steps: few moments move nothing.
    """

    most: int | None = None
    memory: int = 1440  # ticks
    late: int = 10  # ticks in which losses are counted
    spread: float = 0.1  # of instances, as a share of the most ever seen, 1 at least
    spread_lost: float = 2.0  # instances
    calm: float = 5.0

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("memory", self.memory, 1)
        whole("late", self.late, 1)
        positive("spread", self.spread)
        positive("spread_lost", self.spread_lost)
        at_least("calm", self.calm, 0.0)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """The median of what such moments became; what is there stays where there were none."""
        asked_for(history, steps)
        known_T = history[-self.memory - self.late :]
        moments = len(known_T) - steps  # M of them have all their steps behind them
        if moments < 1:
            return bounded(np.full(steps, history[-1], dtype=np.float64), self.most)
        fallen_T = np.cumsum(np.maximum(-np.diff(known_T, prepend=known_T[0]), 0.0))
        lost_T = fallen_T - np.concatenate([np.zeros(min(self.late, len(known_T))), fallen_T])[: len(known_T)]
        wide = max(1.0, self.spread * float(known_T.max()))
        far_M = ((known_T[:moments] - known_T[-1]) / wide) ** 2
        far_M = far_M + ((lost_T[:moments] - lost_T[-1]) / self.spread_lost) ** 2
        weight_M = np.concatenate([[self.calm], np.exp(-0.5 * far_M)])
        then_MH = sliding_window_view(known_T[1:], steps)[:moments]  # H steps ahead
        change_MH = np.vstack([np.zeros(steps), then_MH - known_T[:moments, None]])
        return bounded(known_T[-1] + _medians(change_MH, weight_M), self.most)


def _medians(value_MH: Floats, weight_M: Floats) -> Floats:
    """The weighted median of each column."""
    order_MH = np.argsort(value_MH, axis=0, kind="stable")
    heap_MH = np.cumsum(weight_M[order_MH], axis=0)
    middle_H = (heap_MH < 0.5 * heap_MH[-1]).sum(axis=0)
    columns = np.arange(value_MH.shape[1])
    return np.asarray(value_MH[order_MH[middle_H, columns], columns])
