"""Scripts with the SDK: their workers regroup while they run, and carry the state from one group to the next.

    launched -> ready -> member -> (leaving) -> gone

A planned change lets the old group train on until the newcomers are ready; a broken one cannot train, so it waits.
All states are in `states`; each but Idle and Over has a time after which `tick` does something about it (`overdue`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from sublet.domain.shape import Placement
from sublet.runtime.group import states
from sublet.runtime.group.core import LAST_GRACE_S, find_crash
from sublet.runtime.group.failures import (
    Failure,
    Fault,
    Unjudged,
    back_off_s,
    how_it_stopped_short,
)
from sublet.runtime.group.in_grid import InGrid
from sublet.runtime.group.places import Form
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.states import (
    Concluding,
    Cry,
    Forming,
    Gathering,
    Idle,
    Over,
    Resting,
    Saving,
    Stepping,
    Stopping,
)
from sublet.runtime.group.workers import Worker, WorkerPhase
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.wire import messages as wire
from sublet.wire.files import Preparing
from sublet.wire.messages import EXIT_LEFT


class ElasticGroup(InGrid):
    """The workers of a job that regroup."""

    @property
    def working(self) -> int | None:
        """See the protocol."""
        return self.size or None if isinstance(self.state, Stepping | Gathering) else None

    @property
    def idle(self) -> bool:
        """See the protocol."""
        return isinstance(self.state, Idle)

    # ------------------------------------------------------------------ orders of the kernel

    def move(self, generation: int, placement: Placement, batch: int, wall_s: float, form: Form | None = None) -> None:
        """See the protocol."""
        if isinstance(self.state, Over):
            return  # the kernel is about to hear why
        same = self._trains_as(placement, form) and batch == self._batch
        self._take_order(generation, placement, batch)
        self.places.take(form, self._wanted // self._each)
        if same:  # it has left a node already, say, or has other spares
            self._launch_missing(wall_s)
            self._answer_move()
            return
        self._next_round()
        self.widths.begin_order()
        self._unjudged = Unjudged()
        if isinstance(self.state, Concluding) and self.workers:  # it needs nothing any more
            self._answer_move()
            return
        self._begin(wall_s)

    def stop(self, generation: int, *, resumable: bool, wall_s: float) -> None:
        """See the protocol."""
        if isinstance(self.state, Over):
            return
        tail = isinstance(self.state, Concluding)  # all is saved, and no worker listens to Leave any more
        self.generation = generation
        self._next_round()
        self._unjudged = Unjudged()
        self.state = Stopping(wall_s, resumable)
        if resumable and not tail and self._roster.members:
            for worker in self._roster.in_phase(WorkerPhase.LAUNCHED, WorkerPhase.READY):
                self._roster.end(worker, 0.0, wall_s)
            saver = self._tell_to_leave(self._roster.members, wall_s)
            self.state = Stopping(wall_s, resumable, saver)
        else:
            self._roster.end_all(self.spec.grace_s if resumable else min(self.spec.grace_s, LAST_GRACE_S), wall_s)
        self._stop_if_empty(wall_s)

    def adopt(
        self,
        generation: int,
        placement: Placement,
        batch: int,
        *,
        trains: bool,
        wall_s: float,
        form: Form | None = None,
    ) -> None:
        """See the protocol."""
        self._begin_adoption(generation, placement, batch, form, trains=trains)
        if not trains:
            self.state = Idle(wall_s)
        elif self.finished:
            self.state = Concluding(wall_s)
        else:
            self.state = Stepping(wall_s, progress_s=wall_s, adopted=True)

    def all_agents_came(self, wall_s: float) -> None:
        """See the protocol."""
        ends, self._ends_before = self._ends_before or [], None
        codes = {down.code for down in ends} - {EXIT_LEFT}  # those had been told to
        over = self.finished or (self.work is not None and self.done >= self.work)
        if isinstance(self.state, Idle):
            self._keep_old_group(wall_s)
        tail = isinstance(self.state, Concluding)
        if not (tail or isinstance(self.state, Stepping)) or self._is_whole or (tail and self.size):
            return
        if not self.workers and over and 0 in codes:
            self._finish(wall_s)
            return
        self.broken = True
        if not self.workers and codes == {0}:
            why = how_it_stopped_short(WorkerPhase.MEMBER if self.step else WorkerPhase.LAUNCHED)
            self._fail(Failure(fault=Fault.USER, why=why, code=0), wall_s)
            return
        if (crash := find_crash(ends)) is not None:
            self._fail(replace(crash, keep=self.size > 0), wall_s)
            return
        self._tell(Outcome.RESTARTED, Failure(fault=Fault.INFRA, why="workers ended while the controller was away"))
        self.round = self.round.after()
        self._begin(wall_s)

    # ------------------------------------------------------------------ news of nodes and workers

    def agent_came(self, node_id: str, worker_ids: list[str], wall_s: float) -> None:
        """See the protocol."""
        self._meet_agent(node_id, worker_ids, wall_s, wanted=not isinstance(self.state, Over | Stopping | Resting))
        if isinstance(self.state, Forming):  # what was said meanwhile may not have arrived
            self.broken = True
            self._gather_anew(wall_s)

    def node_lost(self, node_id: str, wall_s: float) -> None:
        """See the protocol."""
        ours = self._forget_node(node_id)
        match self.state:
            case Over():
                pass
            case Stopping() as stopping:
                self._save_elsewhere(stopping, wall_s)
                self._stop_if_empty(wall_s)
            case Concluding() if ours and self.workers:
                pass  # the others have all that is left to do
            case Stepping() if ours and self.places.grid is not None and self._is_whole and not self.broken:
                pass  # spares were there, and no other worker
            case _ if ours:
                self._unjudged = Unjudged()
                self.state = Idle(wall_s)
                if self.broken and self.spec.on_node_loss is OnNodeLoss.RESTART:
                    self._roster.end_all(0.0, wall_s)
            case _:
                self._form_if_ready(wall_s)

    def evacuate(self, node_id: str, wall_s: float, others: Collection[str] = ()) -> None:
        """See the protocol. The kernel counts the node as ours until it is lost, and then says where to go on."""
        members, doomed = self._roster.members, {node_id, *others}
        if self.broken or not any(worker.node_id == node_id for worker in members):
            return
        if not isinstance(self.state, Stepping | Gathering):
            return
        if self.places.grid is not None:
            self._leave_in_grid(doomed, wall_s)
            return
        self._placement = tuple(part for part in self._placement if part[0] not in doomed)
        self.round = self.round.after()
        if all(worker.node_id in doomed for worker in members):
            self._tell_to_leave(members, wall_s)  # a new worker takes the state over from the checkpoint
        if not self._placement and not self._roster.members:
            self.state = Idle(wall_s)
            return
        self._gather(wall_s, safe=True)
        members = self._roster.members
        if isinstance(self.state, Gathering) and members:  # a new worker may take longer than the node lasts
            staying = [worker for worker in members if worker.node_id not in doomed]
            leaving = [worker for worker in members if worker.node_id in doomed]
            self._form(staying, leaving, wall_s, interim=True)

    def hear(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        """See the protocol."""
        if self._is_end_before(message):
            return
        worker = self.workers.get(message.worker_id)
        if worker is None:
            if self._ends_before is not None and isinstance(message, wire.Finished):  # its last word before its end
                self._hear_finished(message, wall_s)
            return  # of a round long past
        match message:
            case wire.Ready():
                self._hear_ready(worker, message, wall_s)
            case wire.WorkerUp():
                pass  # its session will say Ready
            case Preparing():
                worker.note_preparing(wall_s)
            case wire.WorkerSeen():
                worker.quiet_s, worker.seen_s = message.quiet_s, wall_s
            case wire.Leading():
                self._hear_leading(worker, message)
            case wire.Joined():
                self._hear_joined(worker, message, wall_s)
            case wire.Stepped():
                self._hear_step(worker, message, wall_s)
            case wire.Busy():
                worker.busy_s = wall_s
            case wire.Broke():
                self._hear_broke(worker, message, wall_s)
            case wire.Left():
                self._hear_left(worker, message)
            case wire.Saved() | wire.SaveFailed():
                self._hear_saved(message, wall_s)
            case wire.Damaged():
                self._hear_damaged(message, wall_s)
            case wire.ShortOfMemory():
                self._cut_batches(worker, message, wall_s)
            case wire.Finished():
                self._hear_finished(message, wall_s)
            case wire.WorkerDown():
                self._lose_worker(worker, message.code, message.error, wall_s)
            case _:
                assert_never(message)

    def _hear_step(self, worker: Worker, message: wire.Stepped, wall_s: float) -> None:
        if message.generation > self.round.number or (self.joined and message.generation < self.joined.generation):
            return
        worker.step = message.step
        if worker.rank > 0:
            return  # it says what its own part takes; how far the group is, rank 0 says
        first = self.stepped is None
        self.step, self.done, self.stepped = message.step, message.done, message
        match self.state:
            case Stepping() as state:
                self.state = replace(state, progress_s=wall_s, adopted=False)
                if message.generation == self.round.number or self._was_formed_before(message.generation):
                    self.widths.note_step(self._wanted)
            case Gathering(saving=Saving() as saving) as state if first:  # a worker that makes steps can save
                self.state = replace(state, saving=replace(saving, until_s=wall_s + states.SAVE_S))

    def _hear_broke(self, worker: Worker, message: wire.Broke, wall_s: float) -> None:
        worker.step = message.step
        if self._breaks_saving(worker, message):
            return
        formed = worker.adopted if self.joined is None else message.generation == self.joined.generation
        match self.state:
            case Forming() | Stepping() as state:
                adopted = isinstance(state, Stepping) and state.adopted
                if message.generation == self.round.number or adopted:
                    self.broken = True
                    self.state = replace(state, cry=state.cry or Cry(message.why, wall_s))
            case Gathering() if formed:
                self.broken = True  # no worker trains on while we gather
            case Concluding() if formed:
                self.broken = True  # the one that had the last word is gone before all had heard it
                self._gather_anew(wall_s)
            case _:
                pass

    def _hear_saved(self, message: wire.Saved | wire.SaveFailed, wall_s: float) -> None:
        failed = isinstance(message, wire.SaveFailed)
        safe = (
            isinstance(message, wire.Saved) and message.safe and not message.part
        )  # one on a node's own disk is a sign of life, no more
        if safe:
            self._kept = message.step
            if self._owed is not None and message.step >= self._owed:  # not one that was being written at the ask
                self._owed = None
        match self.state:
            case Stepping() as state:
                self.state = replace(state, progress_s=wall_s)
            case Gathering(saving=Saving(step=step)) as state if failed or (safe and message.step >= step):
                self._await_no_save(state, wall_s)

    def _await_no_save(self, state: Gathering, wall_s: float) -> None:
        self.state = replace(state, saving=None, safe=True)
        self._form_if_ready(wall_s)

    def _hear_finished(self, message: wire.Finished, wall_s: float) -> None:
        self.step, self.done, self.finished = message.step, message.done, True
        if isinstance(self.state, Over | Stopping | Concluding):
            return
        waiting = self._roster.in_phase(WorkerPhase.LAUNCHED, WorkerPhase.READY)
        if self.broken or self._torn:  # the others lost a member before they heard it, and wait for one that is through
            waiting += [worker for worker in self._roster.members if worker.id != message.worker_id]
        elif isinstance(
            self.state, Forming
        ):  # the last step was made before the order to meet came: there is none to come
            waiting += [worker for worker in self._roster.members if not worker.met]
        for worker in waiting:
            self._roster.end(worker, 0.0, wall_s)
        self.state = Concluding(wall_s)

    # ------------------------------------------------------------------ time

    def tick(self, wall_s: float) -> None:
        """See the protocol."""
        self._expire_workers(wall_s)
        state, suspect = self.state, self._unjudged.failed
        if suspect is not None and wall_s - suspect.at_s > states.JUDGE_S:
            keep = not isinstance(state, Concluding) and self.size > 0
            self._fail(replace(suspect.failure, keep=keep), wall_s)
            return
        waited_s = wall_s - state.since_s
        match state:
            case Idle():
                if waited_s > states.parked_s(self.spec) and self._roster.members:
                    self.broken = True
                    self._next_round()
                    self._tell_to_leave(self._roster.members, wall_s)
            case Gathering():
                self._tick_gathering(state, wall_s)
            case Forming() if suspect is None:
                if why := states.find_unformed(state, self._roster.members, self.spec, wall_s):
                    self.broken = True  # once, all try again; then all are started anew
                    keep = self._unformed <= 1
                    self._fail(Failure(fault=Fault.INFRA, why=why, keep=keep, unfit=True), wall_s)
            case Stepping():
                self._tick_training(state, wall_s)
            case Resting():
                if waited_s >= back_off_s(self.failures.total()):
                    self._gather(wall_s)
            case Concluding():
                if waited_s > states.TAIL_S:
                    self._finish(wall_s)
            case Forming() | Stopping() | Over():
                pass  # of a group that forms: the failed worker is judged first, and the others cry because it left
            case _:
                assert_never(state)

    def _tick_gathering(self, state: Gathering, wall_s: float) -> None:
        if state.saving is not None:
            if self.broken or wall_s >= state.saving.until_s:
                self._await_no_save(state, wall_s)
            return
        launched, quitter = self._roster.in_phase(WorkerPhase.LAUNCHED), self._unjudged.quit
        if late := states.late_starters(launched, wall_s):
            for worker in late:
                self._roster.end(worker, 0.0, wall_s)
            self._fail(states.late_start(late[0]), wall_s)
        elif wall_s - state.since_s > states.READY_S and not launched:
            missing = Failure(fault=Fault.INFRA, why="workers are missing")
            self._fail(missing if quitter is None else replace(quitter.failure, code=None), wall_s)

    def _tick_training(self, state: Stepping, wall_s: float) -> None:
        quitter = self._unjudged.quit
        if quitter is not None and (
            wall_s - quitter.at_s > states.QUIT_S or states.is_old(state.cry, wall_s)
        ):  # no word of a good end came; the others cry because it left
            self._fail(quitter.failure, wall_s)
        elif not self._is_whole and self._unjudged == Unjudged():
            self.broken = True
            self._fail(Failure(fault=Fault.INFRA, why="workers are missing", keep=True), wall_s)
        elif state.cry is not None:
            if (
                self._unjudged == Unjudged()
                and states.is_old(state.cry, wall_s)
                and not any(w.short for w in self._roster.members)
            ):  # a failed worker is why the others cry: that is judged, and told
                why = state.cry.why or "the group fell apart, though no member is gone"
                self._fail(Failure(fault=Fault.INFRA, why=why, keep=True, unfit=True), wall_s)
        elif state.adopted and wall_s - state.progress_s > states.ADOPTED_S:
            self._gather_anew(wall_s)  # perhaps they were about to form a group when the last controller died
        elif not self.broken:
            hang = states.find_hang(
                state, self._roster.members, self.spec, wall_s, joined=self.joined, stepped=self.stepped
            )
            if hang is not None:
                self._fail(hang, wall_s)
