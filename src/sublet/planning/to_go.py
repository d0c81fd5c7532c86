"""What it costs to finish one job from where it is: time at the value of time, and rent, for every shape it could take.

    cost(c) = (v + rent of c) x (pause to get to c + rest of this phase on c)  +  the best that can follow from c

A job on a shape pays no pause to stay there, so that the cheapest shape is another one only if that gains more than a
restart costs. This is all the hysteresis there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.plan import JobState, Phase
from sublet.planning.menu import Floats, Menu, Rents, Sharers

__all__ = ["Options", "options_of"]

SETTLED = frozenset({Phase.RUNNING, Phase.STARTING, Phase.RESIZING})  # on its shape, or on its way there


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """The shapes that a job could take now; infinite where it cannot run."""

    menu: Menu
    value_of_time: float  # USD per hour of this job
    cost_C: Floats  # USD to the end, with its time as USD
    now_C: Floats  # hours until the end of this phase
    hours_C: Floats  # hours to the end

    @property
    def best(self) -> int:
        """The column that costs least."""
        return int(self.cost_C.argmin())

    @property
    def any(self) -> bool:
        """Whether it can run at all."""
        return bool(np.isfinite(self.cost_C).any())


def options_of(
    menu: Menu, state: JobState, now_s: float, value_of_time: float, rent_P: Rents, sharers_P: Sharers
) -> Options:
    """For a job as it stands now. `value_of_time` is that of this job: its weight is in it. Cost: O(C) and `_after`."""
    done, work = state.done_at(now_s), state.job.work
    phase = menu.phase(done)
    if state.shape is None or state.phase is Phase.WAITING:
        pause_C = menu.start_C
    else:
        pause_C = menu.restart_C
        held = menu.column.get(state.shape)
        if held is not None and state.phase in SETTLED:
            pause_C = pause_C.copy()
            pause_C[held] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):  # no work left, and no speed: it cannot run there
        now_C = pause_C + menu.work_left(phase, done, work) / menu.rate_EC[phase]
    now_C[np.isnan(now_C)] = np.inf
    hours_C, cost_C = now_C, menu.pay(value_of_time, rent_P, sharers_P) * now_C
    if phase < len(menu.rate_EC) - 1:
        after = _after(menu, work, float(f"{value_of_time:.3g}"), rent_P, sharers_P)  # near enough, and seldom new
        cost_C, hours_C = cost_C + after.cost_EC[phase + 1], now_C + after.hours_EC[phase + 1]
    return Options(menu=menu, value_of_time=value_of_time, cost_C=cost_C, now_C=now_C, hours_C=hours_C)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _After:
    """From the beginning of each phase to the end of the job, by the shape held then."""

    cost_EC: Floats
    hours_EC: Floats


@lru_cache(maxsize=512)
def _after(menu: Menu, work: float, value_of_time: float, rent_P: Rents, sharers_P: Sharers) -> _After:
    """The least cost, and the time it takes. Cost: O(E C), with a loop over phases."""
    phase_EC = menu.hours(work)
    pay_C = menu.pay(value_of_time, rent_P, sharers_P)
    cost_EC, hours_EC = np.zeros((len(phase_EC) + 1, len(pay_C))), np.zeros((len(phase_EC) + 1, len(pay_C)))
    for phase in range(len(phase_EC) - 1, 0, -1):
        stay_C = pay_C * phase_EC[phase] + cost_EC[phase + 1]
        move_C = stay_C + pay_C * menu.restart_C
        best = int(move_C.argmin())
        moves_C = move_C[best] < stay_C
        then_C = phase_EC[phase] + hours_EC[phase + 1]
        cost_EC[phase] = np.where(moves_C, move_C[best], stay_C)
        hours_EC[phase] = np.where(moves_C, then_C[best] + menu.restart_C[best], then_C)
    return _After(cost_EC=cost_EC, hours_EC=hours_EC)
