"""Every worker has the whole model: what they make of their shares of a batch is added up, and all update alike.

The optimizer's state may lie in ranges, of which each worker has one (`shards`). A step whose group breaks is dropped
without a trace, and its samples are given again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from sublet.errors import InvalidValue, StaleWriter
from sublet.machine.wall import WALL
from sublet.train.checkpoint.writing import Writing
from sublet.train.link.beside import left_together, state_of_rank_0
from sublet.train.link.following import Broken, Entry
from sublet.train.link.membership import Membership, lost
from sublet.train.link.peers import BROKEN, PeerGroup, talking
from sublet.train.numerics.gradients import DOUBT, EVALUATED, LEFT, LOSS, ORDERS, SAVE
from sublet.train.sessions.cannot import SEVERAL, Asked, check_fits
from sublet.train.sessions.evaluating import Evaluates
from sublet.train.sessions.position import Position
from sublet.train.sessions.rehearsal import Rehearsed
from sublet.train.sessions.report import Report, printed
from sublet.train.sessions.steps import Steps
from sublet.train.sessions.strategy import Around
from sublet.train.sessions.turns import Turns
from sublet.train.shards.fits import fits_of
from sublet.train.shards.run import SessionRun
from sublet.train.state.state import State
from sublet.wire.exits import EXIT_MEMORY
from sublet.wire.messages import Finished, Joined

__all__ = ["Copies"]


class Copies(Evaluates):
    """Data parallel, and with the optimizer's state in ranges: as `strategy.Strategy` says."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, dataset: Any, around: Around) -> None:
        options = around.options
        turns = Turns(model, optimizer)
        if turns.several:
            check_fits(SEVERAL, Asked(options))
        self._around, self._model, self._optimizers = around, model, turns.optimizers
        self.steps = steps = Steps(model, turns, dataset, options)
        self.progress, self.position = steps.progress, Position(steps.progress)
        kept = (around.own, options.seed, options.scaler, steps.stream)
        self.state = State(model, turns.together, steps.schedules.all, *kept)
        self.report = Report(around.worker_id, around.link.say, logs=bool(options.trackers))
        members = (None, self.state, self.progress, around.saver, steps.device)
        self.members = Membership(*members, lambda: SessionRun(steps, self.state, around.saver))
        self.writing = Writing(steps, self.state, around.saver)
        self._rehearsed = Rehearsed(model.named_parameters, around.link, around.saver)
        self._late: Any = None  # see end_epoch

    def open(self) -> None:
        """As of any strategy."""
        link = self._around.link
        link.open(fits=lambda: fits_of(self.state))
        self.members.line = link.line
        self.steps.grows = link.line is None
        self.steps.guard()

    def meet(self) -> None:
        """As of any strategy."""
        around, steps = self._around, self.steps
        steps.noise.samples_in_all = self.position.extent.samples(self.progress)
        kept = [] if around.own.kept is None else vars(around.own.kept).values()
        steps.schedules.look_for_others(self._optimizers, kept, strict=around.options.strict)
        self._settle_in(self.members.enter())
        self._rehearsed.begin(self.progress.steps, self.members.group.rank)

    def close(self, error: BaseException | None) -> None:
        """As of any strategy."""
        self.steps.release()
        self._around.saver.close()
        if error is None:
            self.members.group.close()
        elif isinstance(error, torch.OutOfMemoryError):
            self._end_short(error)

    # ------------------------------------------------------------------------------------------- steps

    def begin_epoch(self) -> None:
        """As of any strategy."""
        self.steps.begin_epoch()

    def batches(self) -> Iterator[Any]:
        """This worker's share of the next step, in micro-batches."""
        steps, members = self.steps, self.members
        for batch in steps.batches(members.group, self._around.link.has_order):
            self.position.probes = steps.probe is not None
            yield batch
        cut = steps.take_cut()
        if cut is not None:
            self.report.tell_short(members.group, self.progress, cut)
        if steps.broken is not None:
            self._settle_in(members.recover(steps.give_up(members.group)))
        elif cut is None:
            self.report.count(steps.gradients.wait_s)

    def step(self, given: Any, name: str | None, counted: Any) -> None:
        """As of any strategy."""
        found = self.steps.found(given, counted)
        if found is not None:
            self._around.link.script_waits()
            self.steps.step(found[0], name, found[1])
            self._around.link.script_goes_on()

    def end_epoch(self, epoch: int) -> None:
        """The script is through with what it does after the batches of an epoch.

        A group can break in the last step of an epoch in such a way that one member has applied it and another has not.
        The first goes on, and hands its state to the second when they meet in the next epoch; but the second still has
        to do what comes after the batches, which is in that state already. So it takes it once more afterwards.
        """
        progress = self.progress
        if progress.epoch <= epoch and not self.position.over:
            _leave_epoch(self.steps, self.members.group)
        self._agree_on_kept()
        self._catch_up()
        self.steps.schedules.check()

    def _agree_on_kept(self) -> None:
        """What rank 0 keeps counts: others may not have evaluated, and one of them may be rank 0 next."""
        if self._late is None and self._around.own.kept is not None and self._all_are_here:
            told = (self.steps.gradients, self.members.group, self.steps.drift, self.progress)
            state = state_of_rank_0(*told, self._around.own.state_of_kept())
            if state is not None and self.members.group.rank != 0:
                self._around.own.load_kept(state)

    def _catch_up(self) -> None:
        if self._late is not None:
            batch = self.progress.batch  # the plan may have changed it since
            self.state.restore(self._late, self.progress, same_dice=False, rank=self.members.group.rank)
            self._late, self.progress.batch = None, batch

    # ------------------------------------------------------------------------------------------- between steps

    def boundary(self) -> None:
        """As of any strategy."""
        line, members = self._around.link.line, self.members
        self._rehearsed.come_to(self.progress.steps, members.group.rank, members.group.world, lambda: self.loss)
        self.steps.schedules.check()
        self.steps.schedules.end_epochs(self.progress)
        numbers, group = self.steps.readings.numbers, members.group
        if group.world > 1:
            self.steps.drift.require_together(group, self.progress, left=numbers[LEFT], evaluate=numbers[EVALUATED])
        if numbers[DOUBT] > 0.0:
            try:
                self.steps.drift.require_equal(members.group, self.progress)
            except Broken as error:
                self._settle_in(members.recover(str(error)))
        due = self._rehearsed.saves(self.progress.steps)
        asked = members.group.rank == 0 and (self._around.link.take_save_request() or due)
        try:
            agreed = self.steps.readings.numbers[SAVE] > 0.0
            self.writing.tick(WALL.monotonic(), members.group, asked=asked, agreed=agreed)
        except Broken as error:
            self._settle_in(members.recover(str(error)))
        if asked and self._around.profiles:
            self.report.tell_nothing_to_save(self.progress)
        self.report.tick(members.group, self.steps, self.loss, self._around.saver)
        if line is None:
            return
        if line.gone:
            lost("the agent has closed the line")
        if self.steps.readings.numbers[ORDERS] > 0.0 or (line.pending and not self.steps.gradients.shared):
            self._settle_in(members.change())

    def _settle_in(self, entry: Entry) -> None:
        """In a new group: make gradients fit it, and say that we are there."""
        progress, members = self.progress, self.members
        group = members.group
        self.steps.settle_in(group)
        self._around.log.settle(group.rank)
        handed, redone = members.take_handed(), members.take_redone()
        if self.position.past_epoch and handed is not None:
            self._late = copy.deepcopy(handed)  # the optimizer may have taken its tensors over
        self.steps.memory.limit(entry.micro_batch)
        self.steps.obey(entry.batch)
        self.report.restart()
        self._around.link.say(
            Joined(
                worker_id=self._around.worker_id,
                generation=group.generation,
                step=progress.steps,
                done=float(progress.done),
                work=float(self.position.extent.samples(progress)),
                global_batch=progress.batch,
                source="checkpoint" if redone else entry.source,
                redone_steps=redone,
                formed_s=entry.formed_s,
                state_s=entry.state_s,
                printed=printed(),
                moved_bytes=members.moved_bytes,
            )
        )

    def _end_short(self, error: BaseException) -> None:
        """What did not fit was the script's own: its loop is left, and only another process can go on with it."""
        cut = self.steps.cut_given()
        if cut is not None and self._around.link.line is not None:
            self.report.tell_short(self.members.group, self.progress, cut, ends=True)
            raise SystemExit(EXIT_MEMORY)
        if cut is not None:
            error.add_note(cut.advice)

    def finish(self) -> None:
        """As of any strategy."""
        self._catch_up()
        self.steps.schedules.end_epochs(self.progress)
        self.position.extent.end(self.progress)
        self._end()

    def _end(self) -> None:
        """All is done, and alike in all ranks: the last checkpoint, the last word, nobody goes before it is said."""
        while True:
            progress, group = self.progress, self.members.group
            try:
                if group.world > 1 and not self.position.extent.reached(progress):
                    with talking():
                        left_together(self.steps.gradients, group, self.steps.drift, progress)
                if group.world > 1:
                    self.steps.drift.require_equal(group, progress)
                    self.writing.collect(group)
            except Broken as error:
                self._settle_in(self.members.recover_behind(str(error)))
                continue
            if group.rank == 0:
                stale = None
                self._around.link.script_goes_on()  # it may be tried for a while, which is not to look like a hang
                try:
                    self._around.saver.save_last(self.state.tree(progress), progress, group.world)
                except StaleWriter as error:
                    if self._around.link.line is None:
                        raise
                    stale = str(error)
                finally:
                    self._around.link.script_waits()
                if stale is not None:  # a newer group has begun: it has the last word
                    self._settle_in(self.members.recover_behind(stale))
                    continue
                step, done, loss = progress.steps, float(progress.done), self.steps.readings.numbers[LOSS]
                self._around.link.say(Finished(worker_id=self._around.worker_id, step=step, done=done, loss=loss))
            if group.world == 1:
                return
            try:
                with talking():
                    group.all_reduce(torch.zeros(1))
            except Broken as error:
                if group.rank == 0 or self._around.link.line is None:
                    return
                self._settle_in(self.members.recover_behind(str(error)))
            else:
                return


