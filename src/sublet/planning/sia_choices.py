"""What Sia (SOSP 2023) chooses among: for each job, so many GPUs of one kind, and what each choice is worth to it.

    minimise  sum over jobs of (factor_j x goodput_j(c) / goodput_j(worst choice)) ** p,   or `alone` for one that waits

over one choice per job, within the GPUs of every pool. With p < 0 a term lies between 0 and 1 and falls as the job
speeds up. The factor discounts choices other than the current one by the pause that they cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Shape, packed
from sublet.planning.pollux_fitness import restart_factor, widest
from sublet.solve.mip import NOT_RUNNING, Coupled, best_moves

__all__ = ["best_choices", "sia_widths"]

KEEP = 1e-6  # relative: of equally good choices, those that move least
GONE = frozenset({Phase.WAITING, Phase.BROKEN, Phase.STOPPING})


def best_choices(
    group: Sequence[JobState],
    pools: Mapping[str, Pool],
    most: Mapping[str, float],
    now_s: float,
    *,
    power: float,
    waiting_cost: float,
) -> list[Shape | None]:
    """A shape for each job, None for those that wait: the least sum of costs, exactly.

    Precondition: power < 0. Cost: that of `best_moves`, with a column per pool and width.
    """
    wanted = sum(state.job.max_gpus for state in group)
    capacity = {name: int(min(gpus, wanted)) for name, gpus in most.items()}
    names = list(pools)
    rows = [_costs(state, pools, capacity, now_s, power) for state in group]
    shapes = sorted({shape for row in rows for shape in row}, key=lambda shape: (names.index(shape.pool), shape.gpus))
    if not shapes:
        return [None] * len(group)
    gain_JC = [[-waiting_cost, *(-row.get(shape, math.inf) for shape in shapes)] for row in rows]
    column = {shape: at for at, shape in enumerate(shapes, start=1)}
    asked = Coupled.from_tables(
        gain_JC,
        [capacity[name] for name in names],
        sizes=[0, *(shape.gpus for shape in shapes)],
        pools=[0, *(names.index(shape.pool) for shape in shapes)],
    )
    start = [column.get(_current(state), 0) if _current(state) in row else 0 for state, row in zip(group, rows)]
    found = best_moves(asked, start=start)
    return [shapes[at - 1] if at else None for at in found.column_J.tolist()]


def sia_widths(job: Job, gpus_per_node: int, most: float) -> list[int]:
    """Powers of two within a node, whole nodes beyond it: `[1, 2, 4, 8, 16, 24]` on nodes of eight."""
    top = int(min(job.max_gpus, most))
    inside = [2**k for k in range(gpus_per_node.bit_length()) if 2**k <= gpus_per_node]
    widths = [*inside, *range(gpus_per_node, top + 1, gpus_per_node), job.min_gpus]
    return sorted({gpus for gpus in widths if job.min_gpus <= gpus <= top})


def _costs(
    state: JobState, pools: Mapping[str, Pool], capacity: Mapping[str, int], now_s: float, power: float
) -> dict[Shape, float]:
    """(speedup x factor) to the power, by shape."""
    job, done, current = state.job, state.done_at(now_s), _current(state)
    if current is not None and now_s < state.as_of_s and capacity[current.pool] >= current.gpus:
        return {current: -1e3}  # it is in its pause: moving again would waste it
    limit = max(2 * widest(state), job.min_gpus)
    rates = {}
    for name, pool in pools.items():
        for gpus in sia_widths(job, pool.gpus_per_node, min(limit, capacity[name])):
            rate = job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), done)
            if rate > 0.0:
                rates[Shape(name, gpus)] = rate
    worst = min(rates.values(), default=1.0)
    factor = restart_factor(state, now_s) if current is not None else 1.0
    costs = {}
    for shape, rate in rates.items():
        if shape == current:
            costs[shape] = (rate / worst) ** power * (1.0 - KEEP)
        else:
            costs[shape] = min((rate / worst * factor) ** power, 3000.0)
    return costs


def _current(state: JobState) -> Shape | None:
    return None if state.phase in GONE else state.shape
