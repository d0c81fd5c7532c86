"""Liveput on events: decide when capacity has changed or is about to, with exact expectations, and let skill choose.

How far to look ahead, and with which forecast, depends on the market and on the job: after a look of 20 ticks a change
pays that would not after 5. The usual look reaches over a few changes of capacity, at their pace of late. Others run
beside it on paper, over the history and then along with the ride; whoever would have earned clearly more of late is
followed. Chance differences do not change the leader.

Below the least number of instances the job is suspended. With money in the stakes, instances that add less than their
rent are given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.quantity import at_least, positive, whole
from sublet.errors import InvalidValue
from sublet.market.forecast import Forecaster, Persistence
from sublet.planning.liveput import Choice, Pilot, Seen, look
from sublet.planning.liveput_job import SUSPENDED, Floats, Money, SpotJob, Stakes

__all__ = ["Contender", "Liveput"]


RECENT_TICKS = 120.0  # half-life of what is known about the pace of changes
PACE_TICKS, PACE_WEIGHT = 4.0, 3.0  # between two changes of the p3 trace; worth so many changes seen
FARTHEST = 240  # ticks
CALM_TICKS = 10


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of looking ahead: `steps` ticks, or over `gaps` changes of capacity where that is farther."""

    forecaster: Forecaster
    steps: int
    gaps: float = 0.0

    def __post_init__(self) -> None:
        whole("steps", self.steps, 1)
        at_least("gaps", self.gaps, 0.0)

    def look(self, stakes: Stakes, history: Floats, state: int, left_s: float) -> int:
        """The state to go to; the last of the history is now."""
        was = int(history[-2]) if len(history) > 1 else 0
        steps = self.steps if self.gaps == 0.0 else max(self.steps, min(FARTHEST, round(self.gaps * _gap(history))))
        ahead = self.forecaster.forecast(history, steps - 1) if steps > 1 else np.zeros(0)
        future = [int(history[-1]), *np.maximum(np.rint(ahead), 0.0).astype(int).tolist()]
        return look(stakes, was, future, state, left_s)


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


CONTENDERS = (
    Contender(Persistence(), 10, gaps=2.5),
    Contender(Persistence(), 5),
    Contender(Persistence(), 20),
)  # all believe that what is there stays: drift and the published forecaster err more (see the study)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveput:
    """Sublet's own. The first contender leads unless another is ahead of it by `lead` of what it earned of late."""

    contenders: tuple[Contender, ...] = CONTENDERS
    half_life_ticks: float = 120.0
    lead: float = 0.01
    money: Money | None = None  # None: samples are all that counts
    blind: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.contenders:
            raise InvalidValue("contenders", self.contenders, "at least one")
        positive("half_life_ticks", self.half_life_ticks)
        at_least("lead", self.lead, 0.0)

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:
        """Contenders ride the history first, on paper."""
        stakes = Stakes(job, self.money)
        skill = _Skill(self, stakes)
        past = np.asarray(before, dtype=np.float64)
        for tick in range(1, len(past) + 1):
            skill.see(past[:tick])
        return _Ours(stakes, skill)


class _Ours:
    """Follows the leader: when capacity has changed, and again when it has not for long."""

    def __init__(self, stakes: Stakes, skill: _Skill) -> None:
        self._stakes, self._skill = stakes, skill
        self._state = SUSPENDED

    def decide(self, seen: Seen) -> Choice:
        if seen.first or worth_a_look(seen.history):
            leader = self._skill.leader
            self._state = leader.look(self._stakes, seen.history, self._state, seen.left_s)
        self._skill.see(seen.history)
        config, hold = self._stakes.split(self._state)
        return Choice(config=config, hold=hold)


class _Skill:
    """What each contender would have earned, the more recent the weightier."""

    def __init__(self, policy: Liveput, stakes: Stakes) -> None:
        self._policy, self._stakes = policy, stakes
        self._riders = [(SUSPENDED, 0.0) for _ in policy.contenders]
        self._earned = np.zeros(len(policy.contenders))
        self._fade = 0.5 ** (1.0 / policy.half_life_ticks)
        self._first = True
        self._leader = 0

    @property
    def leader(self) -> Contender:
        return self._policy.contenders[self._leader]

    def see(self, history: Floats) -> None:
        """Let every contender ride the last tick of the history."""
        if len(self._policy.contenders) == 1:
            return
        was, now = (int(history[-2]) if len(history) > 1 else 0), int(history[-1])
        self._earned *= self._fade
        for index, contender in enumerate(self._policy.contenders):
            state, left_s = self._riders[index]
            looks = self._first or worth_a_look(history)
            to = contender.look(self._stakes, history, state, left_s) if looks else state
            worth, left_s = self._stakes.advance(state, left_s, to, was, now)
            self._earned[index] += worth
            self._riders[index] = (to, left_s)
        self._first = False
        best = int(self._earned.argmax())
        ahead = self._earned[best] - self._earned[0]
        self._leader = best if ahead > self._policy.lead * abs(self._earned[0]) else 0
