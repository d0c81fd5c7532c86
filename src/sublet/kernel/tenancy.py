"""The subletting half of the kernel: which job is promised what, which GPUs it holds, and what to order next.

A promise (`JobState.shape`) is kept as GPUs become free: jobs that give GPUs up are ordered to at once, jobs that need
some stand in line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sublet.domain.actions import Action
from sublet.domain.events import Event, JobResized, JobStarted, JobStopped, NodeLost, NodeSilent
from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Placement, Shape
from sublet.errors import UnexpectedEvent
from sublet.kernel.census import Census
from sublet.kernel.changing import (
    IN_TRANSIT,
    as_ordered,
    is_spare_of,
    pays,
    shape_of_survivors,
    with_gpus,
    without_spares,
)
from sublet.kernel.cluster import Node
from sublet.kernel.growing import Growing
from sublet.kernel.ordering import Ordering
from sublet.kernel.placing import Placing, half_way, owed
from sublet.kernel.refusals import keeps_to
from sublet.kernel.supply import Supply
from sublet.kernel.values_json import from_plain, to_plain
from sublet.kernel.waiting import Lines, Waiting

STOPPED_AT_ONCE = frozenset({Phase.STARTING, Phase.RESIZING})  # by a pause: a move is paid for, and may never end
CHAPTERS = 20  # of a job's story, in a snapshot: what an error message shows of it


class Tenancy(Ordering):
    """Every job that has not ended, and the GPUs under it."""

    def __init__(self, supply: Supply) -> None:
        super().__init__(supply)
        self.recorded: Sequence[Action] = ()  # in a replay: what followed then from the event at hand
        self.waiting = Waiting()  # those without shape and GPUs
        self.census = Census()  # of all that ever came
        self.growing = Growing(supply)  # jobs that have to wait with it
        self.promises = Lines(supply.pools)
        self.lines = self.promises.of
        self._placing = Placing(supply, self.growing)
        self._submitted = 0

    # ------------------------------------------------------------------ a job's life

    def admit(self, job: Job, event: Event) -> None:
        """A new job begins to wait."""
        state = JobState(job=job, seq=self._submitted, as_of_s=self.now_s, held_since_s=self.now_s)
        self._submitted += 1
        self.census.note(job, self.now_s)
        self._stories[job.id] = [event]
        self.jobs[job.id] = state
        if not job.paused:
            self.waiting.add(state)

    def change(self, job: Job, event: Event) -> None:
        """Other facts about a job; one that is paused gives its GPUs back, one that is not waits for a plan.

        The places where it may run, and its GPUs on demand, hold at once, also against what it was promised.
        """
        state = self.jobs[job.id]
        self._stories[job.id].append(event)
        if job.lead_s != state.job.lead_s:
            self.enqueue(state)
        if job.id in self.waiting:
            self.waiting.remove(job.id)
        # Work so far was done at the speed that was believed until now.
        state = replace(state, job=job, done=state.done_at(self.now_s), as_of_s=max(self.now_s, state.as_of_s))
        self._store(state)
        if job.paused:
            self.evict(job.id)
        elif state.shape is None and state.phase is Phase.WAITING:
            self.waiting.add(state)
        elif state.shape is not None and not keeps_to(job, state.shape, self._supply.pools):
            before = None if state.phase in (Phase.WAITING, Phase.STOPPING) else self._ordered[job.id]
            stays = before is not None and keeps_to(job, before, self._supply.pools)
            state = self.promise(state, before if stays else None)
            if not self.settle(state):
                self.enqueue(state)

    def evict(self, job_id: str) -> None:
        """It gives its GPUs back, whatever it is about to do."""
        state = self.promise(self.jobs[job_id], None)
        if state.phase in STOPPED_AT_ONCE:
            self._order_stop(state)
        else:
            self.settle(state)

    def finish_move(self, event: JobStarted | JobResized) -> None:
        """It has its new GPUs and has left the old ones."""
        state = self.jobs.get(event.job_id)
        if state is None or event.generation != state.generation or state.phase not in IN_TRANSIT:
            return  # late news: it ended, was ordered elsewhere, or lost a node meanwhile
        if state.phase is Phase.STOPPING:
            raise UnexpectedEvent(event, "the job was told to stop", self.story(event.job_id))
        self._stories[event.job_id].append(event)
        self._supply.changed |= self._placements.finish_move(event.job_id)
        state = replace(state, phase=Phase.RUNNING, done=event.done, as_of_s=event.resumes_s, left_s=0.0)
        self._store(state)
        if not self.settle(state):
            self.enqueue(state)

    def finish_stop(self, event: JobStopped) -> bool:
        """It has left all its GPUs; it waits (True), or goes where it was promised others meanwhile."""
        state = self.jobs.get(event.job_id)
        if state is None or event.generation != state.generation or state.phase is not Phase.STOPPING:
            return False
        self._stories[event.job_id].append(event)
        self._supply.changed |= self._placements.vacate(event.job_id)
        state = replace(with_gpus(state, (), Phase.WAITING, self.now_s), done=event.done)
        self._store(state)
        if state.shape is not None:
            self.enqueue(state)
        elif not state.job.paused:
            self.waiting.add(state)
        return state.shape is None

    def note_progress(self, job_id: str, done: float) -> None:
        """It says how far it is."""
        state = self.jobs.get(job_id)
        if state is None:
            return
        as_of_s = max(self.now_s, state.as_of_s) if state.phase is Phase.RUNNING else self.now_s
        state = replace(state, done=done, as_of_s=as_of_s)
        if job_id in self.waiting:  # its place in line may change
            self.waiting.remove(job_id)
            self.waiting.add(state)
        self._store(state)

    def end(self, state: JobState, *, done: bool) -> None:
        """It holds nothing and is promised nothing any more; `done` = its work is behind it."""
        job_id = state.job.id
        if done:
            self.census.note_end(state.job, state.attained_gpu_s(self.now_s))
        self._supply.changed |= self._placements.vacate(job_id)
        self.promises.take_back(state)
        self.active.pop(job_id, None)
        if job_id in self.waiting:
            self.waiting.remove(job_id)
        self._ordered.pop(job_id, None)
        self.growing.put_aside.pop(job_id, None)
        self.departures.prepared.pop(job_id, None)
        self.budgets.forget(state.job)
        del self.jobs[job_id], self._stories[job_id]

    # ------------------------------------------------------------------ nodes and pools go

    def keep_to(self, pools: Mapping[str, Pool]) -> None:
        """Other pools are on offer: jobs that were promised GPUs of one that is not wait for another plan."""
        for state in [s for s in self.active.values() if s.shape is not None and s.shape.pool not in pools]:
            self.settle(self.promise(state, None))
        self.promises.keep_to(pools)

    def line_up_tenants(self, node: Node, taken_s: float = math.inf) -> None:
        """A node will be taken, and then: those on it need other GPUs."""
        self.departures.announce(node.id, taken_s)
        for job_id in node.jobs:
            self.enqueue(self.jobs[job_id])

    def clear_node(self, node: Node) -> None:
        """We give a node up that is in use: its jobs move to free GPUs, or stop and stand in line for what they had."""
        for job_id in list(node.jobs):
            state = self.jobs[job_id]
            if not self.settle(state):
                self._order_stop(state)

    def lose_node(self, node: Node, event: NodeLost | NodeSilent) -> None:
        """A node was taken: those on it hold what survives, and stand still until they are moved or stopped.

        But for jobs that lost spares alone: they train on.
        """
        for job_id in list(node.jobs):
            self._stories[job_id].append(event)
            state = self.jobs[job_id]
            spare = is_spare_of(state, self.placement.get(job_id, ()), node.id, self._cluster)
            survives = self._placements.lose(job_id, node.id)
            stopping = state.phase is Phase.STOPPING  # what it saves is what it comes back with
            if spare:
                state = without_spares(state, survives, self.now_s)
            else:
                state = with_gpus(state, survives, Phase.STOPPING if stopping else Phase.BROKEN, self.now_s)
            self._store(state)
            # One that needs no GPUs of others is settled at once: they may wait for those that it leaves. What it still
            # holds may be about to be taken as well: then it does need others.
            enough = state.shape is None or state.shape.gpus <= state.gpus
            if not (enough and self.settle(state)):
                self.enqueue(state)
                if state.job.lead_s is None and (state.shape is None or state.shape.grid is None):
                    self._carry_on(state)
                else:  # a plan comes first, if it does at this instant
                    self.departures.broken_s = self.now_s

    def move_due(self) -> None:
        """Time is up for jobs that stayed on noticed nodes; and no plan has helped the survivors of a loss."""
        due = self.departures.due(self.jobs, self.placement, self.now_s)
        for job_id in due:
            self.enqueue(self.jobs[job_id])
        self.run_queues()
        if self.departures.has_waited(self.now_s):
            due += [job_id for job_id, state in self.active.items() if state.phase is Phase.BROKEN]
        for job_id in due:
            self._carry_on(self.jobs[job_id])

    def forget(self, node: Node) -> None:
        """It is gone, for any reason."""
        self.growing.forget(node)
        self.departures.forget(node.id)

    def _carry_on(self, state: JobState) -> None:
        """Let the survivors of a loss train, where a new node takes longer to come than two pauses take time.

        Or where a new one is not to be counted on, since nodes come and go.
        """
        if (shape := state.shape) is None or state.phase not in (Phase.BROKEN, Phase.RUNNING):
            return
        kept, smaller = self._survivors(state)
        if smaller is None:
            return
        boot_s = min(self._supply.offers[offer_id].boot_s for offer_id in self._supply.pools[shape.pool].offer_ids)
        if pays(state, smaller, boot_s) or self.growing.rests(state, self.now_s):
            self._order_move(state, smaller, kept)

    def keep_to_survivors(self, state: JobState) -> bool:
        """It trains on, on those of its nodes that stay; False = it cannot."""
        kept, smaller = self._survivors(state)
        if smaller is not None:
            self._order_move(state, smaller, kept)
        return smaller is not None

    def _survivors(self, state: JobState) -> tuple[Placement, Shape | None]:
        kept = self._cluster.healthy(self.placement[state.job.id])
        return kept, shape_of_survivors(state, kept, self._cluster.on_demand(kept), self.recorded)

    # ------------------------------------------------------------------ from promises to orders

    def promise(self, state: JobState, shape: Shape | None) -> JobState:
        """Note what a job shall have; the GPUs follow as they become free."""
        job_id = state.job.id
        self.promises.take_back(state)
        was_waiting = job_id in self.waiting
        if was_waiting and shape is not None:
            self.waiting.remove(job_id)
        state = replace(state, shape=shape)
        self.jobs[job_id] = state
        if shape is not None:
            self.promises.promise(shape)
            self.active[job_id] = state
        else:
            self.active.pop(job_id, None)
            if state.phase is Phase.WAITING and not was_waiting and not state.job.paused:
                self.waiting.add(state)
        return state

    def enqueue(self, state: JobState) -> None:
        """It needs GPUs to keep its promise."""
        self.promises.stand(state)

    def run_queues(self) -> None:
        """Give free GPUs to the jobs in line, until the first that must go on waiting; then let others go back to spot.

        One that waits for GPUs of one market leaves the other one to those behind it. One that leaves another pool for
        this one keeps its place: what it leaves for is not given to those behind it.
        """
        for pool, line in self.lines.items():
            served: list[str] = []
            closed: set[Market] = set()
            for job_id in line:
                if not self.settle(self.jobs[job_id], closed=closed):
                    closed |= self._placing.waits_for(self.jobs[job_id], self.placement.get(job_id, ()))
                    if len(closed) == len(Market):
                        break
                    continue
                if self.jobs[job_id].phase is Phase.STOPPING and self._placements.pool_of(job_id) not in (None, pool):
                    break
                served.append(job_id)
            for job_id in served:
                del line[job_id]
            for job_id in [each for node in self._placing.given_up(pool, self._owed(pool)) for each in node.jobs]:
                if self.jobs[job_id].phase is Phase.RUNNING and job_id not in line:
                    self.settle(self.jobs[job_id], closed={Market.ON_DEMAND})
            if line and not self.plan_due and (step := half_way(self._supply, pool, line, self.active, self.placement)):
                self._order_move(*step)

    def settle(self, state: JobState, *, closed: Collection[Market] = ()) -> bool:
        """Order what brings the job to its promised shape; False = not enough free GPUs yet.

        Those of markets that are `closed` are kept for another job.
        """
        if state.phase in IN_TRANSIT:
            return True  # looked at again when the answer comes
        job_id, shape = state.job.id, state.shape
        held = self.placement.get(job_id, ())
        if shape is None or (held and self._placements.pool_of(job_id) != shape.pool):
            if self._may_train_on(state):
                return False
            if state.phase is not Phase.WAITING:
                self._order_stop(state)
            return True
        kept, due = self._placing.kept(held, shape), self._owed(shape.pool, job_id)
        placement = self._placing.find(state, kept, self.now_s, owed=due, closed=closed)
        if self._stays(state, held, self.lines[shape.pool], placement):
            if not self.plan_due:
                self._prepare(state, shape)
            return placement is not None
        if placement is None:
            return self._begin_without_spares(state, shape, kept, owed=due, closed=closed)
        if state.phase is Phase.RUNNING and (shunned := self.growing.shunned(state, kept, self.now_s)):
            calm = self._placing.find(state, kept, self.now_s, shunned=shunned, owed=due, closed=closed)
            if calm is not None:
                placement = calm
            elif kept == held or self.keep_to_survivors(state):
                self.growing.put_aside[job_id] = None
                return True
        if state.phase is not Phase.RUNNING or placement != held or not as_ordered(self._ordered[job_id], shape):
            self._order_move(state, shape, placement)
        elif self._ordered[job_id] != shape:
            self._ordered[job_id] = shape
            self._store(replace(state, runs_in=shape))
        return True

    def _owed(self, pool: str, but_to: str = "") -> int:
        some = self.promises.steady[pool] and self._supply.pools[pool].is_mixed
        return owed(self._cluster, pool, self.active.values(), self.placement, but_to) if some else 0

    def _begin_without_spares(
        self, state: JobState, shape: Shape, kept: Placement, *, owed: int, closed: Collection[Market]
    ) -> bool:
        """Copies do not wait for spares, which join without a pause; False = it goes on waiting."""
        if shape.grid is None or (state.phase is Phase.RUNNING and shape.trains_like(state.runs_in)):
            return False
        gpus = max(shape.grid.gpus, state.job.min_on_demand, sum(gpus for _, gpus in kept))
        fewer = replace(shape, gpus=gpus, steady=min(shape.steady, gpus))
        placement = self._cluster.rearrange(shape.pool, kept, gpus, steady=fewer.steady, owed=owed, closed=closed)
        if placement is None:
            return False
        self._order_move(state, fewer, placement)
        return True

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot. The order of jobs, lines and lists is part of it."""
        return {
            "jobs": [to_plain(state) for state in self.jobs.values()],
            "active": list(self.active),
            "census": self.census.facts(),
            **self._placements.facts(),
            "lines": {pool: list(line) for pool, line in self.lines.items()},
            "ordered": to_plain(self._ordered),
            "growing": self.growing.facts(),
            "departures": self.departures.facts(),
            "stories": {job_id: self.story(job_id)[-CHAPTERS:] for job_id in self._stories},
            "submitted": self._submitted,
            "purses": self.budgets.facts(),
        }

    def restore(self, facts: Mapping[str, Any], now_s: float, job_from: Callable[[Mapping[str, Any]], Job]) -> None:
        """Go on from there."""
        self.now_s, self._submitted = now_s, facts["submitted"]
        for each in facts["jobs"]:
            state = replace(from_plain(JobState, each), job=job_from(each["job"]))
            self.jobs[state.job.id] = state
            if state.shape is None and state.phase is Phase.WAITING and not state.job.paused:
                self.waiting.add(state)
            if state.shape is not None:
                self.promises.promise(state.shape)
        self.active.update((job_id, self.jobs[job_id]) for job_id in facts["active"])
        self.census.restore(facts["census"], job_from)
        self._placements.restore(facts)
        self.promises.restore(facts["lines"])
        self._ordered = {job_id: from_plain(Shape, shape) for job_id, shape in facts["ordered"].items()}
        if "growing" in facts:  # not in snapshots before version 5
            self.growing.restore(facts["growing"])
        if "departures" in facts:  # nor in those before version 9
            self.departures.restore(facts["departures"])
        if "purses" in facts:  # nor before there were trees of them
            self.budgets.restore(facts["purses"])
        self._stories = {job_id: list(story) for job_id, story in facts["stories"].items()}
