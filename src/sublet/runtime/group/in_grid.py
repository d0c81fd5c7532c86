"""A group whose job is cut: it forms as a grid, from old and new members together, and lets none go before.

    gather    those who hold state train on until the places of the new grid can be filled
    form      all of the old and the new grid meet; who has no place any more gives, says Left, and waits or goes
    train     when all who stay have joined

A broken grid does not wait for newcomers: spares take the places that are empty, or it goes on with fewer copies.
Another depth is for a plan to order. Without a grid everything is as in `regroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from sublet.domain.shape import Grid, Placement
from sublet.runtime.group.core import LAST_GRACE_S, Verdict
from sublet.runtime.group.failures import Failure, Fault, Unjudged
from sublet.runtime.group.places import Form
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.regroup import AT_ONCE, Regrouping, failure_of
from sublet.runtime.group.states import Concluding, Forming, Gathering, Idle, Over, Stepping, Stopping
from sublet.runtime.group.workers import Worker, WorkerPhase, split_by_room
from sublet.runtime.jobs.bounds import Shards
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LEFT, GRIDS_SINCE, STAGES


class InGrid(Regrouping):
    """The differences where a job is cut."""

    _leaves_in = -1  # number of the round in which leaving workers save together
    _left_again = 0  # times that their mesh failed

    def _trains_as(self, placement: Placement, form: Form | None) -> bool:
        """It makes steps in just this form, and none is on the way; a grid may have spares on the way."""
        if not isinstance(self.state, Stepping) or self.broken or self.state.cry is not None:
            return False
        here, room = Counter(worker.node_id for worker in self._roster.members), Counter(dict(placement))
        if self.places.grid is not None:
            form = self.places.form_of(form, sum(room.values()) // self._each)
            return form == self.places.form and self.places.formed == self.places.grid and here <= room
        if self._roster.in_phase(WorkerPhase.LAUNCHED, WorkerPhase.READY):
            return False
        return here == room

    def _form_if_ready(self, wall_s: float) -> None:
        """The places of the grid can be filled, or those of a smaller one if none trains meanwhile."""
        if self.places.grid is None:
            super()._form_if_ready(wall_s)
            return
        if not isinstance(self.state, Gathering):
            return
        here = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER)
        staying, leaving = split_by_room(here, self._placement)
        holds = any(worker.phase is WorkerPhase.MEMBER for worker in here)
        if not holds and self._roster.in_phase(WorkerPhase.LEAVING):
            return  # they may be saving: a new worker goes on from that
        grid = self.places.possible(len(staying), broken=self.broken and holds)
        if grid is None:
            return
        self._unjudged = Unjudged()
        self._form_grid(staying, leaving, grid, wall_s)

    def _form_grid(self, staying: Sequence[Worker], leaving: Sequence[Worker], grid: Grid, wall_s: float) -> None:
        self._limit_told = limit = self.widths.micro_batch
        given = [worker for worker in self._roster.in_phase(WorkerPhase.LEAVING) if worker.gives]
        found = self.places.seat(staying, [*leaving, *given], grid)
        for order in self.places.orders(
            found,
            self.workers.values(),
            self.round.number,
            batch=self._batch,
            broken=self.broken,
            micro_batch=limit,
        ):
            worker = self.workers[order.worker_id]
            worker.adopted = worker.left = False
            self._roster.send(worker, order)
        for worker in staying:
            phase = WorkerPhase.MEMBER if worker.rank >= 0 else WorkerPhase.READY
            self._roster.enter(worker, phase, wall_s)
        for worker in leaving:
            self._roster.enter(worker, WorkerPhase.LEAVING, wall_s)
            if not worker.gives:
                self._send_away(worker)
        self.state = Forming(
            wall_s, interim=bool(self._roster.in_phase(WorkerPhase.LAUNCHED)) and grid != self.places.grid
        )

    def _send_away(self, worker: Worker) -> None:
        leave = wire.Leave(worker_id=worker.id, generation=self.round.number, broken=self.broken)
        self._roster.send(worker, leave)

    def prepare(self, doomed: Collection[str], grid: Grid | None) -> None:
        """See the protocol."""
        said = self.joined or self.stepped
        if not isinstance(self.state, Stepping | Gathering) or self.broken or said is None:
            return
        here = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER)
        staying = sum(worker.node_id not in doomed for worker in here)
        to = grid or self.places.possible(staying, broken=True)
        for worker, keep in self.places.prepare(here, doomed, said.generation, to):
            self._roster.send(worker, keep)

    # ------------------------------------------------------------------ leaving, and what is saved then

    def _tell_to_leave(self, members: Iterable[Worker], wall_s: float) -> str:
        """In a grid no worker can save alone: all with state meet once more, and go when it is committed."""
        if self.places.formed is None:
            return super()._tell_to_leave(members, wall_s)
        told = {worker.id: worker for worker in members}
        told |= {worker.id: worker for worker in self.workers.values() if worker.gives}
        for worker in told.values():
            self._roster.enter(worker, WorkerPhase.LEAVING, wall_s)
        self._order_to_save(sorted(told.values(), key=lambda each: (-each.step, each.rank)))
        return ""

    def _order_to_save(self, leaving: Sequence[Worker]) -> None:
        self._leaves_in = self.round.number
        for number, worker in enumerate(leaving):
            worker.saves, worker.gives, worker.meets_to_save = True, False, True
            leave = wire.Leave(
                worker_id=worker.id,
                generation=self.round.number,
                save=True,
                broken=self.broken,
                meeting=number,
                meets=len(leaving),
            )
            self._roster.send(worker, leave)

    def _leave_again(self) -> None:
        """A member of those that save together is gone: they meet without it, unless it is over."""
        waiting = [worker for worker in self.workers.values() if self._saves_with_others(worker)]
        if waiting and not any(worker.left for worker in self.workers.values()):
            self.broken = True
            self.round = self.round.after()
            self._order_to_save(waiting)

    def _saves_with_others(self, worker: Worker) -> bool:
        return worker.meets_to_save and worker.phase is WorkerPhase.LEAVING and not worker.left

    def _save_elsewhere(self, stopping: Stopping, wall_s: float) -> None:
        if self.places.formed is None:
            super()._save_elsewhere(stopping, wall_s)

    def _forget_node(self, node_id: str) -> bool:
        missed = any(self._saves_with_others(worker) for worker in self._roster.on_node(node_id))
        ours = super()._forget_node(node_id)
        if missed:
            self._leave_again()
        return ours

    def _breaks_saving(self, worker: Worker, message: wire.Broke) -> bool:
        """The mesh of those that save together has failed; once for each that they formed."""
        if not self._saves_with_others(worker):
            return False
        if message.generation == self._leaves_in and self._left_again < AT_ONCE:
            self._left_again += 1  # a gone worker is heard of by its agent: this is for lines that failed
            self._leave_again()
        return True

    def _savers(self) -> list[Worker]:
        """In a grid each part of the first copy has one."""
        members = self._roster.members if self.training else []
        seated = [worker for worker in members if worker.place is not None and worker.place[0] == 0]
        return super()._savers() if self.places.grid is None or not seated else seated

    def _leave_in_grid(self, doomed: Collection[str], wall_s: float) -> None:
        """Some nodes will be gone in a moment: those on them give what they have, if the others can be a grid."""
        members = self._roster.members
        here = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER)
        staying = [worker for worker in here if worker.node_id not in doomed]
        self._placement = tuple(part for part in self._placement if part[0] not in doomed)
        self.round = self.round.after()
        grid = self.places.possible(len(staying), broken=True)
        if grid is None:  # too few are left: a new worker takes the state over from the checkpoint
            self._tell_to_leave(members, wall_s)
            self.state = Idle(wall_s)
            return
        self._gather(wall_s, safe=True)
        if isinstance(self.state, Gathering):
            self._form_grid(staying, [worker for worker in members if worker.node_id in doomed], grid, wall_s)

    def _lose_worker(self, worker: Worker, code: int, error: str, wall_s: float) -> None:
        """A worker that only gives is gone before all had what it has: they meet again. A spare is not missed."""
        waits = worker.phase in (WorkerPhase.LAUNCHED, WorkerPhase.READY)
        if self._saves_with_others(worker) and code not in (0, EXIT_LEFT):
            super()._lose_worker(worker, code, error, wall_s)
            self._leave_again()
        elif worker.gives and isinstance(self.state, Forming):
            self._see_off(worker)
            self.broken = True
            self._gather_anew(wall_s)
        elif self.places.grid is not None and waits and isinstance(self.state, Stepping) and not self.broken:
            self._see_off(worker)
            failure = failure_of(worker, code, error)
            if self._judge(failure, wall_s, script=False, hopeless=False) is Verdict.GIVE_UP:
                self._give_up(failure, wall_s)
            else:
                self._launch_missing(wall_s)
        else:
            super()._lose_worker(worker, code, error, wall_s)

    def _give_up(self, failure: Failure, wall_s: float) -> None:
        self.state = Over(wall_s)
        self._roster.end_all(0.0, wall_s)
        self._tell(Outcome.FAILED, failure)

    def _hear_left(self, worker: Worker, message: wire.Left) -> None:
        """As told; or it has given what it had, and goes, or waits as one that has just come."""
        worker.step, worker.left = message.step, True
        if worker.gives:
            worker.gives = worker.met = False  # it has to meet the others anew
            worker.left = worker.phase is WorkerPhase.LEAVING
            if worker.left:
                self._send_away(worker)
        elif worker.saves and (
            worker.met or worker.step or message.step
        ):  # if not, it has met no other yet, and knows 0
            self.step, self.done = message.step, message.done

    def _refuses(self, worker: Worker, message: wire.Ready, wall_s: float) -> bool:
        """Its session cannot be a member of a grid, or hold a range: the job is given up, in words."""
        in_ranges = self.spec.shards is Shards.ON
        if message.blocks and not (self.places.cut or in_ranges or self._roster.members):
            self.places.become_copies(self._wanted // self._each)
        self.places.hear(message)
        if isinstance(self.state, Over | Stopping):
            return False
        if not self.places.cut:
            self.ranging.hear(message, self._wanted)
        why = ""
        if not self.places.cut:
            why = self.ranging.refuses(message)
            if message.blocks and not why:
                why = "its session is in stages, and those of the others are not; next: one script for all"
        elif message.version < GRIDS_SINCE:
            why = f"its session speaks version {message.version} of the wire, and grids came with {GRIDS_SINCE}; next: "
            why += "install this sublet where the script runs"
        elif self.places.cut == STAGES and len(message.blocks) < (self.places.grid or Grid(1)).parts:
            blocks, parts = len(message.blocks), (self.places.grid or Grid(1)).parts
            why = f"its model has {blocks} blocks for {parts} stages; next: train.Stages(first, blocks, last) with "
            why += "train.session(..., loss=), or fewer (parallel.stages)"
        else:
            why = self.places.refuses()
        if why:
            self._give_up(Failure(fault=Fault.USER, why=f"{worker.id}: {why}"), wall_s)
        return bool(why) or self._differs(worker, message, wall_s)

    def _differs(self, worker: Worker, message: wire.Ready, wall_s: float) -> bool:
        """It would not understand those of another sublet, nor they it: all are started anew, with what is there now.

        If it was installed anew while they trained, all have the same then; where nodes differ, the job ends so.
        """
        worker.version = message.version
        here = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER)
        other = next((each for each in here if each.version not in (None, worker.version)), None)
        if not self.places.cut or other is None:
            return False
        why = f"{worker.id} and {other.id} have different versions of sublet, whose workers do not understand each "
        why += "other in a grid; next: install the same version wherever the script runs"
        self._fail(Failure(fault=Fault.USER, why=why), wall_s)
        return True

    def _cut_batches(self, worker: Worker, message: wire.ShortOfMemory, wall_s: float) -> None:
        """In a grid a part did not fit: no retry is used, and there are more parts from now on, if there may be."""
        if not self.places.cut or message.micro_batch:
            super()._cut_batches(worker, message, wall_s)
            return
        if isinstance(self.state, Over | Stopping):
            return
        if why := self.places.runs_out() if message.generation == self.round.number else "":
            self._give_up(Failure(fault=Fault.USER, why=f"{worker.id}: {why}"), wall_s)
            return
        if message.ends:
            worker.short = True
            self._roster.send(worker, wire.EndWorker(worker_id=worker.id, grace_s=LAST_GRACE_S))
        elif message.generation == self.round.number and isinstance(self.state, Stepping | Forming):
            self.broken = True
            self._gather_anew(wall_s)

    # ------------------------------------------------------------------ news of meetings

    def _hear_ready(self, worker: Worker, message: wire.Ready, wall_s: float) -> None:
        if self._refuses(worker, message, wall_s):
            return
        if worker.phase is WorkerPhase.LAUNCHED:
            self._roster.enter(worker, WorkerPhase.READY, wall_s)
            self._form_if_ready(wall_s)
        elif worker.phase is WorkerPhase.MEMBER and worker.adopted:  # it was started, and no more
            self._roster.enter(worker, WorkerPhase.READY, wall_s)
            if isinstance(self.state, Stepping | Concluding) and self._ends_before is None:
                self.broken = True
                self._gather_anew(wall_s)

    def _hear_leading(self, worker: Worker, message: wire.Leading) -> None:
        """The meeting place of rank 0, or of the first of those that save together before they go."""
        saves = self._saves_with_others(worker)
        if message.generation != (self._leaves_in if saves else self.round.number):
            return
        if not saves and not isinstance(self.state, Forming):
            return
        for other in self.workers.values():
            meets = self._saves_with_others(other) if saves else other.phase is WorkerPhase.MEMBER or other.gives
            if other.id != worker.id and meets:
                meet = wire.Meet(
                    worker_id=other.id, generation=message.generation, host=message.host, port=message.port
                )
                self._roster.send(other, meet)

    def _hear_joined(self, worker: Worker, message: wire.Joined, wall_s: float) -> None:
        worker.step, worker.met = message.step, True
        if message.generation != self.round.number or not isinstance(self.state, Forming):
            return
        if worker.rank == 0 if self.places.grid is None else self.places.has_joined(message):
            self.joined = message
            self.step, self.done, self.work = message.step, message.done, message.work
            self._kept = min(self._kept, message.step)  # what is above has turned out to be of no use
            self._train(wall_s, interim=self.state.interim)
