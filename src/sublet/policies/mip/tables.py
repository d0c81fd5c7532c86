"""The gain of each job at each worker count, as tables for a solver: the objectives of the elastic allocators.

| objective | a job's gain from n GPUs |
|---|---|
| remaining  | share of its remaining work done within the horizon, a pause at every start and change deducted |
| throughput | its speed relative to one GPU |
| total      | share of all its work done within the horizon; starves jobs that are nearly done, kept for comparison |
| time-left  | its time to the end, pause included, counted as a loss |

Waiting gains nothing; under `time-left` it loses more than all jobs could at their slowest, so that as many as possible
run. Speeds may depend on progress (goodput), have holes, and rise and fall: a count at speed 0 is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sublet.domain.plan import JobState, Pool
from sublet.domain.quantity import at_least, positive
from sublet.domain.shape import Shape, packed
from sublet.errors import InvalidValue
from sublet.planning.runnable import Runnable, speed_of_one

__all__ = ["FASTER", "Aim", "Objective", "gains"]

Objective = Literal["remaining", "throughput", "total", "time-left"]
FASTER = 1e-6  # of a gain, for the fastest width: where many gain alike, the faster one, and whoever came first


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The aim: the objective, how far it looks ahead, and what keeping the present count adds to its gain."""

    objective: Objective
    horizon_s: float
    stickiness: float

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise InvalidValue("objective", self.objective, "one of " + ", ".join(get_args(Objective)))
        positive("horizon_s", self.horizon_s)
        at_least("stickiness", self.stickiness, 0.0)


def gains(state: JobState, pool: Pool, choices: Sequence[Runnable], done: float, aim: Aim) -> list[float]:
    """The worth of each of these counts of one pool; -inf where the job would never end."""
    job, left = state.job, state.job.work - done
    one = speed_of_one(state, pool, done, choices) if aim.objective == "throughput" else 1.0
    worth = []
    for choice in choices:
        stays = _stays(state.shape, choice)
        pause_s = 0.0 if stays else job.restart_s
        if aim.objective == "throughput":
            gain = choice.rate / one
        elif aim.objective == "time-left":
            gain = -(_seconds(state, pool, choice, done) + pause_s)
        elif left <= 0.0:
            gain = 1.0 if aim.objective == "remaining" else 0.0
        elif aim.objective == "total":
            gain = min(left, _progress(state, pool, choice, done, aim.horizon_s)) / job.work
        else:
            gain = min(1.0, _progress(state, pool, choice, done, aim.horizon_s - pause_s) / left)
        worth.append(job.weight * (gain + aim.stickiness * abs(gain) if stays and gain > -math.inf else gain))
    return worth


def _progress(state: JobState, pool: Pool, choice: Runnable, done: float, seconds: float) -> float:
    """Work done within so much time; of a speed with one phase that is plain, and asked for often."""
    speed = state.job.speed
    if not speed.ends:
        return choice.rate * max(0.0, seconds)
    return speed.work(pool.gpu, packed(choice.gpus, pool.gpus_per_node), done, max(0.0, seconds)) - done


def _seconds(state: JobState, pool: Pool, choice: Runnable, done: float) -> float:
    job = state.job
    if not job.speed.ends:
        return max(0.0, job.work - done) / choice.rate
    return job.speed.seconds(pool.gpu, packed(choice.gpus, pool.gpus_per_node), done, job.work)


def _stays(shape: Shape | None, choice: Runnable) -> bool:
    return shape is not None and (shape.pool, shape.gpus) == (choice.pool, choice.gpus)
