"""A training run in the user's own loop.

    epochs()    the epochs that are left, from the one that training is in
    batches()   boundary: orders, checkpoints  ->  this worker's share of the next step, in micro-batches
    step(loss)  backward; after the last micro-batch: sum over the group, update, report

The update happens in `step`, everything that may take time or end the process in `epochs` and `batches`. A step whose
group breaks is dropped without a trace and its samples are given again.

What a script does after the batches of an epoch (schedulers, evaluation) may change the state. So nobody joins and
nothing is saved between the last step of an epoch and the end of that: whoever comes begins with the next epoch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import torch

from sublet.errors import InvalidValue, StaleWriter
from sublet.machine.wall import WALL
from sublet.train.beside import left_together, state_of_rank_0
from sublet.train.early_end import leave_epoch
from sublet.train.evaluating import Evaluates
from sublet.train.extent import Extent, begin, extent_of
from sublet.train.following import Broken, Entry
from sublet.train.gradients import DOUBT, LOSS, ORDERS, SAVE
from sublet.train.kept import Keeps, Own
from sublet.train.link import ControllerLink
from sublet.train.membership import Membership
from sublet.train.options import Options
from sublet.train.peers import talking
from sublet.train.place import checkpoint_place
from sublet.train.profiling import ENDLESS, is_profiled, nothing_to_save
from sublet.train.rehearsal import Rehearsed, rehearsed_options
from sublet.train.report import Report, printed
from sublet.train.saving import Saver
from sublet.train.shards.fits import fits_of
from sublet.train.shards.run import SessionRun
from sublet.train.state import State
from sublet.train.steps import Steps
from sublet.train.tracking import Log, run_name
from sublet.train.turns import Turns, as_one_module, check_several
from sublet.train.writing import Writing
from sublet.wire.exits import EXIT_MEMORY
from sublet.wire.messages import Finished, Joined

__all__ = ["Options", "Session"]


class Session(Evaluates, Keeps):
    """See `sublet.train.session`, which makes one."""

    def __init__(self, model: Any, optimizer: Any, dataset: Any, options: Options) -> None:
        self._model = as_one_module(model)
        self.options = options = rehearsed_options(options, self._model)
        turns = Turns(self._model, optimizer)
        if turns.several:
            check_several(options)
        self._optimizers, self._steps = turns.optimizers, Steps(self._model, turns, dataset, options)
        steps = self._steps
        self._progress, self._readings, self._schedules = steps.progress, steps.readings, steps.schedules
        self._own = Own(options.extra_state, [self._model])
        kept = (self._own, options.seed, options.scaler, self._steps.kept_samples)
        self._state = State(self._model, turns.together, self._schedules.all, *kept)
        self._worker_id = os.environ.get("SUBLET_WORKER_ID", "")
        self._link = ControllerLink(self._worker_id)
        self._report = Report(self._worker_id, self._link.say, logs=bool(options.trackers))
        self._profiles = is_profiled()
        where = None if self._profiles else checkpoint_place(options.checkpoint_dir, os.environ)
        self._saver = Saver(where, self._worker_id or "alone", self._link.say)
        self._log = Log(() if self._profiles else options.trackers, self._link, run_name(os.environ, where))
        self._members = Membership(
            None,
            self._state,
            self._progress,
            self._saver,
            self._steps.device,
            lambda: SessionRun(self._steps, self._state, self._saver),
        )
        self._writing = Writing(self._steps, self._state, self._saver)
        self._rehearsed = Rehearsed(self._model.named_parameters, self._link, self._saver)
        self._is_behind = False  # see Evaluates
        self._open = self._entered = self._over = False
        self._extent = Extent(epochs=0)  # of the whole training
        self._until: int | None = None  # within epochs(): epochs that are over when the one under way is
        self._late: Any = None  # see _end_epoch

    # ------------------------------------------------------------------------------------------- the loop

    def __enter__(self) -> Self:
        self._link.open(fits=lambda: fits_of(self._state))
        self._members.line = self._link.line
        self._steps.grows = self._link.line is None
        self._steps.guard()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.script_waits()
        ended = False
        try:
            if kind is None and self._entered:
                self._catch_up()
                self._schedules.end_epochs(self._progress)
                self._extent.end(self._progress)
                self._finish()
            ended = kind is None
        finally:
            self._open = False
            self._steps.release()
            self._saver.close()
            self._log.close(finished=ended)
        if kind is None:
            self._members.group.close()
        elif isinstance(error, torch.OutOfMemoryError):
            self._end_short(error)

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, counted from 0; `for batch in s` gives their batches.

        With `steps=N` the last may end early.
        Training that resumes, and a worker that joins, begin with the epoch that training is in, and with the rest of
        it. What the script does after the batches of an epoch is done once for each epoch.
        """
        if self.options.epochs is None and self.options.steps is None:
            raise InvalidValue("epochs", None, "given to the session: train.session(..., epochs=10), or steps=1000")
        if self._entered:
            raise InvalidValue("epochs()", "a second call", "called once, before any batches()")
        extent = self._told()
        self._begin(extent)
        while True:
            self._boundary()
            epoch = self._progress.epoch
            if self._extent.over(self._progress):
                break
            self._until = ENDLESS if self._profiles else epoch + 1
            self._is_behind = self._progress.begun
            self._link.script_goes_on()
            yield epoch if self.options.epochs is None else min(epoch, self.options.epochs - 1)
            self._link.script_waits()
            self._end_epoch(epoch)
        self._over = True
        self._link.script_goes_on()

    def batches(self, epochs: int | None = None) -> Iterator[Any]:
        """The micro-batches of this worker: within `epochs()` those of the epoch, otherwise of the whole training.

        `epochs` counts from the first of the whole training, and can be given to the session instead. What was trained
        before a resume is not trained again.
        """
        if self._until is not None:
            if epochs is not None:
                raise InvalidValue("batches(epochs=...)", epochs, "batches() within epochs(), or `for batch in s`")
            if self._progress.epoch >= self._until:
                raise InvalidValue("batches()", "a second call", "called once for each epoch of epochs()")
            self._is_behind, self._progress.begun = False, True
            yield from self._until_epoch(self._until)
            self._link.script_goes_on()
            return
        told = self._told(epochs)
        if self._entered and (self._over or told != self._extent):
            raise InvalidValue(
                f"batches(epochs={told.epochs})",
                f"a call after batches(epochs={self._extent.epochs})",
                "called once, for the whole training, because a worker that joins later would go through all epochs "
                "again; for something after each epoch: train.session(..., epochs=N), and then "
                "`for epoch in s.epochs():` around `for batch in s:`",
            )
        self._begin(told)
        yield from self._until_epoch(ENDLESS)
        self._boundary()
        self._over = True
        self._link.script_goes_on()

    def __iter__(self) -> Iterator[Any]:
        """As `batches()`."""
        return self.batches()

    def _told(self, epochs: int | None = None) -> Extent:
        if not self._open:
            raise InvalidValue("session", "not open", "entered: `with train.session(...) as s:`")
        return extent_of(self.options, epochs)

    def _begin(self, extent: Extent) -> None:
        """Before the first step: what is to be done, and our first group."""
        if not self._entered:
            self._entered, self._extent = True, extent
            self._own.begin()
            self._steps.noise.samples_in_all = extent.samples(self._progress)
            kept = [] if self._own.kept is None else vars(self._own.kept).values()
            self._schedules.look_for_others(self._optimizers, kept, strict=self.options.strict)
            self._settle_in(self._members.enter())
            self._rehearsed.begin(self._progress.steps, self.rank)
            begin(extent, self._progress, self._saver.directory, speaks=self.rank == 0)

    def _until_epoch(self, epochs: int) -> Iterator[Any]:
        progress, began = self._progress, -1
        self._link.script_waits()
        while progress.epoch < epochs and not self._extent.over(progress):
            self._boundary()
            if progress.epoch >= epochs or self._extent.over(progress):  # the others were past its end
                return
            if began != progress.epoch or not progress.offset:
                began = progress.epoch
                self._steps.begin_epoch()
            for batch in self._steps.batches(self._members.group, self._link.has_order):
                self._link.script_goes_on()
                yield batch
                self._link.script_waits()
            cut = self._steps.take_cut()
            if cut is not None:
                self._report.tell_short(self._members.group, progress, cut)
            if self._steps.broken is not None:
                self._settle_in(self._members.recover(self._steps.give_up(self._members.group)))
            elif cut is None:
                self._report.count(self._steps.gradients.wait_s)

    def _end_epoch(self, epoch: int) -> None:
        """The script is through with what it does after the batches of an epoch.

        A group can break in the last step of an epoch in such a way that one member has applied it and another has not.
        The first goes on, and hands its state to the second when they meet in the next epoch; but the second still has
        to do what comes after the batches, which is in that state already. So it takes it once more afterwards.
        """
        progress = self._progress
        if progress.epoch <= epoch and not self._extent.over(progress):
            leave_epoch(self._steps, self._members.group)
        self._agree_on_kept()
        self._catch_up()
        self._schedules.check()

    def _agree_on_kept(self) -> None:
        """What rank 0 keeps counts: others may not have evaluated, and one of them may be rank 0 next."""
        if self._late is None and self._own.kept is not None and self._all_are_here:
            told = (self._steps.gradients, self._members.group, self._steps.drift, self._progress)
            state = state_of_rank_0(*told, self._own.state_of_kept())
            if state is not None and self.rank != 0:
                self._own.load_kept(state)

    @property
    def _past_epoch(self) -> bool:
        """Within epochs(): the batches of the epoch are behind us, and what the script does after them is not."""
        return self._until is not None and (self._progress.epoch >= self._until or self._extent.over(self._progress))

    @property
    def _between_batches(self) -> bool:
        """Within epochs(): all workers are between the batches of two epochs, those without samples too."""
        return self._past_epoch or (self._until is not None and not self._progress.begun)

    def _catch_up(self) -> None:
        if self._late is not None:
            batch = self._progress.batch  # the plan may have changed it since
            self._state.restore(self._late, self._progress, same_dice=False, rank=self.rank)
            self._late, self._progress.batch = None, batch

    def step(self, loss: Any, name: str | None = None, *, counted: torch.Tensor | float | None = None) -> float:
        """Backward from the loss over the micro-batch; after the last one of the step, update the model; `s.loss`.

        It is given the loss or, if the session has `loss=`, the batch. Of several optimizers each has its turn for
        every batch, in their order; `name` says whose loss it is. Given a function that computes the loss, this process
        survives if that does not fit into memory: the samples come again, fewer at a time. With `reduction="counted"`
        the loss is a sum over `counted` things, such as tokens.
        """
        found = self._steps.found(loss, counted)
        if found is not None:
            self._link.script_waits()
            self._steps.step(found[0], name, found[1])
            self._link.script_goes_on()
        return self.loss

    # ------------------------------------------------------------------------------------------- between steps

    def _boundary(self) -> None:
        line, members = self._link.line, self._members
        self._rehearsed.come_to(self._progress.steps, members.group.rank, members.group.world, lambda: self.loss)
        self._schedules.check()
        self._schedules.end_epochs(self._progress)
        numbers, group = self._readings.numbers, members.group
        if group.world > 1:
            self._steps.drift.require_together(numbers, group, self._progress)
        if numbers[DOUBT] > 0.0:
            try:
                self._steps.drift.require_equal(members.group, self._progress)
            except Broken as error:
                self._settle_in(members.recover(str(error)))
        due = self._rehearsed.saves(self._progress.steps)
        asked = members.group.rank == 0 and (self._link.take_save_request() or due)
        try:
            agreed = self._readings.numbers[SAVE] > 0.0
            self._writing.tick(WALL.monotonic(), members.group, asked=asked, agreed=agreed)
        except Broken as error:
            self._settle_in(members.recover(str(error)))
        if asked and self._profiles:
            self._link.say(nothing_to_save(self._worker_id, self._progress))
        self._report.tick(members.group, self._steps, self.loss, self._saver)
        if line is None:
            return
        if line.gone:
            members.lost("the agent has closed the line")
        if self._readings.numbers[ORDERS] > 0.0 or (line.pending and not self._steps.gradients.shared):
            self._settle_in(members.change())

    def _settle_in(self, entry: Entry) -> None:
        """In a new group: make gradients fit it, and say that we are there."""
        progress, members = self._progress, self._members
        group = members.group
        self._steps.settle_in(group)
        self._log.settle(group.rank)
        handed, redone = members.take_handed(), members.take_redone()
        if self._past_epoch and handed is not None:
            self._late = copy.deepcopy(handed)  # the optimizer may have taken its tensors over
        self._steps.memory.limit(entry.micro_batch)
        self._steps.obey(entry.batch)
        self._report.restart()
        self._link.say(
            Joined(
                worker_id=self._worker_id,
                generation=group.generation,
                step=progress.steps,
                done=float(progress.done),
                work=float(self._extent.samples(progress)),
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
        cut = self._steps.cut_given()
        if cut is not None and self._link.line is not None:
            self._report.tell_short(self._members.group, self._progress, cut, ends=True)
            raise SystemExit(EXIT_MEMORY)
        if cut is not None:
            error.add_note(cut.advice)

    def _finish(self) -> None:
        """All is done, and alike in all ranks: the last checkpoint, the last word, nobody goes before it is said."""
        while True:
            progress, group = self._progress, self._members.group
            try:
                if group.world > 1 and not self._extent.reached(progress):
                    with talking():
                        left = left_together(self._steps.gradients, group)
                    self._steps.drift.require_all_left(left, group, progress)
                if group.world > 1:
                    self._steps.drift.require_equal(group, progress)
                    self._writing.collect(group)
            except Broken as error:
                self._settle_in(self._members.recover_behind(str(error)))
                continue
            if group.rank == 0:
                stale = None
                self._link.script_goes_on()  # it may be tried again for a while, which is not to look like a hang
                try:
                    self._saver.save_last(self._state.tree(progress), progress, group.world)
                except StaleWriter as error:
                    if self._link.line is None:
                        raise
                    stale = str(error)
                finally:
                    self._link.script_waits()
                if stale is not None:  # a newer group has begun: it has the last word
                    self._settle_in(self._members.recover_behind(stale))
                    continue
                step, done, loss = progress.steps, float(progress.done), self._readings.numbers[LOSS]
                self._link.say(Finished(worker_id=self._worker_id, step=step, done=done, loss=loss))
            if group.world == 1:
                return
            try:
                with talking():
                    group.all_reduce(torch.zeros(1))
            except Broken as error:
                if group.rank == 0 or self._link.line is None:
                    return
                self._settle_in(self._members.recover_behind(str(error)))
            else:
                return
