"""The aim of Pollux (OSDI 2021): the power mean of speedups over a fair share, moves discounted by their pause.

    fitness = (mean over jobs of (factor_j x goodput_j / goodput_j on a fair share) ** power) ** (1 / power)

With power < 0 the fitness is greatest where the sum of the powers is least. That sum has one term per job, so the best
numbers of GPUs are a split that `best_split` finds exactly; Pollux itself searches with a genetic algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Shape
from sublet.planning.widths import rate_at, useful_widths
from sublet.solve.knapsack.split import best_split

Discount = Callable[[JobState, float], float]  # (job, now) -> what its speed is worth elsewhere, for the pause between

WAITING_SPEEDUP = 0.004  # of a job without GPUs, so that it has a power: Pollux adds 0.001 to a quarter of the speedup
LEAST_FACTOR = 0.01  # a move is worth something, however often the job has moved: else it could as well wait
KEEP = 1e-6  # relative: between splits as good as one another, the one that is there
INTACT = frozenset({Phase.STARTING, Phase.RESIZING, Phase.RUNNING})


def fittest_widths(
    group: Sequence[JobState],
    pool: Pool,
    gpus: float,
    now_s: float,
    *,
    power: float,
    growth: float,
    discount: Discount,
) -> list[int]:
    """GPUs for each job of a pool, 0 for those that wait: the split with the greatest fitness.

    Precondition: power < 0. GPUs are those within a node and whole nodes. Cost: that of `best_split`, with a column
    for each.
    """
    most = int(min(gpus, sum(state.job.max_gpus for state in group)))
    fair = math.ceil(most / max(len(group), 1))
    rows = [_costs(state, pool, most, fair, now_s, power, growth, discount) for state in group]
    sizes = sorted({width for row in rows for width in row})
    if sizes in ([], [0]):
        return [0] * len(group)
    gain_JC = [[-row.get(size, math.inf) for size in sizes] for row in rows]  # J jobs, C widths
    widths: list[int] = best_split(gain_JC, most, sizes=sizes).width_J.tolist()
    return widths


def by_age(state: JobState, now_s: float) -> float:
    """As published: (age - moves so far x pause) / (age + pause), as if the past told how long the job will run.

    It grows with time alone, so that a plan may change although nothing has happened.
    """
    age_s, pause_s = now_s - state.job.submit_s, state.job.restart_s
    if not pause_s:
        return 1.0
    moves = max(0, len(state.stints) + (state.gpus > 0) - 1)
    return max(LEAST_FACTOR, (age_s - moves * pause_s) / (age_s + pause_s))


def by_time_left(state: JobState, now_s: float) -> float:
    """The share of its time left, as it runs now, that a job keeps if it pauses once more; a plan once made is kept."""
    job = state.job
    if not job.restart_s or not state.gpus:
        return 1.0
    left_s = job.speed.seconds(state.gpu, state.spread, state.done_at(now_s), job.work)
    return max(LEAST_FACTOR, left_s / (left_s + job.restart_s)) if math.isfinite(left_s) else 1.0


def widest_guess(state: JobState, now_s: float, growth: float) -> float:
    """The most GPUs to think of: `growth` times what the job has trained on, or what it has or needs anyway."""
    if growth == math.inf:
        return math.inf
    trains = state.phase is Phase.RUNNING and now_s > state.as_of_s
    tried = max((state.gpus if trains else 0, *(gpus for _, _, gpus in state.stints)))
    shape = intact_shape(state)
    return max(growth * tried, shape.gpus if shape is not None else 0, state.job.min_gpus)


def intact_shape(state: JobState) -> Shape | None:
    """The shape of the job, if it can go on with it; None if it waits or has lost a node."""
    return state.shape if state.phase in INTACT else None


def _costs(
    state: JobState, pool: Pool, most: int, fair: int, now_s: float, power: float, growth: float, discount: Discount
) -> dict[int, float]:
    """Speedup to the power, by GPUs."""
    job, shape = state.job, intact_shape(state)
    held = shape.gpus if shape is not None else 0
    limit = min(most, widest_guess(state, now_s, growth))
    rates = {gpus: rate_at(state, pool, gpus, now_s) for gpus in useful_widths(job, pool.gpus_per_node, limit)}
    base = rate_at(state, pool, min(max(fair, job.min_gpus), job.max_gpus), now_s) or max(rates.values(), default=0.0)
    factor = discount(state, now_s) if held in rates else 1.0
    costs = {0: WAITING_SPEEDUP**power}
    for gpus, rate in rates.items():
        if rate > 0.0:
            speedup = rate / base * (1.0 + KEEP if gpus == held else factor)
            costs[gpus] = (speedup + WAITING_SPEEDUP) ** power
    return costs
