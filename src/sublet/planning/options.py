"""What it costs to finish one job from where it is: time at the value of time, and rent, for every shape it could take.

    cost(c) = (v + rent of c) x (pause to get to c + rest of this phase on c)  +  the best that can follow from c

A job on a shape pays no pause to stay there, so that the cheapest shape is another one only if that gains more than a
restart costs. Where speeds are believed, not known, it must also gain more than what is believed may be wrong by.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.plan import JobState, Phase
from sublet.planning.menu import Menu
from sublet.planning.terms import Rents
from sublet.solve.arrays import Floats, Ints

__all__ = ["SETTLED", "Options", "options_of"]

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
    def in_last_phase(self) -> bool:
        """Whether no other phase follows, so that hours do not depend on what time is worth."""
        return self.hours_C is self.now_C

    @property
    def any(self) -> bool:
        """Whether it can run at all."""
        return bool(np.isfinite(self.cost_C).any())

    def rent_to_the_end(self, rent_P: Rents) -> Floats:
        """USD; infinite where it cannot run."""
        if len(self.menu.rate_EC) == 1:
            rent_C: Floats = self.menu.pay(0.0, rent_P) * self.hours_C
        else:  # later phases may be elsewhere
            rent_C = self.cost_C - self.value_of_time * self.hours_C
        return np.where(np.isfinite(self.cost_C), rent_C, np.inf)


def options_of(
    menu: Menu,
    state: JobState,
    now_s: float,
    value_of_time: float,
    rent_P: Rents,
    *,
    boots: bool = False,
) -> Options:
    """For a job as it stands now. `value_of_time` is that of this job: its weight is in it. Cost: O(C) and `_after`.

    With `boots`, to go to another pool costs the rent of a node there while it boots, too.
    """
    done, work = state.done_at(now_s), state.job.work
    phase = menu.phase(done)
    held = None if state.shape is None else menu.column.get(state.shape)
    if state.shape is None or state.phase is Phase.WAITING:
        pause_C, held = menu.start_C, None
    else:
        pause_C = menu.restart_C
        if held is not None and state.phase in SETTLED:
            pause_C = pause_C.copy()
            pause_C[held] = 0.0
        else:
            held = None
    left, rate_C, pay_C = (
        menu.work_left(phase, done, work),
        menu.rate_EC[phase],
        menu.pay(value_of_time, rent_P),
    )
    with np.errstate(divide="ignore", invalid="ignore"):  # no work left, and no speed: it cannot run there
        now_C = pause_C + left / rate_C
    now_C[np.isnan(now_C)] = np.inf
    hours_C, cost_C = now_C, pay_C * now_C
    if boots and held is not None and rate_C[held] > 0:
        meanwhile_C = np.minimum(np.where(menu.site_C == menu.site_C[held], 0.0, menu.boot_C), left / rate_C[held])
        with np.errstate(divide="ignore", invalid="ignore"):
            then_C = pause_C + (left - rate_C[held] * meanwhile_C) / rate_C
        then_C[np.isnan(then_C)] = np.inf
        hours_C = now_C = meanwhile_C + then_C
        cost_C = (pay_C[held] + pay_C - value_of_time) * meanwhile_C + pay_C * then_C
    if phase < len(menu.rate_EC) - 1 and menu.shapes:
        after = _after(menu, work, float(f"{value_of_time:.3g}"), rent_P)  # near enough, and seldom new
        cost_C, hours_C = cost_C + after.cost_EC[phase + 1], now_C + after.hours_EC[phase + 1]
    if held is not None and menu.doubt_C is not None and state.job.deadline_s is None:
        cost_C = cost_C + _doubt(menu.doubt_C, menu.belief_C, cost_C, held)
    return Options(menu=menu, value_of_time=value_of_time, cost_C=cost_C, now_C=now_C, hours_C=hours_C)


def _doubt(doubt_C: Floats, belief_C: Ints, cost_C: Floats, held: int) -> Floats:
    """The standard error of what each shape costs more or less than the one that is held, as the speeds are believed.

    If two shapes share a speed, an error is in both: it scales what lies between them. Otherwise errors are their own.
    """
    error_C = doubt_C * cost_C
    with np.errstate(invalid="ignore"):
        shared_C = doubt_C * np.abs(cost_C - cost_C[held])
    found_C = np.where(belief_C == belief_C[held], shared_C, np.hypot(error_C, error_C[held]))
    found_C[held] = 0.0
    return np.where(np.isfinite(cost_C), found_C, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _After:
    """From the beginning of each phase to the end of the job, by the shape held then."""

    cost_EC: Floats
    hours_EC: Floats


@lru_cache(maxsize=512)
def _after(menu: Menu, work: float, value_of_time: float, rent_P: Rents) -> _After:
    """The least cost, and the time it takes. Cost: O(E C), with a loop over phases."""
    phase_EC = menu.hours(work)
    pay_C = menu.pay(value_of_time, rent_P)
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
