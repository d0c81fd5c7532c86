"""Delays of growth, because nodes of an offer come and go again.

Growing onto a node that soon goes costs a job two pauses, one to grow and one to shrink, and the work since its last
checkpoint where the node goes unannounced. To do without the node costs what it would have done. So a window is the
shortest that keeps what resizes cost below a share of the job's time, and there is none where a visit, as long as the
last ones were, brings far more than it costs:

    cost    =  2 x restart + work redone
    brings  =  stay x (the GPUs that it would get / all that it would have then)
    window  =  cost / OVERHEAD, or none where it brings PAYS x cost

Which node goes is chance: of an offer of which others hold as much again, every other loss is theirs, and what the job
has stays twice as long.

An offer flaps, as a job sees it, where the last FLAPS nodes of it that came and went did so within as many windows.
From the last coming to the end of a window the job then neither grows onto nodes of it that came within the window, nor
moves into a pool where all offers flap. Onto other offers of its pool it grows. So that those are rented for it,
policies see no more of one that flaps than is held, unless another job could want it. A loss is followed at once, a job
that holds nothing may start anywhere, and a job below its least takes what there is. If nothing flaps, no job waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sublet.domain.job import Job
from sublet.domain.plan import JobState, OfferState, Phase
from sublet.domain.shape import Placement
from sublet.kernel.cluster import Node, NodePhase
from sublet.kernel.supply import Supply

OVERHEAD = 0.04  # of a job's time, for resizes: 5 % are accepted, and what it takes to notice comes out of the rest
PAYS = 2.0  # no job is perfectly parallel: what less brings may be next to nothing
ON_TIME_S = 1.0  # notices are told in whole seconds
FLAPS = 3  # comings and goings in a row: one loss is what spot is, two are bad luck


class _Visit(NamedTuple):
    """From the last coming of a node to the next going; `wave_s`: when the first of its wave came."""

    came_s: float
    went_s: float
    wave_s: float


class Growing:
    """Nodes that came and went, offer by offer, and the jobs that wait for them to last."""

    def __init__(self, supply: Supply) -> None:
        self.put_aside: dict[str, None] = {}  # jobs in no line, though they were promised more than they hold
        self._came: dict[str, float] = {}  # node -> when it could take work
        self._visits: dict[str, list[_Visit]] = {}  # offer -> of the last that the cloud took
        self._newest: dict[str, float] = {}  # offer -> when the last came, if none has gone since
        self._ebbs_s: dict[str, float] = {}  # offer -> when the notice of the last wave ends
        self._wake_s: float | None = None
        self._supply, self._cluster = supply, supply.cluster

    # ------------------------------------------------------------------ what came and went

    def come(self, node: Node, now_s: float) -> list[str]:
        """It can take work. Jobs that were put aside and may queue again, since the node is not of what flaps."""
        self._came[node.id] = self._newest[node.offer.id] = now_s
        flaps = len(self._visits.get(node.offer.id, ())) == FLAPS
        return self.retry() if self.put_aside and not flaps else []

    def go(self, node: Node, now_s: float, *, told: bool) -> None:
        """The cloud takes it, or has `told` that it will: with it went what came last, whichever of them it takes.

        If none has come since the last one went, it is of the same wave. So is one that came after the notice of that
        wave and goes by its end: a replacement, rented while the cloud was taking capacity back. It is a visit more,
        but says nothing about how long capacity stays.
        """
        offer_id = node.offer.id
        came_s = self._newest.pop(offer_id, None)
        if came_s is None or node.id not in self._came:
            return
        visits = self._visits.setdefault(offer_id, [])
        if visits and now_s <= self._ebbs_s.get(offer_id, -math.inf):
            wave_s = visits[-1].wave_s
        else:
            wave_s = came_s
            self._ebbs_s[offer_id] = now_s + (node.offer.notice_s + ON_TIME_S if told else 0.0)
        visits.append(_Visit(came_s, now_s, wave_s))
        del visits[:-FLAPS]

    def forget(self, node: Node) -> None:
        """It is gone, for any reason."""
        self._came.pop(node.id, None)

    def until_s(self, job: Job, offer_id: str, held: float = math.inf, more: float = 0.0) -> float:
        """When this job, which holds so many GPUs of its pool, may grow onto it; minus infinity where it need not wait.

        `more`: by how many it would grow; at least by a node. The gain of a move from elsewhere is not known, and
        counts as nothing.
        """
        visits = self._visits.get(offer_id, [])
        if len(visits) < FLAPS or offer_id not in self._supply.offers:
            return -math.inf
        window_s = self._window_s(job, offer_id, held, more)
        return visits[-1].came_s + window_s if visits[-1].went_s - visits[0].came_s < FLAPS * window_s else -math.inf

    def _window_s(self, job: Job, offer_id: str, held: float, more: float) -> float:
        visits, offer = self._visits[offer_id], self._supply.offers[offer_id]
        more, told_s = max(more, offer.gpus_per_node), offer.notice_s
        waves = {visit.wave_s: visit.went_s - visit.wave_s for visit in visits}  # the last going of each
        stay_s = sum(waves.values()) / len(waves)
        kept = job.survives or 0.0 < told_s >= job.checkpoint_write_s
        redone_s = 0.0 if kept else min(job.checkpoint_every_s, stay_s) / 2.0
        cost_s = 2.0 * job.restart_s + redone_s
        wide = held + more
        hit_s = stay_s * max(1.0, self._cluster.held[offer_id] * offer.gpus_per_node / wide)
        return 0.0 if hit_s * more / wide >= PAYS * cost_s else cost_s / OVERHEAD

    # ------------------------------------------------------------------ which jobs wait

    def shunned(self, state: JobState, kept: Placement, now_s: float) -> frozenset[str]:
        """Nodes that may go as soon as they came: it trains on `kept`, and is not to grow onto these."""
        held = sum(gpus for _, gpus in kept)
        if state.shape is None or state.shape.gpus <= held:
            return frozenset()
        if not any(len(visits) == FLAPS for visits in self._visits.values()):
            return frozenset()
        room = min(state.job.max_gpus - held, self._spare()[state.shape.pool])
        more = max(state.shape.gpus - held, room)  # as policies were shown it
        flaps = self._flapping(state.job, state.shape.pool, now_s, held, more)
        return self._young(state.job, flaps, held, more, now_s)

    def rests(self, state: JobState, now_s: float) -> bool:
        """Whether something flaps in its pool, as it sees it: what comes next may be of that."""
        return state.shape is not None and bool(self._flapping(state.job, state.shape.pool, now_s, state.gpus))

    def _flapping(self, job: Job, pool: str, now_s: float, held: float = math.inf, more: float = 0.0) -> frozenset[str]:
        """Offers of a pool. O(1) in calm."""
        flaps = [offer_id for offer_id in self._visits if now_s < self.until_s(job, offer_id, held, more)]
        return frozenset(offer_id for offer_id in flaps if self._supply.offers[offer_id].pool == pool)

    def _young(self, job: Job, flaps: frozenset[str], held: float, more: float, now_s: float) -> frozenset[str]:
        """Nodes of these offers that came within a window."""
        since_s = {offer_id: now_s - self._window_s(job, offer_id, held, more) for offer_id in flaps}
        young = (n for n in self._cluster.nodes.values() if n.offer.id in flaps) if flaps else ()
        return frozenset(n.id for n in young if self._came.get(n.id, -math.inf) > since_s[n.offer.id])

    def _to_be_had(self, pool: str, flaps: frozenset[str]) -> float:
        """GPUs of other offers of the pool that are not there yet."""
        nodes = 0.0
        for offer_id in self._supply.pools[pool].offer_ids:
            if offer_id not in flaps:
                there = self._cluster.held[offer_id] - len(self._cluster.requested[offer_id])
                nodes += max(0.0, self._supply.offering.most(offer_id) - there)
        return nodes * self._supply.pools[pool].gpus_per_node

    def _spare(self) -> dict[str, float]:
        """Free GPUs of each pool, there or to be had. Cost: O(nodes), for all jobs of a look at them."""
        free: defaultdict[str, float] = defaultdict(float)
        for node in self._cluster.nodes.values():
            if node.phase is NodePhase.READY:
                free[node.offer.pool] += node.free
        return {pool: free[pool] + self._to_be_had(pool, frozenset()) for pool in self._supply.pools}

    def offers_shown(self, active: Mapping[str, JobState], *, others: bool, now_s: float) -> dict[str, OfferState]:
        """The offers as a policy is to see them; `others`: jobs wait for their first GPUs."""
        shown = {offer_id: self._supply.offering.state(offer_id, now_s) for offer_id in self._supply.offers}
        for offer_id in () if others else self._hidden(active, now_s):
            state = shown[offer_id]
            most = state.held if state.available is None else min(state.held, state.available)
            shown[offer_id] = replace(state, available=most)
        return shown

    def _hidden(self, active: Mapping[str, JobState], now_s: float) -> frozenset[str]:
        """Offers of which no more is seen than is held: another of the pool is steady, and is to be taken instead.

        None while any job could want them: one that holds nothing yet, or to which they do not flap.
        """
        if not any(len(visits) == FLAPS for visits in self._visits.values()):
            return frozenset()
        hidden: set[str] | None = None
        spare = self._spare()
        for state in active.values():
            job = state.job
            here = None if state.shape is None else state.shape.pool
            flaps: set[str] = set()
            for name, pool in self._supply.pools.items():
                if job.pools and name not in job.pools:
                    flaps.update(pool.offer_ids)
                elif state.gpus:
                    held, more = math.inf, 0.0
                    if name == here:
                        held, more = state.gpus, min(job.max_gpus - state.gpus, spare[name])
                    found = self._flapping(job, name, now_s, held, more)
                    flaps |= found if self._to_be_had(name, found) else set()
            hidden = flaps if hidden is None else hidden & flaps
        return frozenset(hidden or ()) & self._visits.keys()

    def shown(
        self, active: Mapping[str, JobState], placement: Mapping[str, Placement], now_s: float
    ) -> Mapping[str, JobState]:
        """The jobs as a policy is to see them: those that wait are no wider than they may be now. O(1) in calm."""
        if not any(len(visits) == FLAPS for visits in self._visits.values()):
            return active
        waiting, spare = {}, self._spare()
        for job_id, state in active.items():
            if state.gpus and (job := self._narrowed(state, placement[job_id], spare, now_s)) is not state.job:
                waiting[job_id] = replace(state, job=job)
        return {**active, **waiting} if waiting else active

    def _narrowed(self, state: JobState, placement: Placement, spare: Mapping[str, float], now_s: float) -> Job:
        job = state.job
        kept = self._cluster.healthy(placement)
        held = sum(gpus for _, gpus in kept)
        if held < job.min_gpus:
            return job
        here = self._cluster.nodes[kept[0][0]].offer.pool
        most = job.max_gpus
        more = min(job.max_gpus - held, spare[here])
        if flaps := self._flapping(job, here, now_s, held, more):
            young = self._young(job, flaps, held, more, now_s)
            ready = (n for n in self._cluster.nodes.values() if n.offer.pool == here and n.phase is NodePhase.READY)
            there = held + sum(n.free for n in ready if n.id not in young)
            most = int(min(most, there + self._to_be_had(here, flaps)))
        elsewhere = [pool for pool in self._supply.pools.values() if pool.name != here and self._visits]
        closed = {pool.name for pool in elsewhere if self._flapping(job, pool.name, now_s) >= frozenset(pool.offer_ids)}
        pools = job.pools
        if closed:
            pools = tuple(pool for pool in pools or self._supply.pools if pool not in closed)
        if (most, pools) == (job.max_gpus, job.pools):
            return job
        return replace(job, gpus=min(job.gpus, most), max_gpus=most, pools=pools)

    def wake(self, active: Mapping[str, JobState], now_s: float) -> float | None:
        """The time at which the first waiting job may grow, to be woken then; None = none waits, or it is known."""
        if not self.put_aside and not any(len(visits) == FLAPS for visits in self._visits.values()):
            return None
        running = (state for state in active.values() if state.phase is not Phase.WAITING)
        ends = (
            self.until_s(state.job, offer_id, held)
            for state in running
            for offer_id in self._visits
            for held in (state.gpus, math.inf)
        )
        first_s = min((end_s for end_s in ends if end_s > now_s), default=None)
        if first_s is None or first_s == self._wake_s:
            return None
        self._wake_s = first_s
        return first_s

    def retry(self) -> list[str]:
        """A window may be over: these stand in line again."""
        jobs, self._wake_s = list(self.put_aside), None
        self.put_aside.clear()
        return jobs

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        visits = {offer_id: [list(visit) for visit in visits] for offer_id, visits in self._visits.items()}
        return {
            "came": dict(self._came),
            "visits": visits,
            "newest": dict(self._newest),
            "ebbs_s": dict(self._ebbs_s),
            "put_aside": list(self.put_aside),
            "wake_s": self._wake_s,
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._came, self._newest, self._wake_s = dict(facts["came"]), dict(facts["newest"]), facts["wake_s"]
        self._visits = {  # before version 7 each was a wave
            offer: [_Visit(came, went, *(wave or [came])) for came, went, *wave in visits]
            for offer, visits in facts["visits"].items()
        }
        self._ebbs_s = dict(facts.get("ebbs_s", {}))
        self.put_aside |= dict.fromkeys(facts["put_aside"])
