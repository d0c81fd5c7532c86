"""Look ahead on what capacity may become: which grid to go to now, at the next tick, and after a loss foretold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sublet.domain.plan import OfferState, Pool, Snapshot
from sublet.domain.quantity import at_least, whole
from sublet.market.forecast import Forecaster
from sublet.market.losses import Falls, LossesAhead
from sublet.planning.objective import ANY, NextStates, Objective, Own
from sublet.solve.arrays import Floats
from sublet.solve.lookahead import Ahead, best_path

INSTANT_S = 1e-6  # times of announcements are differences
RECENT_TICKS = 120.0  # half-life of what is known about the pace of changes
PACE_TICKS, PACE_WEIGHT = 4.0, 3.0  # between two changes of the p3 trace; worth so many changes seen
FARTHEST = 240  # ticks
CALM_TICKS = 10
PAYBACKS = 3.0  # where little is earned a start has to last long, and a shorter look ahead would not start at all


class AnnouncedLoss(NamedTuple):
    """So many instances will be lost in `in_s`."""

    in_s: float
    lost: int


class Seen(Protocol):
    """The start of a look ahead."""

    @property
    def history(self) -> Floats:
        """Instances at every tick so far, and now."""
        ...

    @property
    def was(self) -> int:
        """Instances just before."""
        ...

    @property
    def now(self) -> int:
        """Instances now."""
        ...

    @property
    def warned(self) -> Sequence[AnnouncedLoss]:
        """Losses that were announced and have not happened yet, the nearest first."""
        ...

    @property
    def ready(self) -> tuple[int, float]:
        """The configuration that has been prepared, for so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of looking ahead: `steps` ticks, or where that is farther, `gaps` changes of capacity.

    The latter also outlasts the time in which a start is paid back.
    """

    forecaster: Forecaster
    steps: int
    gaps: float = 0.0
    losses: LossesAhead | None = None  # that may come beside what is forecast; None: none is reckoned with

    def __post_init__(self) -> None:
        whole("steps", self.steps, 1)
        at_least("gaps", self.gaps, 0.0)

    def look(
        self, objective: Objective, seen: Seen, state: int, left_s: float, *, own: Own | None = None
    ) -> NextStates:
        """The configuration to go to; `then` is the one after the first loss that was announced.

        A job that holds only some of the instances says what became of its own.
        """
        history, step_s = seen.history, objective.job.step_s
        steps = self.steps
        if self.gaps:
            far = max(self.gaps * _gap(history), PAYBACKS * objective.payback_s / step_s)
            steps = max(steps, min(FARTHEST, round(far)))
        ahead = self.forecaster.forecast(history, steps - 1) if steps > 1 else np.zeros(0)
        future = [seen.now, *np.maximum(np.rint(ahead), 0.0).astype(int).tolist()]
        only, ready_s = seen.ready
        falls = self.losses.falls(history, steps, step_s) if self.losses else [()] * steps
        next_steps = [Step(seen.now, step_s, own=own, falls=falls[0])]
        next_steps += [Step(now, step_s, falls=each) for now, each in zip(future[1:], falls[1:], strict=True)]
        if seen.now < seen.was and only != ANY:
            next_steps[0] = Step(seen.now, step_s, ready_s, only, falls=falls[0])
        next_steps, then = _cut_at_losses(next_steps, seen.warned, step_s) if seen.warned else (next_steps, 0)
        return look_ahead(objective, seen.was, next_steps, state, left_s, then=then)


def _cut_at_losses(next_steps: list[Step], warned: Sequence[AnnouncedLoss], step_s: float) -> tuple[list[Step], int]:
    """The same time ahead, cut where a loss was announced and with so many fewer from there; which step is the first.

    What will be needed can be prepared until then, but one thing at a time.
    """
    cut: list[Step] = []
    at_s, place, then = 0.0, 0, 0
    end_s, lost, last_s = len(next_steps) * step_s, 0, 0.0
    coming = [each for each in warned if each.in_s < end_s]
    while at_s < end_s - INSTANT_S:
        ready_s = 0.0
        if place < len(coming) and coming[place].in_s <= at_s + INSTANT_S:
            lost += coming[place].lost
            ready_s, last_s = coming[place].in_s - last_s, coming[place].in_s
            then = then or len(cut)
            place += 1
        next_s = min(at_s + step_s, coming[place].in_s if place < len(coming) else np.inf, end_s)
        step = next_steps[min(int(at_s // step_s), len(next_steps) - 1)]
        first = step.only if not cut else ANY
        cut.append(Step(max(0, step.now - lost), next_s - at_s, step.ready_s if not cut else ready_s, first))
        at_s = next_s
    return cut, then


def _gap(history: Floats) -> float:
    """Ticks between two changes, the more recent the weightier."""
    changed = np.diff(history[-int(8 * RECENT_TICKS) :]) != 0
    weight = 0.5 ** (np.arange(len(changed))[::-1] / RECENT_TICKS)
    return float((weight.sum() + PACE_WEIGHT * PACE_TICKS) / ((weight * changed).sum() + PACE_WEIGHT))


def worth_a_look(history: Floats) -> bool:
    """Whether capacity has just changed, or has been calm for 10, 20, 40 ... ticks, which tells something too."""
    differs = np.flatnonzero(history != history[-1])
    still = len(history) - (int(differs[-1]) + 1 if len(differs) else 0)
    ticks, rest = divmod(still - 1, CALM_TICKS)
    return still == 1 or (rest == 0 and ticks & (ticks - 1) == 0)


def next_calm_s(changed_s: float, now_s: float, step_s: float) -> float:
    """When capacity will have been the same for 10, 20, 40 ... ticks."""
    calm = CALM_TICKS
    while changed_s + calm * step_s <= now_s:
        calm *= 2
    return changed_s + calm * step_s


class Step(NamedTuple):
    """A step ahead. After a loss that was announced, configurations have been ready for so long: any, or `only` one."""

    now: int
    lasts_s: float
    ready_s: float = 0.0
    only: int = ANY
    own: Own | None = None  # None = all that there were, were held
    falls: Falls = ()  # that may end it


def look_ahead(
    objective: Objective, was: int, next_steps: Sequence[Step], state: int, left_s: float, *, then: int = 0
) -> NextStates:
    """The best way to go."""
    key = (was, *next_steps, state, left_s, then)
    if key not in objective.looked:
        path = _path(objective, was, next_steps, state, left_s)
        objective.looked[key] = NextStates(path[0], path[min(1, len(path) - 1)], path[then])
    return objective.looked[key]


def _path(objective: Objective, was: int, next_steps: Sequence[Step], state: int, left_s: float) -> tuple[int, ...]:
    return best_path(steps_ahead(objective, was, next_steps), state, left_s=left_s).config_H


def steps_ahead(objective: Objective, was: int, next_steps: Sequence[Step]) -> Ahead:
    """These steps, for the solver."""
    points = [was, *(step.now for step in next_steps)]
    lasts_s = [step.lasts_s for step in next_steps]
    pay_HS = objective.pay_HS(points[1:], lasts_s)
    if any(step.falls for step in next_steps):
        risk_HS = np.array([objective.risk_S(step.now, step.falls) for step in next_steps])
        pay_HS = risk_HS if pay_HS is None else pay_HS + risk_HS
    return Ahead(
        rate_C=objective.rate_S,
        pause_s=[
            objective.pauses_s(was, step.now, ready_s=step.ready_s, only=step.only)
            if step.own is None
            else objective.pauses_of_own_s(step.own, step.now)
            for was, step in zip(points[:-1], next_steps, strict=True)
        ],
        step_s=lasts_s,
        again_C=objective.again_S,
        pay_HC=pay_HS,
    )


# ---------------------------------------------------------------------- capacity as it was seen


def capacity_changes(pool: Pool, snapshot: Snapshot, gpus: int, most: int) -> list[tuple[float, int]]:
    """GPUs that the pool had for this job, from when on, `most` at most: what others have of it now is not counted.

    `gpus` is what it has for it now. An offer of which no end is seen has had as many as now.
    """
    states = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
    times = sorted({at_s for state in states for at_s, _ in state.capacity if at_s <= snapshot.now_s})
    if not times:
        return [(0.0, gpus)]
    total = [sum(_nodes_at(state, at_s) for state in states) * pool.gpus_per_node for at_s in times]
    falling = sum(nodes for state in states for _, nodes in state.falls) * pool.gpus_per_node
    others = max(0, total[-1] - falling - gpus) if gpus < most else 0
    found: list[tuple[float, int]] = []
    for at_s, many in zip(times, total, strict=True):
        left = min(most, max(0, many - others))
        if not found or found[-1][1] != left:
            found.append((at_s, left))
    return found


def _nodes_at(state: OfferState, at_s: float) -> int:
    nodes = next((nodes for since_s, nodes in reversed(state.capacity) if since_s <= at_s), 0)
    return state.held if nodes is None else nodes


def capacity_by_tick(changes: list[tuple[float, int]], gpus: int, now_s: float, step_s: float) -> Floats:
    """The capacity at every tick so far, and now."""
    at_s = np.array([at_s for at_s, _ in changes])
    many = np.array([many for _, many in changes], dtype=np.float64)
    first, last = math.ceil(at_s[0] / step_s), math.floor(now_s / step_s)
    when_s = np.arange(first, last + 1) * step_s
    if not len(when_s) or when_s[-1] != now_s:
        when_s = np.append(when_s, now_s)
    history = many[np.searchsorted(at_s, when_s, side="right") - 1]
    history[-1] = gpus  # less than that where a fall was announced
    return history
