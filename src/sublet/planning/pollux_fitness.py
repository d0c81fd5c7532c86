"""What Pollux (OSDI 2021) maximises: the power mean of speedups over a fair share, moves discounted by their pause.

    fitness = (mean over jobs of (factor_j x goodput_j / goodput_j on a fair share) ** power) ** (1 / power)

With power < 0 the fitness is greatest where the sum of the powers is least. That sum has one term per job, so the best
widths are a split that `best_split` finds exactly; Pollux itself searches with a genetic algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Shape
from sublet.planning.widths import rate_at, useful_widths
from sublet.solve.knapsack import best_split

__all__ = ["KEEP", "fittest_widths", "intact_shape", "most_tried", "restart_factor"]

WAITING_SPEEDUP = 0.004  # of a job without GPUs, so that it has a power: Pollux adds 0.001 to a quarter of the speedup
LEAST_FACTOR = 0.01  # a move is worth something, however often the job has moved: else it could as well wait
KEEP = 1e-6  # relative: between splits as good as one another, the one that is there
INTACT = frozenset({Phase.STARTING, Phase.RESIZING, Phase.RUNNING})


def fittest_widths(group: Sequence[JobState], pool: Pool, gpus: float, now_s: float, *, power: float) -> list[int]:
    """GPUs for each job of a pool, 0 for those that wait: the split with the greatest fitness.

    Precondition: power < 0. Widths are those within a node and whole nodes. Cost: that of `best_split`, with a column
    per width.
    """
    most = int(min(gpus, sum(state.job.max_gpus for state in group)))
    fair = math.ceil(most / max(len(group), 1))
    rows = [_costs(state, pool, most, fair, now_s, power) for state in group]
    sizes = sorted({width for row in rows for width in row})
    if sizes in ([], [0]):
        return [0] * len(group)
    gain_JC = [[-row.get(size, math.inf) for size in sizes] for row in rows]  # J jobs, C widths
    widths: list[int] = best_split(gain_JC, most, sizes=sizes).width_J.tolist()
    return widths


def restart_factor(state: JobState, now_s: float) -> float:
    """(age - moves so far x pause) / (age + pause): what a job that moves once more has of its time for training."""
    age_s, pause_s = now_s - state.job.submit_s, state.job.restart_s
    if not pause_s:
        return 1.0
    moves = max(0, len(state.stints) + (state.gpus > 0) - 1)
    return max(LEAST_FACTOR, (age_s - moves * pause_s) / (age_s + pause_s))


def most_tried(state: JobState, now_s: float) -> int:
    """The most GPUs that a job has trained on; 0 before its first pause is over."""
    trains_now = state.phase is Phase.RUNNING and now_s > state.as_of_s
    return max((state.gpus if trains_now else 0, *(gpus for _, _, gpus in state.stints)))


def intact_shape(state: JobState) -> Shape | None:
    """What the job has, if it can go on with it; None if it waits or has lost a node."""
    return state.shape if state.phase in INTACT else None


def _costs(state: JobState, pool: Pool, most: int, fair: int, now_s: float, power: float) -> dict[int, float]:
    """Speedup to the power, by width; nobody grows to more than twice what it has tried: beyond that is a guess."""
    job, shape = state.job, intact_shape(state)
    held = shape.gpus if shape is not None else 0
    limit = min(most, max(2 * most_tried(state, now_s), held, job.min_gpus))
    rates = {gpus: rate_at(state, pool, gpus, now_s) for gpus in useful_widths(job, pool.gpus_per_node, limit)}
    base = rate_at(state, pool, min(max(fair, job.min_gpus), job.max_gpus), now_s) or max(rates.values(), default=0.0)
    costs = {0: WAITING_SPEEDUP**power}
    factor = restart_factor(state, now_s) if held in rates else 1.0
    for gpus, rate in rates.items():
        if rate > 0.0:
            speedup = rate / base * (1.0 + KEEP if gpus == held else factor)
            costs[gpus] = (speedup + WAITING_SPEEDUP) ** power
    return costs
