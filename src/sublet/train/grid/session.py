"""A training run of a model that may be cut into parts, in the user's own loop.

    batches()              one handle for each step: what is in it is loaded by whoever needs it
    step(loss_of, batch)   the session calls `loss_of` for each micro-batch, when its schedule wants it
    evaluate(loss_of, ..)  forward alone, by all copies

`loss_of` gets a collated micro-batch and returns its mean loss. Every part calls it with the same samples, and the
model is a part of itself meanwhile (`cutting`). A step whose grid breaks is made again, or was made by others: `step`
returns when it is applied; so it is with an evaluation (`judging`). Newcomers begin with a step, so the grid changes
where one begins. Where others are at another step than the loop has come to, as at a newcomer, `step` makes none, and
the loop comes by once more (`whereabouts`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

import torch

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue, StaleWriter
from sublet.train.agent_line import Lost as LineLost
from sublet.train.fitness import check_optimizer
from sublet.train.following import Broken
from sublet.train.footprint import gauge_of
from sublet.train.grid.atoms import Atom, loaded
from sublet.train.grid.attention import PlainAttention
from sublet.train.grid.awaited import awaited
from sublet.train.grid.calling import Calling, LossOf
from sublet.train.grid.course import Course
from sublet.train.grid.cutting import Cut
from sublet.train.grid.dice import AT_BATCH, STEPPED
from sublet.train.grid.fits import check_fits, check_not_compiled
from sublet.train.grid.gathering import Gathered, Gathering
from sublet.train.grid.given import FIRST, Given, check_again, in_hand, lines
from sublet.train.grid.gloo import GlooMesh, Lines
from sublet.train.grid.guard import Guard
from sublet.train.grid.holdings import sizes_of
from sublet.train.grid.judging import Judges
from sublet.train.grid.mark import mark_of
from sublet.train.grid.member import Member
from sublet.train.grid.outcome import Lost as PartLost
from sublet.train.grid.outcome import Stepped
from sublet.train.grid.proving import Proving
from sublet.train.grid.remembering import Remembering
from sublet.train.grid.saving import Vault
from sublet.train.grid.seat import Seat, parts_of
from sublet.train.grid.telling import Telling
from sublet.train.grid.whereabouts import BATCH, CALL, END
from sublet.train.grid.whole import Whole
from sublet.train.kept import Keeps, Own
from sublet.train.link import ControllerLink
from sublet.train.membership import ORDER_S, lost
from sublet.train.options import Options
from sublet.train.place import checkpoint_place
from sublet.train.profiling import is_profiled
from sublet.train.samples import Samples
from sublet.train.saving import Saver
from sublet.train.schedules import Schedules
from sublet.train.shards.fits import memory_of
from sublet.train.state import Progress, State
from sublet.train.tracking import Log, run_name
from sublet.train.verdict import Verdict
from sublet.wire.exits import EXIT_MEMORY
from sublet.wire.messages import Finished

__all__ = ["GridSession", "Step"]

LEAVES = "the end of the session waits for the other workers; every one leaves its loop at the same step"


class Step:
    """What `batches()` gives: a step to be made. Its samples are loaded where they are needed, part by part."""

    called = False  # `step`, with it


class GridSession(Judges, Keeps):
    """See `sublet.train.session`, which makes one where `parts` are given."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, options: Options
    ) -> None:
        check_fits(model, optimizer, options)
        check_optimizer(optimizer)
        self.options, self._model, self._optimizer = options, model, optimizer
        device = None if options.device is None else torch.device(options.device)
        if device is not None:
            model.to(device)
        assert options.parts is not None  # noqa: S101 - that is why we are here
        self._cut = Cut(model, options.parts.name)
        self._device = device
        self._samples = Samples(dataset, options.seed, options.collate, device)
        self._schedules = Schedules(options.schedulers, optimizer)
        self._progress = Progress(samples=self._samples.count, batch=options.global_batch)
        self._micro_batch: int = options.micro_batch or 0
        self._link = ControllerLink(os.environ.get("SUBLET_WORKER_ID", ""))
        where = None if is_profiled() else checkpoint_place(options.checkpoint_dir, os.environ)
        self._saver = Saver(where, self._link.worker_id or "alone", self._link.say)
        self._log = Log(() if is_profiled() else options.trackers, self._link, run_name(os.environ, where))
        self._vault: Vault | None = None
        self._member: Member | None = None
        self._gathering: Gathering | None = None
        self._mesh = GlooMesh(Lines(), "alone", 0, 1)
        self._seat = Seat(copy=0, part=0, copies=1, parts=parts_of(len(self._cut.blocks), 1))
        self._generation = self._epochs = 0
        self._open = self._is_behind = False  # its `with`; and its loop
        self._ordered = False  # all have heard at the end of a step that there are orders: they change before the next
        self._evaluations = 0  # that the script has asked for since the last step
        gauge = gauge_of(next(model.parameters()).device)
        self._telling = Telling(self._link, self._saver, gauge, logs=bool(options.trackers))
        self._guard, self._attention = Guard(model, optimizer), PlainAttention()
        self._call, self._given = Calling(self._guard), Given()
        self._own, self._verdict = Own(options.extra_state, [model]), Verdict()
        self._course = Course(self._progress, self._schedules, optimizer, self._own, self._saver)

    # ------------------------------------------------------------------------------------------- the loop

    def __enter__(self) -> Self:
        self._schedules.find()
        self._link.open(
            lambda: sizes_of(self._model, self._cut.blocks, self._optimizer), lambda: memory_of(self._model)
        )
        self._guard.begin()
        self._attention.begin()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.script_waits()
        try:
            if self._member is not None and (kind is None or (isinstance(error, SystemExit) and not error.code)):
                with self._verdict:
                    self._leave_loop()
                    self._course.require_counted()
                    if kind is None:
                        self._finish()
        except InvalidValue as refused:
            error = refused
            raise
        finally:
            self._open = False
            self._guard.end()
            self._attention.end()
            self._cut.close()
            self._log.close(finished=kind is None and not self._verdict.is_said)
            if self._vault is not None:
                self._vault.close()
            if self._gathering is not None:
                self._leave_grid(self._gathering, error)
        if isinstance(error, torch.OutOfMemoryError) and self._link.line is not None:
            self._telling.short(self._generation, self._progress, self._micro_batch, ends=True)
            raise self._verdict.of(SystemExit(EXIT_MEMORY))

    def _leave_grid(self, gathering: Gathering, error: BaseException | None) -> None:
        ended = isinstance(error, SystemExit | torch.OutOfMemoryError)  # which is told in words of its own
        if error is None or ended or self._progress.epoch >= self._epochs:
            gathering.drop()
        else:
            gathering.fail(error)

    def epochs(self) -> NoReturn:
        """Not with parts: which epoch it is, a newcomer learns with its first step."""
        raise InvalidValue("epochs()", "a call", "s.batches(epochs=N) where the model is cut; s.epoch says where it is")

    def batches(self, epochs: int | None = None) -> Iterator[Step]:
        """One handle for each step that is left; `epochs` counts from the first of the whole training."""
        total = epochs or self.options.epochs
        if total is None or (self.options.epochs or total) != total:
            raise InvalidValue("epochs", epochs, "said once: train.session(..., epochs=10)")
        whole("epochs", total, 1)
        if not self._open or self._epochs:
            raise InvalidValue("batches()", "a call", "one, in `with train.session(...) as s:`")
        self._epochs, self._lines = total, lines()
        self._course.remembers = Remembering(self._cut, self._optimizer, self._samples.called)
        self._course.come_to(BATCH, self._losses)
        while self._course.seen.epoch < total:
            self._throw(AT_BATCH)
            batch = Step()
            with self._left():
                yield batch
            if not batch.called:
                raise InvalidValue("step", "no call", "called once for every batch of batches()")
            self._course.come_to(BATCH, self._losses)
        self._is_behind = True

    def __iter__(self) -> Iterator[Step]:
        """As `batches()`."""
        return self.batches()

    def step(self, loss_of: LossOf | torch.Tensor, batch: Step | None = None) -> None:
        """Make the step with all others; `loss_of(micro_batch)` is called for each micro-batch that is ours.

        Where training is at another step than the loop, since this worker has joined or all went back to a checkpoint,
        none is made: `s.steps`, `s.loss` and evaluations are those of the last step, and the loop goes on from there.
        """
        if isinstance(loss_of, torch.Tensor) or not isinstance(batch, Step):
            hint = "s.step(loss_of, batch) where the model is cut: the function itself, and what batches() gave"
            raise InvalidValue("step", f"{type(loss_of).__name__}, {type(batch).__name__}", hint)
        with self._verdict:
            if batch.called:  # who joins makes none in its first call: with two of them it would be one call behind
                hint = "called once for every batch of batches(): add the losses in one loss_of"
                raise InvalidValue("step", "a second call for one batch", hint)
            batch.called = True
            self._make(loss_of)

    def _make(self, loss_of: LossOf) -> None:
        self._guard.check_frozen()
        self._link.script_waits()
        progress = self._progress
        self._look_at_dice()
        if self._given.is_new(loss_of):
            check_not_compiled(self._model, loss_of)
        sign = "" if self._member is None else self._given.sign(loss_of)
        if self._course.goes_over:
            check_again(sign, self._course.gave, progress.steps)
        self._course.come_to(CALL)
        before, self._evaluations = progress.steps, 0
        member = self._member or self._begin(loss_of)
        member.alike.given = self._course.given = sign or self._given.sign(loss_of)
        if self._alike and not self._course.to_step:
            member.judged = []  # by the pass before this one, which may have left some out
        if self._ordered:
            self._settle_in(self._following(lambda gathering: gathering.change()))
        while self._course.to_step and progress.steps == before and progress.epoch < self._epochs:
            if parts := self._link.take_keeps():
                member.keep(self._seat, parts)
            why = ""
            member.alike.check_step(progress.steps, member.applied)
            try:
                found: Stepped | None = member.step(
                    self._mesh,
                    self._seat,
                    lambda atom: self._call(loss_of, loaded(self._samples, progress.epoch, atom), atom),
                    offset=progress.offset,
                    size=progress.size,
                    micro_batch=self._micro_batch,
                    orders=self._link.has_order(),
                )
            except Broken as error:
                self._recover(str(error))
                continue
            except torch.OutOfMemoryError as error:
                if self._link.line is None or member.pending >= 0:  # alone nobody helps; an update may be half made
                    raise
                found, why = None, str(error)  # the graph goes with the frames of the error, when we have left it
            if found is None:
                self._telling.short(self._generation, self._progress, self._micro_batch, ends=False)
                self._recover(why)
                continue
            self._telling.stepped(found, self._progress, self._seat, self._micro_batch)
            self._ordered = found.orders
        self._schedules.check()
        self._throw(STEPPED)
        self._link.script_goes_on()

    # ------------------------------------------------------------------------------------------- between steps

    def _begin(self, loss_of: LossOf) -> Member:
        """With the user's function in hand: what is before the blocks and what after them, and our first grid."""
        self._schedules.find_late()
        self._own.begin()
        if self._course.remembers is not None:
            known = {FIRST: loss_of, **in_hand(self._lines), **self._schedules.called}
            self._given.know(self._course.remembers.also(known))
        atom = Atom(0, min(self._micro_batch, self._samples.count))
        self._cut.learn(lambda: self._call(loss_of, loaded(self._samples, 0, atom), atom))
        self._member = member = Member(
            self._model,
            self._cut,
            self._optimizer,
            seed=self.options.seed,
            clip_norm=self.options.clip_norm,
            beside=self._course,
            guard=self._guard,
        )
        member.first = Proving(
            self._cut,
            (atom, Atom(0, 1)),
            self._samples,
            partial(self._call, loss_of),
            self._link,
            self._progress,
            partial(mark_of, self._cut, loss_of),
        )
        state = State(self._model, self._optimizer, self._schedules.all, self._own, self.options.seed)
        whole = Whole(state, self._progress, self._cut, member.holdings, self._course, lambda: member.loss)
        self._vault = member.vault = Vault(self._saver, whole, member.holdings, self._progress, self._link)
        if self._link.line is None:
            member.meet(self._mesh, self._seat)
            return member
        wait_s = float(os.environ.get("SUBLET_ORDER_WAIT_S", ORDER_S))
        self._gathering = Gathering(self._link.line, member, wait_s=wait_s, done=lambda: float(self._progress.done))
        self._settle_in(self._following(lambda gathering: gathering.follow()))
        return member

    def _recover(self, why: str) -> None:
        steps = self._progress.steps
        self._settle_in(self._following(lambda gathering: gathering.recover(why)))
        gone_back = self._progress.steps < steps or (self._went_back and self._course.at != END)
        if self._is_behind and gone_back:  # the script has left its loop: it takes another process to go on
            lost(f"all went back to step {self._progress.steps} when the last one was made")

    def _following(self, into: Callable[[Gathering], Gathered]) -> Gathered:
        assert self._gathering is not None  # noqa: S101 - alone nothing breaks, and nobody gives orders
        try:
            return into(self._gathering)
        except LineLost as error:
            lost(str(error))
        except PartLost:
            lost("a part of the model is with nobody any more")

    def _settle_in(self, gathered: Gathered) -> None:
        """In a new grid: say that we are there."""
        self._ordered = False
        assert self._gathering is not None  # noqa: S101 - it brought us here
        assert self._gathering.mesh is not None  # noqa: S101 - it has just been formed
        self._mesh, self._seat, self._generation = self._gathering.mesh, gathered.seat, gathered.order.generation
        self._log.settle(self._mesh.rank)
        self._telling.joined(gathered, self._progress, self._epochs)

    def _finish(self) -> None:
        """All is done, or left, at all alike: the last checkpoint, the last word, and nobody goes before it is said."""
        self._course.come_to(END)
        progress = self._progress
        while True:
            try:
                if progress.epoch < self._epochs:
                    with awaited(LEAVES):
                        self._mesh.sum(torch.zeros(1), self._seat.everyone())
                self._save_last()
            except (Broken, StaleWriter) as error:  # of the latter: a newer grid has begun, which has the last word
                if self._link.line is None:
                    raise
                self._recover(str(error))
                continue
            if self.rank == 0:
                self._link.say(
                    Finished(
                        worker_id=self._link.worker_id, step=progress.steps, done=float(progress.done), loss=self.loss
                    )
                )
            try:
                self._mesh.sum(torch.zeros(1), self._seat.everyone())
                self._mesh.part(self._seat.everyone())
            except Broken as error:
                if self.rank == 0:
                    return
                self._recover(str(error))
            else:
                return

    def _save_last(self) -> None:
        assert self._vault is not None  # noqa: S101 - steps were made
        self._link.script_goes_on()  # it may be tried again for a while, which is not to look like a hang
        try:
            self._vault.save_last(self._mesh, self._seat.everyone())
        finally:
            self._link.script_waits()
