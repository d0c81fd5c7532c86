"""A plan in the making: gives and takes GPUs within what can be held, and writes down only what changes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Plan, Pool, Snapshot
from sublet.domain.shape import Shape
from sublet.domain.weighed import Weighing
from sublet.planning.terms import Row, Terms, hold_rows, most_gpus, nodes_to_hold, rows_by_market
from sublet.planning.widths import batch_for, runnable

NO_CORE = "no more can be had beside the core on demand that it is to have"


class Draft:
    """A plan in the making.

    `room` is the GPUs still to give in each pool; below zero when supply fell under the promises.

    `most` is what could be held in each pool, if that is known. With `rows`, nodes are held by market: in a pool with
    both, the steady part of a shape is on demand and the rest is spot. Without `rows`, nodes are whatever is there or
    cheapest. `active` are the jobs with a shape whose owners may want a core on demand, where some are known not to
    want one. Jobs get the core on demand that their owners want, or wait, even if the policy knows nothing of it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        most: Mapping[str, float] | None = None,
        rows: Sequence[Row] | None = None,
        *,
        active: Iterable[JobState] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.most = most_gpus(snapshot) if most is None else dict(most)
        self.room = {name: self.most[name] - gpus for name, gpus in snapshot.promised.items()}
        self._promised = dict(snapshot.promised)
        self._rows = None if rows is None or len(rows) == len(self.most) else rows  # else each pool is one
        self._steady = dict(snapshot.steady)
        active = snapshot.active.values() if active is None else active
        self._cores = {state.job.id: state for state in active if state.job.min_on_demand}
        self._shapes: dict[str, Shape | None] = {}
        self._reasons: dict[str, str] = {}

    def width(self, job: Job) -> int:
        """The GPUs that it asked for, or the most of any pool that it may have; 0 if that is less than it needs."""
        largest = max((most for name, most in self.most.items() if job.may_run_in(name)), default=0)
        gpus = min(job.gpus, largest)
        return int(gpus) if gpus >= job.min_gpus else 0

    def pool_with_room(self, job: Job, gpus: int) -> str | None:
        """The first pool that has this many GPUs to give to this job."""
        return next((name for name, room in self.room.items() if room >= gpus and job.may_run_in(name)), None)

    def give(self, state: JobState, pool: str, gpus: int, why: str = "", *, batch: int | None = None) -> None:
        """The job shall have this; nothing is noted if it has it already. Without a batch, it gets the best one."""
        if batch is None:
            batch = batch_for(state, self.snapshot.pools[pool], gpus, self._current(state))
        self.put(state, Shape(pool, gpus, batch=batch), why)

    def keep(self, state: JobState) -> None:
        """The job keeps its GPUs; with another batch, if that gains more there."""
        shape = self._current(state)
        if shape is not None:
            batch = batch_for(state, self.snapshot.pools[shape.pool], shape.gpus, shape)
            if batch is not None:
                self.put(state, replace(shape, batch=batch))

    def put(self, state: JobState, shape: Shape, why: str = "") -> None:
        """The same, of any shape."""
        if core := self.snapshot.pools[shape.pool].core_of(state.job):
            shape = replace(shape, steady=max(core, shape.steady))
            self._cores[state.job.id] = state
        current = self._current(state)
        if current != shape:
            self._change(state, current, shape, why)

    def hold_spares(self, pool: str, gpus: int) -> None:
        """Hold so many GPUs of a pool beyond the promises: they are on their way, and no job waits for them."""
        self._promised[pool] += gpus

    def take(self, state: JobState, why: str = "") -> None:
        """The job shall give back what it has and wait."""
        current = self._current(state)
        if current is not None:
            self._change(state, current, None, why)

    def plan(
        self,
        ask_again_s: float | None = None,
        *,
        value_of_time_usd_per_h: float | None = None,
        congestion_usd_per_gpu_h: Mapping[str, float] | None = None,
        warnings: Mapping[str, str] | None = None,
        weighed: Mapping[str, Weighing] | None = None,
    ) -> Plan:
        """The finished plan: what changes, the nodes that carry all of it, and the prices that made it."""
        hold = self._hold_with_cores() if self._cores else self._hold()
        return Plan(
            shapes=self._shapes,
            hold=hold,
            reasons=self._reasons,
            ask_again_s=ask_again_s,
            value_of_time_usd_per_h=value_of_time_usd_per_h,
            congestion_usd_per_gpu_h=congestion_usd_per_gpu_h or {},
            warnings={} if warnings is None else warnings,
            weighed={} if weighed is None else weighed,
        )

    def _hold(self) -> dict[str, int]:
        if self._rows is None:
            return nodes_to_hold(self.snapshot, self._promised)
        return hold_rows(self.snapshot, rows_by_market(self._rows, self._promised, self._steady))

    def _hold_with_cores(self) -> dict[str, int]:
        """The same for jobs with cores on demand: where these cannot be held, the last are narrower, or wait."""
        while True:
            plain = self._hold()
            hold = hold_with_cores(self.snapshot, plain, self._promised, self._steady) if self._rows is None else plain
            short = pools_short_of_cores(self.snapshot, hold, plain, self._promised, self._steady)
            last = next((state for state in reversed(self._cores.values()) if self._is_in(state, short)), None)
            if last is None:
                return hold
            self._give_way(last)

    def _give_way(self, state: JobState) -> None:
        """Half as wide, or less: what it makes progress at; or not at all."""
        shape = self._current(state)
        if shape is None:
            return
        pool, done = self.snapshot.pools[shape.pool], state.done_at(self.snapshot.now_s)
        narrower = [] if shape.grid is not None else runnable(state, pool, shape.gpus // 2, done)
        if narrower:
            gpus = narrower[-1].gpus
            self.put(state, replace(shape, gpus=gpus, steady=min(gpus, shape.steady)), NO_CORE)
        else:
            self.take(state, NO_CORE)
        if self._current(state) == state.shape:
            del self._shapes[state.job.id]

    def _is_in(self, state: JobState, pools: Collection[str]) -> bool:
        shape = self._current(state)
        return shape is not None and shape.steady > 0 and shape.pool in pools

    def _current(self, state: JobState) -> Shape | None:
        return self._shapes.get(state.job.id, state.shape)

    def _change(self, state: JobState, current: Shape | None, shape: Shape | None, why: str) -> None:
        for step, sign in ((current, -1), (shape, 1)):
            if step is not None:
                self._promised[step.pool] += sign * step.gpus
                self.room[step.pool] -= sign * step.gpus
                self._steady[step.pool] += sign * step.steady
        self._shapes[state.job.id] = shape
        if why:
            self._reasons[state.job.id] = why


def plan_of_changes(
    terms: Terms,
    changes: Iterable[tuple[JobState, Shape | None, str]],
    *,
    active: Iterable[JobState],
    **facts: Any,
) -> Plan:
    """The plan in which jobs get other shapes, None to wait, and why; `facts` are those of `Draft.plan`."""
    draft = Draft(terms.snapshot, terms.most, terms.rows, active=active)
    for state, shape, why in changes:
        if shape is None:
            draft.take(state, why)
        else:
            draft.put(state, shape, why)
    return draft.plan(**facts)


TICK_SLACK = 1e-9  # relative: a time that is a multiple up to rounding is one


def next_tick_s(now_s: float, every_s: float) -> float:
    """The first multiple of `every_s` after now.

    >>> next_tick_s(0.0, 600.0), next_tick_s(601.0, 600.0)
    (600.0, 1200.0)
    """
    return (math.floor(now_s / every_s * (1.0 + TICK_SLACK) + TICK_SLACK) + 1) * every_s


# ---------------------------------------------------------------------- cores on demand


Counts = Mapping[str, int]  # nodes by offer, or GPUs by pool


def hold_with_cores(snapshot: Snapshot, plain: Counts, gpus: Counts, steady: Counts) -> dict[str, int]:
    """Nodes to hold instead of `plain`: as many GPUs in every pool, the steady ones of them on demand."""
    need: dict[Row, int] = {}
    for name, pool in snapshot.pools.items():
        size = pool.gpus_per_node
        if not pool.is_mixed or not steady.get(name, 0):
            need[Row(name, name, pool.offer_ids)] = gpus.get(name, 0)
            continue
        sure = max(_nodes(plain, pool, Market.ON_DEMAND), math.ceil(steady[name] / size))
        rest = max(0, math.ceil(gpus[name] / size) - sure)
        for market, nodes in ((Market.ON_DEMAND, sure), (Market.SPOT, rest)):
            need[Row(f"{name}:{market}", name, pool.markets[market])] = nodes * size
    return hold_rows(snapshot, need)


def pools_short_of_cores(
    snapshot: Snapshot, hold: Counts, plain: Counts, gpus: Counts, steady: Counts
) -> frozenset[str]:
    """Where fewer GPUs on demand are held than cores need; or, for the sake of cores, fewer in all than were given."""
    short = []
    for name, pool in snapshot.pools.items():
        size, core = pool.gpus_per_node, steady.get(name, 0)
        held, before = (sum(nodes[offer_id] for offer_id in pool.offer_ids) for nodes in (hold, plain))
        if core > _nodes(hold, pool, Market.ON_DEMAND) * size or (held < before and held * size < gpus.get(name, 0)):
            short.append(name)
    return frozenset(short)


def _nodes(hold: Counts, pool: Pool, market: Market) -> int:
    return sum(hold[offer_id] for offer_id in pool.markets.get(market, ()))