def _leave_epoch(steps: Steps, group: PeerGroup) -> None:
    """The script leaves an epoch before its samples are through: `break` in `for batch in s`, and on to the next one.

    It is right if all leave it at the same step, and so each says that it has: whoever trains on takes that for the sum
    of its step, and learns of it there. Whoever is lost on the way is missed in the next step.

    InvalidValue if it took none, or left amid a step; RanksDiffer if others train on.
    """
    progress = steps.progress
    if allowed := _refused(steps):
        left = f"left after {progress.offset} of {progress.samples} samples"
        raise InvalidValue(f"epoch {progress.epoch}", left, allowed)
    progress.end_epoch()
    if group.world == 1:
        return
    try:
        left_together(steps.gradients, group, steps.drift, progress)
    except BROKEN:
        group.hang_up()  # the next sum breaks too, and that one is recovered from


def _refused(steps: Steps) -> str:
    """What is to be done instead; "" if it may be left."""
    if not steps.progress.begun:
        return "trained by `for batch in s`: nothing was taken from the session in it"
    if steps.under_way:
        return "left where s.updated is true: `if s.updated and ...: break`"
    if steps.stream is not None or steps.adaptive is not None:
        return "trained to its end by `for batch in s`: of a stream, or with a batch that grows, steps=N ends training"
    return ""
