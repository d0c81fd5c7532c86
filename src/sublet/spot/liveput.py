"""Liveput on events: decide when capacity has changed or is about to, with exact expectations, and let skill choose.

How far to look ahead, and with which forecast, depends on the market and on the job: after a look of 20 ticks a change
pays that would not after 5. The usual look reaches over a few changes of capacity, at their pace of late. Others run
beside it on paper, over the history and then along with the run; whoever would have earned clearly more of late is
followed. Chance differences do not change the leader.

Below the least number of instances the job is suspended. With money in the objective, instances that add less than
their rent are given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.quantity import at_least, positive
from sublet.errors import InvalidValue
from sublet.market.forecast.score import Persistence
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.lookahead import Contender, worth_a_look
from sublet.planning.objective import ANY, Objective, SpotPrices
from sublet.solve.arrays import Floats
from sublet.spot.policies import Observation, SpotAgent, SpotDecision

__all__ = ["Liveput"]


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
    money: SpotPrices | None = None  # None: samples are all that counts
    blind: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.contenders:
            raise InvalidValue("contenders", self.contenders, "at least one")
        positive("half_life_ticks", self.half_life_ticks)
        at_least("lead", self.lead, 0.0)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:
        """Contenders run over the history first, on paper."""
        objective = Objective(job, self.money)
        skill = _Skill(self, objective)
        past = np.asarray(before, dtype=np.float64)
        for tick in range(1, len(past) + 1):
            skill.see(past[:tick])
        return _LiveputAgent(objective, skill)


class _LiveputAgent:
    """Follows the leader: on a loss announced, when capacity has changed, and again when it has not for long."""

    def __init__(self, objective: Objective, skill: _Skill) -> None:
        self._objective, self._skill = objective, skill
        self._state, self._prepare = SUSPENDED, ANY
        self._warned = 0  # announcements at the last look
        self._waits = False  # for the next tick, to go on with a plan

    def decide(self, seen: Observation) -> SpotDecision:
        told = len(seen.warned) > self._warned
        changed = seen.now != seen.was
        if seen.first or changed or told or (seen.on_tick and (self._waits or worth_a_look(seen.history))):
            plan = self._skill.leader.look(self._objective, seen, self._state, seen.left_s)
            self._state, self._waits = plan.now, plan.soon != plan.now
            self._prepare = self._objective.split(plan.then)[0] if seen.warned else ANY
        self._warned = len(seen.warned)
        if seen.on_tick:
            self._skill.see(seen.history)
        config, hold = self._objective.split(self._state)
        return SpotDecision(config=config, hold=hold, prepare=self._prepare)


class _Skill:
    """What each contender would have earned, the more recent the weightier."""

    def __init__(self, policy: Liveput, objective: Objective) -> None:
        self._policy, self._objective = policy, objective
        self._states = [(SUSPENDED, 0.0, False) for _ in policy.contenders]
        self._kept = np.zeros(len(policy.contenders))  # after rent
        self._earned = 0.0  # by the first: what is kept may be next to nothing, and everyone clearly ahead of it
        self._fade = 0.5 ** (1.0 / policy.half_life_ticks)
        self._first = True
        self._leader = 0

    @property
    def leader(self) -> Contender:
        return self._policy.contenders[self._leader]

    def see(self, history: Floats) -> None:
        """Let every contender run over the last tick of the history."""
        if len(self._policy.contenders) == 1:
            return
        was, now = (int(history[-2]) if len(history) > 1 else 0), int(history[-1])
        self._kept *= self._fade
        self._earned *= self._fade
        for index, contender in enumerate(self._policy.contenders):
            to, left_s, waits = self._states[index]
            state = to
            if self._first or waits or worth_a_look(history):
                seen = Observation(history=history, was=was, held=SUSPENDED, left_s=left_s, first=False)
                plan = contender.look(self._objective, seen, state, left_s)
                to, waits = plan.now, plan.soon != plan.now
            earned, paid, left_s = self._objective.advance(state, left_s, to, was, now)
            self._kept[index] += earned - paid
            if not index:
                self._earned += earned
            self._states[index] = (to, left_s, waits)
        self._first = False
        best = int(self._kept.argmax())
        ahead = float(self._kept[best] - self._kept[0])
        self._leader = best if ahead > self._policy.lead * self._earned else 0
