"""What Pollux (OSDI 2021) maximises: the power mean of speedups over a fair share, changes discounted by their pause.

    fitness = (mean over jobs of (factor_j x goodput_j / goodput_j(fair share)) ** p) ** (1 / p)

The mean is a sum of one term per job, so with p < 0 the best widths are the split with the least sum of powers, which
`best_split` finds exactly; Pollux itself searches with a genetic algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import packed
from sublet.planning.widths import useful_widths
from sublet.solve.knapsack import best_split

__all__ = ["WAITING_SPEEDUP", "fittest_widths", "restart_factor", "restarts", "widest"]

WAITING_SPEEDUP = 4e-3  # of a job without GPUs: Pollux adds 0.001, on a scale on which a fair share is a quarter
LEAST_FACTOR = 0.01  # a move is never worth less than this, so that running is always better than waiting
KEEP = 1e-9  # relative: of equally good splits, the one that moves least
CHANGING = frozenset({Phase.STARTING, Phase.RESIZING, Phase.RUNNING})


def fittest_widths(group: Sequence[JobState], pool: Pool, gpus: float, now_s: float, *, power: float) -> list[int]:
    """GPUs for each job of a pool, 0 for those that wait: the split with the greatest fitness.

    Precondition: power < 0. Cost: that of `best_split`, with a column per useful width.
    """
    most = int(min(gpus, sum(state.job.max_gpus for state in group)))
    fair = math.ceil(most / len(group)) if group else 0
    cost = [_costs(state, pool, most, fair, now_s, power) for state in group]
    sizes = sorted({0, *(width for row in cost for width in row)})
    if len(sizes) == 1:
        return [0] * len(group)
    gain_JC = [[-row.get(size, math.inf) for size in sizes] for row in cost]
    return [int(width) for width in best_split(gain_JC, most, sizes=sizes).width_J]


def restart_factor(state: JobState, now_s: float) -> float:
    """(age - restarts x pause) / (age + pause): what is left of a job's time when it moves once more."""
    age_s, pause_s = now_s - state.job.submit_s, state.job.restart_s
    if not pause_s:
        return 1.0
    return max(age_s - restarts(state) * pause_s, LEAST_FACTOR * (age_s + pause_s)) / (age_s + pause_s)


def restarts(state: JobState) -> int:
    """How often it has moved since its first start."""
    return max(0, len(state.stints) + (state.gpus > 0) - 1)


def widest(state: JobState) -> int:
    """The most GPUs that it has run on."""
    return max((state.gpus, *(gpus for _, _, gpus in state.stints)))


def _costs(state: JobState, pool: Pool, most: int, fair: int, now_s: float, power: float) -> dict[int, float]:
    """Speedup to the power, by width; 0 GPUs included."""
    job, done = state.job, state.done_at(now_s)
    limit = min(most, max(2 * widest(state), job.min_gpus))
    rates = {
        gpus: job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), done)
        for gpus in useful_widths(job, pool.gpus_per_node, limit)
    }
    base = job.speed.rate(pool.gpu, packed(min(max(fair, job.min_gpus), job.max_gpus), pool.gpus_per_node), done)
    base = base or max(rates.values(), default=0.0)
    costs = {0: WAITING_SPEEDUP**power}
    if not base:
        return costs
    now = state.shape.gpus if state.shape is not None and state.phase in CHANGING else 0
    factor = restart_factor(state, now_s) if now else 1.0
    for gpus, rate in rates.items():
        speedup = rate / base * (1.0 if gpus == now else factor)
        costs[gpus] = (speedup + WAITING_SPEEDUP) ** power * ((1.0 - KEEP) if gpus == now else 1.0)
    return costs
