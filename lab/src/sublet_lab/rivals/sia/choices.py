"""The choices of Sia (SOSP 2023): for each job so many GPUs of one kind, and the cost of each choice.

    minimise  sum over jobs of (factor_j x goodput_j(c) / goodput_j(the worst choice)) ** power,  or `waiting_cost`

over one choice c per job, within the GPUs of every pool. With power < 0 a cost falls as the job gets faster; it is 1
for the worst choice. The factor discounts all choices but the current one by the pause that they bring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Pool
from sublet.domain.shape import Shape
from sublet.solve.mip.moves import Coupled, allows, best_moves
from sublet_lab.rivals.fitness import KEEP, Discount, intact_shape, widest_guess

Rate = Callable[[JobState, Pool, int, float], float]  # (job, pool, GPUs, now) -> work per second as far as is known
PAUSED_COST = -10.0  # of the choice that a job is just moving to: it is left alone


def best_choices(  # noqa: PLR0913 - jobs, pools, and how to weigh them
    group: Sequence[JobState],
    pools: Mapping[str, Pool],
    most: Mapping[str, float],
    now_s: float,
    *,
    rate: Rate,
    discount: Discount,
    power: float,
    growth: float,
    waiting_cost: float,
) -> list[Shape | None]:
    """A shape for each job, None for those that wait: the choices with the least sum of costs.

    Precondition: power < 0. Cost: that of `best_moves`, with a column per pool and worker count.
    """
    wanted = sum(state.job.max_gpus for state in group)
    capacity = {name: int(min(most[name], wanted)) for name in pools}
    rows = [_costs(state, pools, capacity, now_s, rate, discount, power, growth) for state in group]
    order = {name: at for at, name in enumerate(pools)}
    shapes = sorted({shape for row in rows for shape in row}, key=lambda shape: (order[shape.pool], shape.gpus))
    if not shapes:
        return [None] * len(group)
    asked = Coupled.from_tables(  # the first column is to wait
        [[-waiting_cost, *(-row.get(shape, math.inf) for shape in shapes)] for row in rows],
        list(capacity.values()),
        sizes=[0, *(shape.gpus for shape in shapes)],
        pools=[0, *(order[shape.pool] for shape in shapes)],
    )
    column_J = asked.gain_JC.argmax(axis=1)
    if not allows(asked, column_J):  # not everyone can have what is best for it
        column = {shape: at for at, shape in enumerate(shapes, start=1)}
        held = [_held(state) for state in group]
        start = [
            column[shape] if shape is not None and shape in row else 0 for shape, row in zip(held, rows, strict=True)
        ]
        column_J = best_moves(asked, start=start).column_J
    return [shapes[at - 1] if at else None for at in column_J.tolist()]


def sia_widths(job: Job, gpus_per_node: int, most: float) -> list[int]:
    """Powers of two within a node, whole nodes beyond it, and the least it can run on: `[1, 2, 4, 8, 16, 24]`."""
    top = int(min(job.max_gpus, most))
    inside = [2**at for at in range(gpus_per_node.bit_length())]
    widths = {*inside, *range(gpus_per_node, top + 1, gpus_per_node), job.min_gpus}
    return sorted(gpus for gpus in widths if job.min_gpus <= gpus <= top)


def _held(state: JobState) -> Shape | None:
    """Its shape in the form of a choice: batch and core are not chosen, and come with it."""
    shape = intact_shape(state)
    return None if shape is None else Shape(shape.pool, shape.gpus)


def _costs(
    state: JobState,
    pools: Mapping[str, Pool],
    capacity: Mapping[str, int],
    now_s: float,
    rate: Rate,
    discount: Discount,
    power: float,
    growth: float,
) -> dict[Shape, float]:
    """By shape, those that the job can run in."""
    job, held = state.job, _held(state)
    if held is not None and held.gpus <= capacity[held.pool] and now_s < state.as_of_s:
        return {held: PAUSED_COST}
    limit = widest_guess(state, now_s, growth)
    rates = {
        Shape(name, gpus): rate(state, pool, gpus, now_s)
        for name, pool in pools.items()
        if job.may_run_in(name)
        for gpus in sia_widths(job, pool.gpus_per_node, min(limit, capacity[name]))
    }
    rates = {shape: speed for shape, speed in rates.items() if speed > 0.0}
    worst = min(rates.values(), default=1.0)
    factor = discount(state, now_s) if held in rates else 1.0
    return {
        shape: (speed / worst * (1.0 + KEEP if shape == held else factor)) ** power for shape, speed in rates.items()
    }
