"""A training run of a model in stages, in the user's own loop.

    epochs()      the epochs that are left, from the one that training is in
    batches()     one handle for each step: what is in it is loaded by the workers that need it
    step(batch)   all make the step; one in which a worker is lost is made again
    evaluate(..)  forward alone, by all copies

Newcomers begin with a step. Until it is made, those who were there may still be in the lines after the one before, or
behind a loop that ends: what they come to, `_together` tells the newcomers, which take their part in evaluations and
have the state of the others as it is when the step begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import torch

from sublet.errors import InvalidValue, RanksDiffer, StaleWriter
from sublet.train.agent_line import Lost as LineLost
from sublet.train.extent import Extent, begin, extent_of
from sublet.train.fitness import check_optimizer
from sublet.train.following import Broken
from sublet.train.footprint import gauge_of
from sublet.train.grid.atoms import Atom, loaded
from sublet.train.grid.awaited import awaited
from sublet.train.grid.course import Course
from sublet.train.grid.fits import check_fits
from sublet.train.grid.gathering import Gathered, Gathering
from sublet.train.grid.gloo import GlooMesh, Lines
from sublet.train.grid.guard import Guard
from sublet.train.grid.holdings import sizes_of
from sublet.train.grid.judging import END, SAME, STEP, Judges
from sublet.train.grid.member import Member
from sublet.train.grid.outcome import Lost as PartLost
from sublet.train.grid.outcome import Stepped
from sublet.train.grid.pipeline import Work
from sublet.train.grid.saving import Vault
from sublet.train.grid.seat import Seat, parts_of
from sublet.train.grid.stages import Staged
from sublet.train.grid.telling import Telling
from sublet.train.grid.whole import Whole
from sublet.train.kept import Keeps, Own
from sublet.train.link import ControllerLink
from sublet.train.membership import ORDER_S, lost
from sublet.train.options import Options
from sublet.train.place import checkpoint_place
from sublet.train.profiling import ENDLESS, is_profiled
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
    """See `sublet.train.session`, which makes one where the model is to be trained in stages."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, options: Options
    ) -> None:
        check_fits(model, optimizer, options)
        check_optimizer(optimizer)
        self.options, self._model, self._optimizer = options, model, optimizer
        self._device = None if options.device is None else torch.device(options.device)
        if self._device is not None:
            model.to(self._device)
        self._staged = Staged(model)
        self._samples = Samples(dataset, options.seed, options.collate, self._device)
        self._schedules = Schedules(options.schedulers, optimizer, every=options.scheduler_every)
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
        self._seat = Seat(copy=0, part=0, copies=1, parts=parts_of(len(self._staged.blocks), 1))
        self._generation = 0
        self._open = self._is_over = False  # its `with`; training, which the others have left
        self._ordered = False  # all have heard at the end of a step that there are orders: they change before the next
        self._extent = Extent(epochs=0)  # of the whole training
        self._until: int | None = None  # within epochs(): epochs that are over when the one under way is
        gauge = gauge_of(self._staged.device)
        self._telling = Telling(self._link, self._saver, gauge, logs=bool(options.trackers))
        self._guard = Guard(model, optimizer)
        self._own, self._verdict = Own(options.extra_state, [model]), Verdict()
        self._course = Course(self._progress, self._schedules, optimizer, self._own, self._saver, model)

    # ------------------------------------------------------------------------------------------- the loop

    def __enter__(self) -> Self:
        self._schedules.find()
        self._link.open(
            lambda: sizes_of(self._model, self._staged.blocks, self._optimizer), lambda: memory_of(self._model)
        )
        self._guard.begin()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.script_waits()
        try:
            if kind is None and self._member is not None:
                with self._verdict:
                    self._schedules.end_epochs(self._progress)
                    self._finish(self._member)
        except (InvalidValue, RanksDiffer) as refused:
            error = refused
            raise
        finally:
            self._open = False
            self._guard.end()
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
        if error is None or ended or self._over:
            gathering.drop()
        else:
            gathering.fail(error)

    def epochs(self) -> Iterator[int]:
        """As of the plain session; no epoch is left before its samples are through."""
        self._begin(extent_of(self.options))
        while True:
            with self._verdict:
                self._boundary()
            if self._over:
                break
            epoch = self._progress.epoch
            self._until = ENDLESS if is_profiled() else epoch + 1
            self._link.script_goes_on()
            yield epoch
            self._link.script_waits()
            went_back = self._member is not None and self._member.new
            if not self._is_through and not went_back:
                left = f"left after {self._progress.offset} of {self._progress.samples} samples"
                raise InvalidValue(f"epoch {epoch}", left, "trained to its end where the model is cut")
            self._schedules.check()
        self._link.script_goes_on()

    def batches(self, epochs: int | None = None) -> Iterator[Step]:
        """One handle for each step that is left: within `epochs()` those of the epoch, otherwise of all."""
        if self._until is None:
            self._begin(extent_of(self.options, epochs))
        elif epochs is not None:
            raise InvalidValue("batches(epochs=...)", epochs, "batches() within epochs(), or `for batch in s`")
        while True:
            with self._verdict:
                if not self._is_through:
                    self._boundary()
            if self._is_through:  # as the others may have been
                break
            batch = Step()
            self._link.script_goes_on()
            yield batch
            self._link.script_waits()
            if not batch.called:
                raise InvalidValue("step", "no call", "called once for every batch of batches()")
        self._link.script_goes_on()

    def __iter__(self) -> Iterator[Step]:
        """As `batches()`."""
        return self.batches()

    def step(self, batch: Step) -> None:
        """Make the step with all others; if they have gone on meanwhile, or back to a checkpoint, the one there."""
        if not isinstance(batch, Step):
            raise InvalidValue("step", type(batch).__name__, "what batches() gave: s.step(batch), with loss=")
        with self._verdict:
            if batch.called:
                raise InvalidValue("step", "a second call for one batch", "called once for every batch of batches()")
            batch.called = True
            self._guard.check_frozen()
            self._link.script_waits()
            assert self._member is not None  # noqa: S101 - who has a batch has begun
            self._make(self._member)
            self._schedules.check()
            self._link.script_goes_on()

    # ------------------------------------------------------------------------------------------- steps

    @property
    def _over(self) -> bool:
        return self._is_over or self._extent.over(self._progress)

    @property
    def _is_through(self) -> bool:
        """The epoch, or all of them."""
        return self._over or (self._until is not None and self._progress.epoch >= self._until)

    def _make(self, member: Member) -> None:
        progress = self._progress
        before = progress.steps
        while progress.steps == before and not self._over:
            why = ""
            try:
                if self._together(STEP) == END:
                    return
                member.new = False
                if (made := self._made(member)) is not None:
                    self._telling.stepped(made, progress, self._seat, self._micro_batch)
                    self._ordered = made.orders
                    return
            except Broken as error:
                why = str(error)
            except torch.OutOfMemoryError as error:
                if self._link.line is None or member.pending >= 0:  # alone nobody helps; an update may be half made
                    raise
                why = str(error)  # the graph goes with the frames of the error, when we have left it
                self._telling.short(self._generation, progress, self._micro_batch, ends=False)
            self._recover(why)
            if member.new:
                before = progress.steps

    def _made(self, member: Member) -> Stepped:
        progress = self._progress
        if parts := self._link.take_keeps():
            member.keep(self._seat, parts)
        member.alike.check_step(progress.steps, member.applied)
        return member.step(
            self._mesh,
            self._seat,
            self._work(lambda atom: loaded(self._samples, self.options.seed, progress.epoch, atom)),
            offset=progress.offset,
            size=progress.size,
            micro_batch=self._micro_batch,
            orders=self._link.has_order(),
        )

    def _work(self, load: Callable[[Atom], Any]) -> Work:
        assert self.options.loss is not None  # noqa: S101 - that is why we are here
        return Work(load, self.options.loss)

    # ------------------------------------------------------------------------------------------- between steps

    def _begin(self, extent: Extent) -> None:
        """Before the first batch: our first grid."""
        if not self._open or self._member is not None:
            raise InvalidValue("batches()", "a call", "one, in `with train.session(...) as s:`")
        with self._verdict:
            self._extent = extent
            self._schedules.find_late()
            self._own.begin()
            self._link.script_waits()
            self._meet(self._made_member())
            begin(extent, self._progress, self._saver.directory, speaks=self.rank == 0)

    def _made_member(self) -> Member:
        clip_norm, seed = self.options.clip_norm, self.options.seed
        facts = {"seed": seed, "clip_norm": clip_norm, "beside": self._course, "guard": self._guard}
        self._member = member = Member(self._staged, self._optimizer, **facts)  # type: ignore[arg-type]  # by name
        state = State(self._model, self._optimizer, self._schedules.all, self._own, seed)
        whole = Whole(state, self._progress, self._staged, member.holdings, lambda: member.loss)
        self._vault = member.vault = Vault(self._saver, whole, member.holdings, self._progress, self._link)
        return member

    def _meet(self, member: Member) -> None:
        if self._link.line is None:
            member.meet(self._mesh, self._seat)
            return
        wait_s = float(os.environ.get("SUBLET_ORDER_WAIT_S", ORDER_S))
        self._gathering = Gathering(self._link.line, member, wait_s=wait_s, done=lambda: float(self._progress.done))
        self._settle_in(self._following(lambda gathering: gathering.follow()))

    def _boundary(self) -> None:
        """Between two steps: into another grid, if all have heard of orders; who is new waits for its first step."""
        self._schedules.check()
        self._schedules.end_epochs(self._progress)
        if self._ordered and not self._over:
            self._settle_in(self._following(lambda gathering: gathering.change()))
        while self._member is not None and self._member.new and self._member.speaker is not None:
            try:
                self._together(STEP)
            except Broken as error:
                self._recover(str(error))

    def _recover(self, why: str) -> None:
        self._settle_in(self._following(lambda gathering: gathering.recover(why)))

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
        if self._until is not None and self._member is not None and self._member.new:
            self._until = self._progress.epoch + 1  # of the epoch that we are in now
        self._telling.joined(gathered, self._progress, float(self._extent.samples(self._progress)))

    def _finish(self, member: Member) -> None:
        """All is done, or left, at all alike: the last checkpoint, the last word, and nobody goes before it is said."""
        progress = self._progress
        while True:
            if member.new and member.speaker is None and not self._over:
                lost(f"all went back to step {progress.steps}, and the script has left its loop")
            if not member.new:
                self._extent.end(progress)
            try:
                if self._together(END) != END:
                    raise InvalidValue("the loop", f"left at step {progress.steps}, where others train on", SAME)
                if not self._extent.reached(progress):
                    with awaited(LEAVES):
                        self._mesh.sum(torch.zeros(1), self._seat.everyone())
                self._save_last()
            except (Broken, StaleWriter) as error:  # of the latter: a newer grid has begun, which has the last word
                if self._link.line is None:
                    raise
                self._recover(str(error))
                continue
            if self.rank == 0:
                done, worker_id = float(progress.done), self._link.worker_id
                self._link.say(Finished(worker_id=worker_id, step=progress.steps, done=done, loss=self.loss))
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
        assert self._vault is not None  # noqa: S101 - it has begun
        self._link.script_goes_on()  # it may be tried again for a while, which is not to look like a hang
        try:
            self._vault.save_last(self._mesh, self._seat.everyone())
        finally:
            self._link.script_waits()
