"""How an elastic group goes from state to state: it gathers, forms, trains, leaves, fails and begins anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sublet.runtime.group import states
from sublet.runtime.group.core import LAST_GRACE_S, GroupCore, Verdict
from sublet.runtime.group.failures import (
    Ended,
    Failure,
    Fault,
    Unjudged,
    fault_of,
    how_it_ended,
    how_it_stopped_short,
)
from sublet.runtime.group.protocol import GroupNews, Outcome
from sublet.runtime.group.states import (
    Concluding,
    ElasticState,
    Forming,
    Gathering,
    Idle,
    Over,
    Resting,
    Saving,
    Stepping,
    Stopping,
)
from sublet.runtime.group.workers import Round, Worker, WorkerPhase, regroup_orders, split_by_room, was_started_under
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LEFT

AT_ONCE = 3  # tries in a row of survivors to meet again, before they make a pause between two


class Regrouping(GroupCore):
    """The transitions; what calls for them is in `elastic`."""

    def __init__(
        self,
        job_id: str,
        spec: JobSpec,
        *,
        log_of: Callable[[str], str],
        env: Callable[[], dict[str, str]],
        host_of: Callable[[str], str] = lambda _: "",
        era: int = 0,
    ) -> None:
        super().__init__(job_id, spec, log_of=log_of, env=env, host_of=host_of, era=era)
        self.state: ElasticState = Idle(0.0)
        self._unjudged = Unjudged()
        self._torn = False  # one was gone on its way out, before the next group had formed without it
        self._unformed = 0  # rounds in a row that did not form
        self._kept = 0  # steps that are in a checkpoint, as far as we heard
        self._limit_told = 0  # samples at a time, to the members of this round; 0 = none
        self._owed: int | None = None  # a checkpoint was asked for at this step, and none of then or later is kept

    @property
    def training(self) -> bool:
        """See the protocol."""
        match self.state:
            case Stepping():
                return not self.broken
            case Gathering():
                return not self.broken and self.size > 0
            case _:
                return isinstance(self.state, Concluding)

    @property
    def _is_whole(self) -> bool:
        """As many make steps as the order says; in a grid, as many as it has."""
        formed = self.places.formed
        whole = self._wanted if self.places.grid is None or formed is None else formed.gpus * self._each
        return self.size >= whole if self.places.grid is not None else self.size == whole

    def save_now(self) -> None:
        """Rank 0 writes a checkpoint, beside the training; if it goes before that is done, the next rank 0 does."""
        self._owed = self.step
        for worker in self._savers():
            self._roster.send(worker, wire.SaveNow(worker_id=worker.id))

    def _savers(self) -> list[Worker]:
        """The workers that can be asked to save now: rank 0, or all if only the last controller knew rank 0."""
        members = self._roster.members if self.training else []
        return [w for w in members if w.rank == 0] or [w for w in members if w.rank < 0]

    # ------------------------------------------------------------------ groups of the last controller

    def _keep_old_group(self, wall_s: float) -> None:
        """An order was under way when the last controller died: if all are here that trained before it, they train on.

        Newcomers start again, unless they have said that they are ready: whether they did before is unknown.
        """
        members = self._roster.members
        old = [worker for worker in members if not was_started_under(worker, self.generation)]
        if not old or len(old) != self.widths.worked:
            return
        self.broken = False
        for worker in members:
            if worker not in old:
                self._roster.end(worker, 0.0, wall_s)

    def _was_formed_before(self, number: int) -> bool:
        """The round of this number is one of an earlier controller, under the order that we follow, and whole."""
        under = Round.from_number(number).generation
        return self.joined is None and under == self.generation and self._is_whole

    # ------------------------------------------------------------------ forming a group

    def _gather(self, wall_s: float, *, safe: bool = False) -> None:
        """Start what is missing, and form a group when all are here; if not `safe`, with a checkpoint behind it."""
        self.state = Gathering(wall_s, safe=safe)
        self._launch_missing(wall_s)
        self._form_if_ready(wall_s)

    def _begin(self, wall_s: float) -> None:
        """Gather, after the pause that is left of one that began under an earlier controller."""
        if self._rests_on(wall_s):
            self.state = Resting(self.patience.failed_s)
        else:
            self._gather(wall_s)

    def _gather_anew(self, wall_s: float) -> None:
        """A new round under the same order, with all that are here."""
        self.round = self.round.after()
        self._gather(wall_s)

    def _form_if_ready(self, wall_s: float) -> None:
        """Everybody of the placement is here: agree on ranks and let the group form."""
        if not isinstance(self.state, Gathering) or self._roster.in_phase(WorkerPhase.LAUNCHED):
            return
        here = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER)
        staying, leaving = split_by_room(here, self._placement)
        if len(staying) < self._wanted or not staying:
            return
        if not any(worker.phase is WorkerPhase.MEMBER for worker in staying):
            # No worker stays to hand the state over: it goes through a checkpoint. The old processes still hold the
            # GPUs, and a whole group of them might train on.
            if old := [worker for worker in leaving if worker.phase is WorkerPhase.MEMBER]:
                self._tell_to_leave(old, wall_s)
            if self._roster.in_phase(WorkerPhase.LEAVING):
                return
        elif self._awaits_save(self.state, wall_s):
            return
        self._unjudged = Unjudged()
        self._form(staying, leaving, wall_s)

    def _awaits_save(self, state: Gathering, wall_s: float) -> bool:
        """It is unknown whether it can train with so many: all progress until now is to be in a checkpoint first."""
        if self.broken or state.safe:
            return False
        untried = self._wanted > self.widths.widest and self.step > self._kept
        if state.saving is None and untried and self._savers():
            self.save_now()
            wait_s = states.ADOPTED_S if self.stepped is None and self.joined is None else states.SAVE_S
            self.state = state = replace(state, saving=Saving(self.step, wall_s + wait_s))
        return state.saving is not None

    def _form(
        self, staying: Iterable[Worker], leaving: Iterable[Worker], wall_s: float, *, interim: bool = False
    ) -> None:
        self._limit_told = limit = self.widths.micro_batch
        orders = regroup_orders(
            staying,
            self.round.number,
            self._batch,
            broken=self.broken,
            micro_batch=limit,
            in_ranges=self.ranging.on or self.before.ranges,
        )
        for order in orders:
            worker = self.workers[order.worker_id]
            worker.adopted = False
            self._roster.send(worker, order)
            self._roster.enter(worker, WorkerPhase.MEMBER, wall_s)
        for worker in leaving:
            leave = wire.Leave(worker_id=worker.id, generation=self.round.number, broken=self.broken)
            self._roster.send(worker, leave)
            self._roster.enter(worker, WorkerPhase.LEAVING, wall_s)
        self.state = Forming(wall_s, interim=interim)

    def _train(self, wall_s: float, *, interim: bool) -> None:
        """All have met; in the interim, all but those that are still on their way."""
        self.broken, self._torn, self._unformed, self.finished = False, False, 0, False
        if interim:
            self._gather_anew(wall_s)
        else:
            self.state = Stepping(wall_s, progress_s=wall_s)
            self._answer_move()
        if self._owed is not None:  # a new group fences off what the old rank 0 was writing
            self.save_now()

    # ------------------------------------------------------------------ leaving

    def _tell_to_leave(self, members: Iterable[Worker], wall_s: float) -> str:
        return self._roster.tell_to_leave(members, self.round.number, wall_s, broken=self.broken)

    def _save_elsewhere(self, stopping: Stopping, wall_s: float) -> None:
        """A worker died on the way out: unless the one that saves is through, or still at it, another must."""
        waiting = [w for w in self._roster.in_phase(WorkerPhase.LEAVING) if not w.left]
        saver = None if stopping.saver is None else self.workers.get(stopping.saver)
        if stopping.saver is None or not waiting or (saver is not None and not saver.left):
            return
        if any(worker.left for worker in self.workers.values()):
            return
        self.broken = True
        self.round = self.round.after()
        self.state = replace(stopping, saver=self._tell_to_leave(waiting, wall_s))

    def _stop_if_empty(self, wall_s: float) -> None:
        state = self.state
        if not isinstance(state, Stopping) or self.workers:
            return
        self.broken, self._nodes = False, set()
        if not state.resumable:
            self.state = Over(wall_s)
        elif self.finished:
            self._finish(wall_s)
        else:
            self.state = Idle(wall_s)
            self.news.append(GroupNews(outcome=Outcome.STOPPED, generation=self.generation))

    def _hear_damaged(self, message: wire.Damaged, wall_s: float) -> None:
        """If none is left, no job begins at 0 unasked: the order counts as followed, and the job will be held."""
        if message.step < 0 and isinstance(self.state, Forming):
            self.broken = True
            self.state = Idle(wall_s)
            self._answer_move()

    # ------------------------------------------------------------------ ends and failures

    def _lose_worker(self, worker: Worker, code: int, error: str, wall_s: float) -> None:
        """Its process has ended."""
        self._see_off(worker)
        state = self.state
        if isinstance(state, Over):
            return
        if isinstance(state, Stopping):
            if code not in (0, EXIT_LEFT):
                self._save_elsewhere(state, wall_s)
            self._stop_if_empty(wall_s)
            return
        if worker.phase is WorkerPhase.LEAVING:
            self._torn |= not worker.left
            self._form_if_ready(wall_s)  # perhaps the others waited for that
            return
        member = worker.phase is WorkerPhase.MEMBER
        self.broken = self.broken or (member and not isinstance(state, Concluding))
        if isinstance(state, Idle):
            return  # the kernel's next order finds it missing
        if worker.short and not isinstance(state, Concluding | Resting):
            self._gather_anew(wall_s)  # no failure: the next one takes fewer samples at a time
            return
        failure = failure_of(worker, code, error)
        if failure.fault is Fault.INFRA and not isinstance(state, Concluding):
            if self._is_counted(worker):
                if isinstance(state, Gathering):
                    self._gather_anew(wall_s)
                return
            self._fail(replace(failure, keep=not member or self.size > 0), wall_s)
            return
        ended, before = Ended(failure, wall_s), self._unjudged
        if code == 0:
            self._unjudged = replace(before, quit=before.quit or ended)
        else:  # in the tail of a script the rest of it may still end well
            self._unjudged = replace(before, failed=before.failed or ended)
        if not self._roster.staying:  # none is left to wait for
            self._end_as_all_have(worker, code, wall_s)

    def _is_counted(self, worker: Worker) -> bool:
        """It never came to be ready, as another one that was started with it, or later: one start fails once."""
        return worker.phase is WorkerPhase.LAUNCHED and worker.born_s < self.patience.failed_s

    def _cut_batches(self, worker: Worker, message: wire.ShortOfMemory, wall_s: float) -> None:
        """All members drop the step, and take fewer samples at a time in the next round. One alone needs no other."""
        news, told = self.widths.note_short(message.micro_batch), self._limit_told
        if message.ends:  # started again once it is gone: until then its memory is not free
            worker.short = message.micro_batch > 0 and (told == 0 or message.micro_batch < told)
            self._roster.send(worker, wire.EndWorker(worker_id=worker.id, grace_s=LAST_GRACE_S))
        elif self.size > 1 and (news or message.generation == self.round.number):
            self.broken = True
            if isinstance(self.state, Stepping | Forming):
                self._gather_anew(wall_s)

    def _end_as_all_have(self, last: Worker, code: int, wall_s: float) -> None:
        if self._unjudged.failed is not None:
            self._fail(self._unjudged.failed.failure, wall_s)
        elif self.finished:
            self._finish(wall_s)
        else:
            self._fail(Failure(fault=Fault.USER, why=how_it_stopped_short(last.phase), code=code), wall_s)

    def _finish(self, wall_s: float) -> None:
        self.state, self._unjudged = Over(wall_s), Unjudged()
        self._roster.end_all(LAST_GRACE_S, wall_s)
        self.news.append(GroupNews(outcome=Outcome.FINISHED, generation=self.generation, exit_code=0))

    def _fail(self, failure: Failure, wall_s: float) -> None:
        """Count it; start again what is missing, with the survivors and their state if they are kept, or give up."""
        self._unjudged = Unjudged()
        tail, hopeless = isinstance(self.state, Concluding), self.step == 0  # it would fail again before its first step
        verdict = self._judge(failure, wall_s, script=not tail, hopeless=hopeless)
        if verdict is Verdict.GIVE_UP:
            self.state = Over(wall_s)
            self._roster.end_all(0.0, wall_s)
            self._tell(Outcome.FAILED, failure)
        elif verdict is Verdict.NARROW and failure.keep and self._roster.members:
            self._gather_anew(wall_s)
        elif verdict is Verdict.RETRY and failure.keep and self._unformed < AT_ONCE:
            self._unformed += 1
            self._gather_anew(wall_s)
        else:
            self.round = self.round.after()
            self.state = Resting(wall_s)
            if verdict is Verdict.NARROW or not failure.keep:  # what hangs or is wrong in one is wrong in all
                self._roster.end_all(0.0, wall_s)
                self.broken = True


def failure_of(worker: Worker, code: int, error: str) -> Failure:
    """The failure of a worker that was not told to go."""
    if code == 0:
        return Failure(fault=Fault.USER, why=how_it_stopped_short(worker.phase, worker.id), code=code)
    why = error if code > 0 and error else how_it_ended(worker.id, code)
    return Failure(fault=fault_of(code), why=why, code=code)
