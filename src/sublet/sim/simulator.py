"""Drive the kernel through virtual time until every job is done or nothing can change any more."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from sublet.domain.actions import Action, RentNode
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.demand import Demand
from sublet.domain.events import BudgetChanged, Event, JobSubmitted, PlanMade, PurseSet, TimerFired
from sublet.domain.job import Job
from sublet.domain.offer import Offer
from sublet.domain.plan import Policy
from sublet.domain.timers import CheckPurse, PeriodOver
from sublet.errors import Infeasible, InvalidValue, NeverAtRest
from sublet.kernel.cluster import NodePhase
from sublet.kernel.invariants import check
from sublet.kernel.kernel import Kernel
from sublet.sim.agenda import Tie
from sublet.sim.metrics import Metrics, metrics_from_run
from sublet.sim.record import Recorder
from sublet.sim.world import FRICTIONLESS, MarketChange, Physics, PlanDue, World

PROGRESS_EVERY = 512  # happenings between two words to the progress bar
MOST_IN_VAIN = 10_000  # plans and timers in a row, with nothing else to come: what is afoot needs a handful
MOST_AT_ONCE = 1_000_000  # events at one instant: a sweep of 10,000 nodes takes some 100,000
NO_MONEY_S = 63 * 86_400.0  # two months: the longest period began anew in between
REMEMBERED = 6  # events that are told with the error, where it goes round in circles
Watcher = Callable[[Event, Sequence[Action]], None]
Progress = Callable[[int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The cloud: offers, limits, frictions, and the moves of its market."""

    offers: Sequence[Offer]
    limits: Mapping[str, Limit] = field(default_factory=dict)  # by offer id
    quotas: Mapping[str, int] = field(default_factory=dict)  # GPUs, by pool
    budget: Budget = UNLIMITED
    purses: Sequence[PurseSet] = ()  # of teams, users and jobs: what each may spend, from when on
    physics: Physics = FRICTIONLESS
    market: Callable[[], Iterable[MarketChange]] = tuple  # a fresh stream of changes for every run
    notes: tuple[str, ...] = ()
    prices_end_s: float | None = None  # of the record of prices that it replays; None = it replays none

    def __post_init__(self) -> None:
        if not self.offers:
            raise InvalidValue("offers", self.offers, "at least one offer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcome: what the recorder wrote down, the figures, and what never ended."""

    metrics: Metrics
    record: Recorder
    unfinished: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def simulate(  # noqa: PLR0913 - what to run, and how to watch it
    jobs: Sequence[Job],
    policy: Policy,
    cloud: Cloud,
    *,
    seed: int = 0,
    expected: Demand | None = None,
    checked: bool = False,
    keep_segments: bool = True,
    watch: Watcher | None = None,
    notes: Notes | None = None,
    progress: Progress | None = None,
    until_s: float = math.inf,
) -> Run:
    """Run `jobs` under `policy` on `cloud`. Equal arguments give equal runs, event by event.

    The run ends at `until_s` at the latest: jobs without an end are judged by what they have done by then.

    `expected` is a forecast that every policy may use. `checked` verifies the laws of the kernel after every event (for
    tests). `watch` hears every event with the orders that followed it, and `notes` the kernel too; `progress` is told
    the number of ended jobs and the time, now and then.
    """
    _refuse_the_impossible(jobs, cloud, until_s)
    kernel = Kernel(cloud.offers, limits=cloud.limits, quotas=cloud.quotas, budget=cloud.budget, expected=expected)
    rng = np.random.default_rng(seed)
    world = World(cloud.offers, cloud.physics, rng, cloud.market())
    recorder = Recorder(keep_segments=keep_segments)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    opening_s = min(job.submit_s for job in jobs)
    world.agenda.put(opening_s, Tie.MARKET, BudgetChanged(opening_s, cloud.budget))
    for purse in cloud.purses:
        world.agenda.put(max(opening_s, purse.at_s), Tie.MARKET, replace(purse, at_s=max(opening_s, purse.at_s)))
    for job in jobs:
        world.submit(job)
    notebook = recorder if notes is None else _Both(recorder, notes)
    driver = Driver(kernel, world, policy, notebook, cloud.physics.planning_s, checked=checked, watch=watch)
    driver.run(len(jobs), until_s, progress)
    recorder.close(kernel, world.done_at(kernel.now_s))
    seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    return Run(
        metrics=metrics_from_run(recorder, kernel, seconds, cpu_s),
        record=recorder,
        unfinished=tuple(kernel.jobs),
        notes=cloud.notes,
    )


class Notes(Protocol):
    """Listeners that write down events: `Recorder`, and the input of a forecast."""

    def note(self, event: Event, actions: list[Action], kernel: Kernel) -> None:
        """One event and the orders that followed."""


@dataclass(frozen=True, slots=True)
class _Both:
    first: Notes
    second: Notes

    def note(self, event: Event, actions: list[Action], kernel: Kernel) -> None:
        self.first.note(event, actions, kernel)
        self.second.note(event, actions, kernel)


class Driver:
    """Passes events to the kernel and orders to the world, in order."""

    def __init__(
        self,
        kernel: Kernel,
        world: World,
        policy: Policy,
        recorder: Notes,
        planning_s: float,
        *,
        checked: bool,
        watch: Watcher | None,
    ) -> None:
        self.kernel, self.world, self.policy, self.recorder = kernel, world, policy, recorder
        self.planning_s, self.checked, self.watch = planning_s, checked, watch
        self._in_vain = 0  # happenings in a row while nothing but plans and timers was to come
        self._now_s, self._at_once = -1.0, 0  # events at this instant
        self._stirred_s = 0.0  # when something happened last, but for the calendar
        self._last: deque[Event] = deque(maxlen=REMEMBERED)

    def run(self, jobs: int, until_s: float, progress: Progress | None) -> None:
        """Until everything is done, or nothing can change any more, or the time has come."""
        agenda, kernel = self.world.agenda, self.kernel
        arriving, steps = jobs, 0
        endless = until_s == math.inf
        # A timer alone brings nothing new: when only timers are left, what has not ended never will.
        while len(agenda) > agenda.timers * endless and (arriving or kernel.jobs or not self._at_rest()):
            if agenda.next_s > until_s:
                break
            self._in_vain = self._in_vain + 1 if endless and len(agenda) == agenda.timers + agenda.plans else 0
            if self._in_vain > MOST_IN_VAIN:
                raise self._never("a plan or a timer, and nothing else is to come", self._in_vain)
            at_s, what = agenda.pop()
            if endless and at_s - self._stirred_s > NO_MONEY_S and what == TimerFired(at_s, PeriodOver()):
                break  # every budget was full since, and no job could start
            if isinstance(what, PlanDue):
                self._plan(at_s)
            else:
                arriving -= isinstance(what, JobSubmitted)
                self.hear(self.world.occur(at_s, what))
            steps += 1
            if progress is not None and steps % PROGRESS_EVERY == 0:
                progress(jobs - arriving - len(kernel.jobs), at_s)
        if kernel.jobs and not endless:
            self.hear([TimerFired(until_s, CheckPurse())])  # all are paid, and have trained, until then
        if progress is not None:
            progress(jobs - arriving - len(kernel.jobs), kernel.now_s)

    def _at_rest(self) -> bool:
        """No node is on its way in or out."""
        return not self.kernel.planning and all(n.phase is NodePhase.READY for n in self.kernel.cluster.nodes.values())

    def _plan(self, at_s: float) -> None:
        snapshot = self.kernel.snapshot()
        plan = self.policy.decide(snapshot)
        made = PlanMade(at_s + self.planning_s, plan, snapshot.seen)
        if self.planning_s:
            self.world.agenda.put(made.at_s, Tie.PLANNER, made)
        else:
            self.hear([made])

    def hear(self, events: Sequence[Event]) -> None:
        """Tell the kernel, carry out its orders, tell it what came of them at once, and so on."""
        pending = deque(events)
        kernel, obey = self.kernel, self.world.obey
        while pending:
            event = pending.popleft()
            self._count(event)
            actions = kernel.handle(event)
            if not isinstance(event, TimerFired | PlanMade) or any(isinstance(each, RentNode) for each in actions):
                self._stirred_s = event.at_s
            self.recorder.note(event, actions, kernel)
            if self.watch is not None:
                self.watch(event, actions)
            if self.checked:
                check(kernel)
            for action in actions:
                pending.extend(obey(event.at_s, action))

    def _count(self, event: Event) -> None:
        self._last.append(event)
        self._at_once = self._at_once + 1 if event.at_s == self._now_s else 1
        self._now_s = event.at_s
        if self._at_once > MOST_AT_ONCE:
            raise self._never("an event, and time stands still", self._at_once)

    def _never(self, what: str, count: int) -> NeverAtRest:
        return NeverAtRest(what, count=count, now_s=self.kernel.now_s, last=self._last)


def _refuse_the_impossible(jobs: Sequence[Job], cloud: Cloud, until_s: float) -> None:
    """A job that no pool could ever hold would wait for ever: say so before anything runs."""
    if not jobs:
        raise InvalidValue("jobs", jobs, "at least one job")
    (name, times), *_ = Counter(job.id for job in jobs).most_common(1)
    if times > 1:
        raise InvalidValue("jobs", name, "of different names")
    if until_s == math.inf and any(math.isinf(job.work) for job in jobs):
        raise InvalidValue("until_s", until_s, "a time at which to end, where a job has no end of its own")
    if not until_s >= (first_s := min(job.submit_s for job in jobs)):
        raise InvalidValue("until_s", until_s, f"not before the first job comes, at {first_s:g} s")
    most = max(gpus for gpus in _largest_pools(cloud).values())
    misfits = [job for job in jobs if job.min_gpus > most]
    if misfits:
        worst = max(misfits, key=lambda job: job.min_gpus)
        raise Infeasible(
            f"{len(misfits)} of {len(jobs)} jobs cannot run here, the largest is {worst.id}",
            binding="GPUs in the largest pool",
            needed=worst.min_gpus,
            available=most,
            hint="raise --gpus or --budget, or lower min_gpus in the workload",
        )


def _largest_pools(cloud: Cloud) -> dict[str, float]:
    pools: dict[str, float] = {}
    burn = cloud.budget.burn
    for offer in cloud.offers:
        limit = cloud.limits.get(offer.id, Limit()).max_nodes
        nodes = float("inf") if limit is None else limit
        if burn is not None and offer.price.micro_usd_per_h > 0:
            nodes = min(nodes, burn.micro_usd_per_h // offer.price.micro_usd_per_h)
        pools[offer.pool] = pools.get(offer.pool, 0) + nodes * offer.gpus_per_node
    return {pool: min(gpus, cloud.quotas.get(pool, gpus)) for pool, gpus in pools.items()}
