"""Shapes that are worth their GPUs on a cluster where nothing is saved by leaving one idle.

Who is alone on a cluster could have all of it, and would end a little sooner for many times the GPU-hours; the next one
that comes would make it pause to give most of them back. So a wider shape counts only if it does enough more work: from
the narrower one that counts, work must grow by a power of the GPUs. Who has a deadline may have all that helps.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sublet.planning.menu import Menu
from sublet.planning.standing import Standing
from sublet.planning.value_of_time import ValueOfTime
from sublet.solve.arrays import Bools

__all__ = ["frugal", "frugal_shapes", "hurries"]

LEAST_POWER = 0.25  # twice the GPUs do at least 19 % more

# LEAST_POWER was chosen on jobs that no study reports (docs/background/sharing-a-cluster.md).
# J jobs, U kinds of jobs: a menu and a phase, C shapes (padded)


def hurries(standing: Standing, value: ValueOfTime) -> Bools:
    """(J,): who has a deadline, or whose owner asked for the quickest; all, where no money is to be saved."""
    if value.worth is None:
        return np.ones(len(standing), dtype=np.bool_)
    return np.asarray(np.isfinite(standing.deadline_s_J) | standing.hurries_J)


def frugal(standing: Standing, value: ValueOfTime) -> Bools:
    """(J, C): what each may choose; all that there is, if it is in a hurry."""
    worth_UC = _side_by_side(standing.kinds)
    return np.asarray(worth_UC[standing.kind_J] | hurries(standing, value)[:, None])


@lru_cache(maxsize=4)  # from one decision to the next they are mostly the same
def _side_by_side(kinds: tuple[tuple[Menu, int], ...]) -> Bools:
    worth_UC = np.zeros((len(kinds), max(len(menu.shapes) for menu, _ in kinds)), dtype=np.bool_)
    for row, (menu, phase) in enumerate(kinds):
        worth_UC[row, : len(menu.shapes)] = frugal_shapes(menu, phase)
    return worth_UC


@lru_cache(maxsize=4096)
def frugal_shapes(menu: Menu, phase: int) -> Bools:
    """(C,): of each pool the narrowest shape that trains, and each that does enough more than the last that counts.

    All where speeds are believed and not known: what is thought to be no faster may be tried.
    """
    rate_C, gpus_C = menu.rate_EC[phase], menu.gpus_C
    if menu.doubt_C is not None:
        return np.ones(len(rate_C), dtype=np.bool_)
    worth_C = np.zeros(len(rate_C), dtype=np.bool_)
    widest: dict[int, tuple[float, float]] = {}  # of those that count so far, by pool: GPUs and rate
    for at in np.lexsort((-rate_C, gpus_C)).tolist():
        pool, gpus, rate = int(menu.row_KC[0, at]), float(gpus_C[at]), float(rate_C[at])
        narrower, reached = widest.get(pool, (gpus, 0.0))
        if rate > 0.0 and (gpus == narrower or rate >= reached * (gpus / narrower) ** LEAST_POWER):
            worth_C[at] = True
            widest[pool] = (gpus, max(rate, reached))  # of as many GPUs, spread otherwise, the fastest comes first
    return worth_C
