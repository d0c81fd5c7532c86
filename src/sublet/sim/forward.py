"""A kernel that is under way, forward in virtual time: the same state and policy, and days of a record to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.actions import Action, MakePlan, SetTimer
from sublet.domain.budget import Budget
from sublet.domain.events import BudgetChanged, Event, JobFinished, NodeLost, NodeReleased, TimerFired
from sublet.domain.plan import Policy
from sublet.domain.timers import CheckPurse, Timer
from sublet.kernel.cluster import NodePhase
from sublet.kernel.kernel import Kernel
from sublet.sim.simulator import Driver
from sublet.sim.world import MarketChange, Physics, World

__all__ = ["Future", "Moment", "go_forward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """At which a future begins: which timers run then, and which nodes will be taken, and when."""

    now_s: float
    timers: Mapping[Timer, float] = field(default_factory=dict)
    doomed_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Future:
    """The result of one future. Seconds and dollars count from the moment at which it begins."""

    looks: list[tuple[float, float, float]] = field(default_factory=list)  # (seconds, dollars, share of the work done)
    finish_s: dict[str, float] = field(default_factory=dict)  # by job, of those that ended
    losses: int = 0  # nodes that the cloud took


def go_forward(  # noqa: PLR0913 - what goes on, and how to look at it
    kernel: Kernel,
    policy: Policy,
    market: Iterable[MarketChange],
    moment: Moment,
    *,
    physics: Physics,
    until_s: float,
    budget: Budget | None = None,
    seed: int = 0,
    every_s: float = 600.0,
) -> Future:
    """Let `kernel` live on from `moment` to `until_s` at the latest. It is used up: another future takes another one.

    With `budget`, the first thing that happens is that it is another one. Every `every_s` it is looked at. Equal seeds
    and markets give equal futures.
    """
    now_s = moment.now_s
    offers = kernel.supply.offering.every.values()
    world = World(offers, physics, np.random.default_rng(seed), market, begin_s=now_s)
    watch = _Watch(kernel, world, now_s, every_s)
    driver = Driver(kernel, world, policy, watch, physics.planning_s, checked=False, watch=None)
    first: list[Event] = [] if budget is None else [BudgetChanged(now_s, budget)]
    for node in kernel.cluster.nodes.values():
        if node.phase is NodePhase.RELEASING:
            first.append(NodeReleased(now_s, node.id))
            continue
        ready_s = now_s + physics.provision_s if node.phase is NodePhase.REQUESTED else None
        lost_s = max(now_s, moment.doomed_s[node.id]) if node.id in moment.doomed_s else None
        world.hold(node.id, node.offer.id, ready_s=ready_s, lost_s=lost_s)
    for job_id, state in kernel.jobs.items():
        first += world.go_on(now_s, state, kernel.tenancy.placement.get(job_id, ()))
    for timer, at_s in moment.timers.items():
        world.obey(now_s, SetTimer(timer, at_s))
    if kernel.planning:
        world.obey(now_s, MakePlan())
    driver.hear([*first, TimerFired(now_s, CheckPurse())])
    driver.run(0, until_s, None)
    watch.look(kernel.now_s, kernel)
    return watch.future


class _Watch:
    """Looks at a future now and then."""

    def __init__(self, kernel: Kernel, world: World, now_s: float, every_s: float) -> None:
        self.future = Future()
        self._world, self._began_s, self._every_s = world, now_s, every_s
        self._spent_usd = kernel.ledger.spent(now_s).usd
        self._work = {job_id: state.job.work for job_id, state in kernel.jobs.items()}

    def note(self, event: Event, actions: list[Action], kernel: Kernel) -> None:  # noqa: ARG002 - as Notes has it
        """One event."""
        future, at_s = self.future, event.at_s - self._began_s
        if isinstance(event, JobFinished):
            future.finish_s[event.job_id] = at_s
        future.losses += isinstance(event, NodeLost)
        if not future.looks or at_s >= future.looks[-1][0] + self._every_s or isinstance(event, JobFinished):
            self.look(event.at_s, kernel)

    def look(self, now_s: float, kernel: Kernel) -> None:
        """How far it is, and what it has cost."""
        usd, done = kernel.ledger.spent(now_s).usd - self._spent_usd, self._world.done_at(now_s)
        shares = [
            1.0 if job_id in self.future.finish_s else min(1.0, done.get(job_id, 0.0) / work)
            for job_id, work in self._work.items()
        ]
        self.future.looks.append((now_s - self._began_s, usd, sum(shares) / len(shares) if shares else 1.0))
