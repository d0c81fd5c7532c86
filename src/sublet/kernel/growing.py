"""Who has to wait with growing, because nodes come to a pool and go again.

Growing onto a node that soon goes costs a job two pauses, one to grow and one to shrink, and the work since its last
checkpoint where the node goes unannounced. To do without the node costs what it would have done. So a window is the
shortest that keeps what resizes cost below a share of the job's time, and there is none where a visit, as long as the
last ones were, brings far more than it costs:

    cost    =  2 x restart + work redone
    brings  =  stay x (one node / the nodes with it)
    window  =  cost / OVERHEAD, or none where it brings PAYS x cost

Capacity flaps, as a job sees it, where the last FLAPS nodes that came to a pool and went did so within as many windows.
From the last coming to the end of a window the job then neither grows onto nodes that came within the window, nor
moves into that pool. A loss is followed at once, a job that holds nothing may start anywhere, and whoever would hold
less than its least takes what there is. Where nothing flaps, nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Placement
from sublet.kernel.cluster import Node, NodePhase
from sublet.kernel.supply import Supply

__all__ = ["Growing"]

OVERHEAD = 0.04  # of a job's time, for resizes: 5 % are accepted, and what it takes to notice comes out of the rest
PAYS = 4.0  # of what a visit brings, a quarter goes on coming and going: less would be spent on next to nothing
FLAPS = 3  # comings and goings in a row: one loss is what spot is, two are bad luck


class Growing:
    """What came and went, pool by pool, and which jobs wait for it to last."""

    def __init__(self, supply: Supply) -> None:
        self.put_aside: dict[str, None] = {}  # jobs in no line, though they were promised more than they hold
        self._came: dict[str, float] = {}  # node -> when it could take work
        self._visits: dict[str, list[tuple[float, float]]] = {}  # pool -> (came, went) of the last that the cloud took
        self._newest: dict[str, float] = {}  # pool -> when the last came, if none has gone since
        self._wake_s: float | None = None
        self._supply, self._cluster = supply, supply.cluster

    # ------------------------------------------------------------------ what came and went

    def come(self, node: Node, now_s: float) -> None:
        """It can take work."""
        self._came[node.id] = self._newest[node.offer.pool] = now_s

    def go(self, node: Node, now_s: float) -> None:
        """The cloud takes it, or says that it will: with it went what came last, whichever of them it takes.

        Where none has come since the last one went, it is of the same wave.
        """
        pool = node.offer.pool
        came_s = self._newest.pop(pool, None)
        if came_s is not None and node.id in self._came:
            visits = self._visits.setdefault(pool, [])
            visits.append((came_s, now_s))
            del visits[:-FLAPS]

    def forget(self, node: Node) -> None:
        """It is gone, by whoever's will."""
        self._came.pop(node.id, None)

    def until_s(self, job: Job, pool: str, held: float = math.inf) -> float:
        """When this job, which holds so many GPUs there, may grow in this pool; minus infinity where it need not wait.

        What a move from elsewhere would bring is not known, and counts as nothing.
        """
        visits = self._visits.get(pool, [])
        if len(visits) < FLAPS or pool not in self._supply.pools:
            return -math.inf
        window_s = self._window_s(job, pool, held)
        return visits[-1][0] + window_s if visits[-1][1] - visits[0][0] < FLAPS * window_s else -math.inf

    def _window_s(self, job: Job, pool: str, held: float) -> float:
        visits, size = self._visits[pool], self._supply.pools[pool].gpus_per_node
        stay_s = sum(went_s - came_s for came_s, went_s in visits) / len(visits)
        told_s = min(self._supply.offers[offer_id].notice_s for offer_id in self._supply.pools[pool].offer_ids)
        redone_s = 0.0 if 0.0 < told_s >= job.checkpoint_write_s else min(job.checkpoint_every_s, stay_s) / 2.0
        cost_s = 2.0 * job.restart_s + redone_s
        return 0.0 if stay_s * size / (held + size) >= PAYS * cost_s else cost_s / OVERHEAD

    # ------------------------------------------------------------------ who waits

    def must_wait(self, state: JobState, kept: Placement, placement: Placement, now_s: float) -> bool:
        """It trains on `kept`, and `placement` has nodes that may go as soon as they came."""
        held = sum(gpus for _, gpus in kept)
        if state.shape is None or sum(gpus for _, gpus in placement) <= held:
            return False
        pool = state.shape.pool
        if now_s >= self.until_s(state.job, pool, held):
            return False
        since_s, own = now_s - self._window_s(state.job, pool, held), dict(kept)
        return any(self._came.get(n, -math.inf) > since_s for n, gpus in placement if gpus > own.get(n, 0))

    def rests(self, state: JobState, now_s: float) -> bool:
        """Whether its pool flaps, as it sees it."""
        return state.shape is not None and now_s < self.until_s(state.job, state.shape.pool, state.gpus)

    def shown(
        self, active: Mapping[str, JobState], placement: Mapping[str, Placement], now_s: float
    ) -> Mapping[str, JobState]:
        """The jobs as a policy is to see them: those that wait are no wider than they may be now. O(1) in calm."""
        if not any(len(visits) == FLAPS for visits in self._visits.values()):
            return active
        waiting = {}
        for job_id, state in active.items():
            if state.gpus and (job := self._narrowed(state, placement[job_id], now_s)) is not state.job:
                waiting[job_id] = replace(state, job=job)
        return {**active, **waiting} if waiting else active

    def _narrowed(self, state: JobState, placement: Placement, now_s: float) -> Job:
        job = state.job
        kept = self._cluster.healthy(placement)
        held = sum(gpus for _, gpus in kept)
        if held < job.min_gpus:
            return job
        here = self._cluster.nodes[kept[0][0]].offer.pool
        most = job.max_gpus
        elsewhere = [pool for pool in self._visits if pool != here and now_s < self.until_s(job, pool)]
        if now_s < self.until_s(job, here, held):
            since_s = now_s - self._window_s(job, here, held)
            ready = (n for n in self._cluster.nodes.values() if n.offer.pool == here and n.phase is NodePhase.READY)
            most = min(most, held + sum(n.free for n in ready if self._came.get(n.id, -math.inf) <= since_s))
        pools = job.pools
        if elsewhere:
            pools = tuple(pool for pool in pools or self._supply.pools if pool not in elsewhere)
        if (most, pools) == (job.max_gpus, job.pools):
            return job
        return replace(job, gpus=min(job.gpus, most), max_gpus=most, pools=pools)

    def wake(self, active: Mapping[str, JobState], now_s: float) -> float | None:
        """When the first of those who wait may grow, to be woken then; None = nobody waits, or it is known."""
        if not self.put_aside and not any(len(visits) == FLAPS for visits in self._visits.values()):
            return None
        running = (state for state in active.values() if state.phase is not Phase.WAITING)
        ends = (
            self.until_s(state.job, pool, held)
            for state in running
            for pool in self._visits
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
        visits = {pool: [list(visit) for visit in visits] for pool, visits in self._visits.items()}
        return {
            "came": dict(self._came),
            "visits": visits,
            "newest": dict(self._newest),
            "put_aside": list(self.put_aside),
            "wake_s": self._wake_s,
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._came, self._newest, self._wake_s = dict(facts["came"]), dict(facts["newest"]), facts["wake_s"]
        self._visits = {pool: [(came, went) for came, went in visits] for pool, visits in facts["visits"].items()}
        self.put_aside |= dict.fromkeys(facts["put_aside"])
