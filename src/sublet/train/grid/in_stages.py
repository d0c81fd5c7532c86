"""Every worker has some stages of the model, in as many copies as there are workers for: a grid.

All agree on every step, so that it is applied by all or by none (`member`). One in which a worker is lost is made
again, or was made by others: `step` returns when it is. Newcomers begin with a step (`serving`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import torch

from sublet.errors import InvalidValue, RanksDiffer, StaleWriter
from sublet.train.data.samples import Samples
from sublet.train.grid.atoms import loaded
from sublet.train.grid.course import Course
from sublet.train.grid.gathering import Gathered, Gathering
from sublet.train.grid.gloo import GlooMesh, Lines
from sublet.train.grid.holdings import sizes_of
from sublet.train.grid.meeting import Lost as PartLost
from sublet.train.grid.member import Member
from sublet.train.grid.pipeline import Losses, Stepped
from sublet.train.grid.saving import Vault
from sublet.train.grid.serving import END, SAME, STEP, Serves, awaited
from sublet.train.grid.stages import Seat, Staged, parts_of
from sublet.train.grid.telling import Telling
from sublet.train.grid.whole import Whole
from sublet.train.link.agent_line import Lost as LineLost
from sublet.train.link.following import Broken, at_once
from sublet.train.link.membership import ORDER_S, lost
from sublet.train.numerics.elementwise import check_one_by_one
from sublet.train.numerics.guard import Guard
from sublet.train.numerics.memory import gauge_of
from sublet.train.numerics.schedules import Schedules
from sublet.train.numerics.seeds import seed_choices
from sublet.train.sessions.cannot import STAGES, Asked, check_fits
from sublet.train.sessions.fitness import check_frozen, check_optimizer
from sublet.train.sessions.position import Position
from sublet.train.sessions.strategy import Around, Where
from sublet.train.shards.fits import memory_of
from sublet.train.state.state import Progress, State
from sublet.wire.exits import EXIT_MEMORY
from sublet.wire.messages import Finished

__all__ = ["InStages", "Step"]

LEAVES = "the end of the session waits for the other workers; every one leaves its loop at the same step"


class Step:
    """What `batches()` gives: a step to be made. Its samples are loaded where they are needed, part by part."""

    called = False  # `step`, with it


class InStages(Serves):
    """As `strategy.Strategy` says."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, dataset: Any, around: Around) -> None:
        options = around.options
        check_fits(STAGES, Asked(options, model, optimizer, dataset))
        check_optimizer(optimizer)
        check_one_by_one(optimizer)
        self._around, self._model, self._optimizer = around, model, optimizer
        self._device = None if options.device is None else torch.device(options.device)
        if self._device is not None:
            model.to(self._device)
        self._staged, self._guard = Staged(model), Guard([optimizer])
        self._samples = Samples(dataset, options.seed, options.collate, self._device)
        self._schedules = Schedules(options.schedulers, every=options.scheduler_every)
        self.progress = Progress(samples=self._samples.count, batch=options.global_batch)
        self.position, self._micro_batch = Position(self.progress), options.micro_batch or 0
        self._state = State(model, optimizer, self._schedules.all, around.own, options.seed)
        self.course = Course(self._state, self.progress, self._schedules, around.saver)
        gauge = gauge_of(self._staged.device)
        self._telling = Telling(around.link, around.saver, gauge, logs=bool(options.trackers))
        self.member: Member | None = None
        self._vault: Vault | None = None
        self._gathering: Gathering | None = None
        self.mesh = GlooMesh(Lines(), "alone", 0, 1)
        self.seat = Seat(copy=0, part=0, copies=1, parts=parts_of(len(self._staged.blocks), 1))
        self.generation, self._norm = 0, math.nan  # of the last gradient
        self._ordered = False  # all have heard at the end of a step that there are orders: they change before the next
        self.updated = False
        self._seen: Losses | None = None  # of the step before
        self._under_way: Losses | None = None

    def open(self) -> None:
        """As of any strategy."""
        self._around.link.open(lambda: sizes_of(self._staged, self._optimizer), lambda: memory_of(self._model))
        self._guard.begin()

    def close(self, error: BaseException | None) -> None:
        """As of any strategy."""
        self._guard.end()
        if self._vault is not None:
            self._vault.close()
        if self._gathering is not None:
            ended = isinstance(error, SystemExit | torch.OutOfMemoryError)  # which is told in words of its own
            if error is None or ended or self.position.over:
                self._gathering.drop()
            else:
                self._gathering.fail(error)
        if isinstance(error, torch.OutOfMemoryError) and self._around.link.line is not None:
            self._telling.short(self.generation, self.progress, self._micro_batch, ends=True)
            raise SystemExit(EXIT_MEMORY)

    # ------------------------------------------------------------------------------------------- steps

    def begin_epoch(self) -> None:
        """As of any strategy."""
        if not self.progress.offset:
            seed_choices(self._around.options.seed, self.progress.epoch)

    def batches(self) -> Iterator[Step]:
        """One for the step."""
        batch = Step()
        yield batch
        if not batch.called:
            raise InvalidValue("step", "no call", "called once for every batch of batches()")

    def step(self, given: Any, name: str | None, counted: Any) -> None:
        """As of any strategy. If the others have gone on meanwhile, or back to a checkpoint, it is the one there."""
        if not isinstance(given, Step) or name is not None or counted is not None:
            raise InvalidValue("step", type(given).__name__, "what batches() gave: s.step(batch)")
        if given.called:
            raise InvalidValue("step", "a second call for one batch", "called once for every batch of batches()")
        assert self.member is not None  # noqa: S101 - who has a batch has begun
        given.called, self.updated = True, False
        check_frozen(self.member.frozen, in_stages=True)
        self._around.link.script_waits()
        self._make(self.member)
        self._schedules.check()
        self._around.link.script_goes_on()

    def _make(self, member: Member) -> None:
        progress = self.progress
        before = progress.steps
        while progress.steps == before and not self.position.over:
            try:
                if self.together(STEP) == END:
                    return
                member.new = False
                made = self._made(member)
                self._telling.stepped(made, progress, self.seat, self._micro_batch)
                self._ordered, self._norm, self.updated = made.orders, made.norm, True
                made.losses.send()
                self._seen, self._under_way = self._under_way or made.losses, made.losses
                return
            except Broken as error:
                why = str(error)
            except torch.OutOfMemoryError as error:
                if self._around.link.line is None or member.pending >= 0:  # nobody helps; an update may be half made
                    raise
                why = str(error)  # the graph goes with the frames of the error, when we have left it
                self._telling.short(self.generation, progress, self._micro_batch, ends=False)
            self.recover(why)
            if member.new:
                before = progress.steps
            self.updated = progress.steps > before

    def _made(self, member: Member) -> Stepped:
        progress, seed = self.progress, self._around.options.seed
        if parts := self._around.link.take_keeps():
            member.keep(self.seat, parts)
        if progress.steps != member.applied:  # by the counter that says which samples come next
            hint = "report this: it is a fault in sublet; 'sublet resume' goes on from the checkpoint before it"
            what = f"the number of steps ({progress.steps} in place of {member.applied})"
            raise RanksDiffer(what, ranks=[], step=member.applied, hint=hint)
        self.look(member)
        return member.step(
            self.mesh,
            self.seat,
            self.work(lambda atom: loaded(self._samples, seed, progress.epoch, atom)),
            offset=progress.offset,
            size=progress.size,
            micro_batch=self._micro_batch,
            orders=self._around.link.has_order(),
        )

    # ------------------------------------------------------------------------------------------- between steps

    def meet(self) -> None:
        """As of any strategy."""
        around, options = self._around, self._around.options
        kept = [] if around.own.kept is None else vars(around.own.kept).values()
        self._schedules.look_for_others([self._optimizer], kept, strict=options.strict)
        self.member = member = Member(
            self._staged,
            self._optimizer,
            seed=options.seed,
            clip_norm=options.clip_norm,
            beside=self.course,
            guard=self._guard,
        )
        whole = Whole(self._state, self.progress, self._staged, member.holdings, lambda: member.loss)
        self._vault = member.vault = Vault(around.saver, whole, member.holdings, self.progress, around.link)
        if around.link.line is None:
            member.meet(self.mesh, self.seat)
            return
        wait_s = float(os.environ.get("SUBLET_ORDER_WAIT_S", ORDER_S))
        self._gathering = Gathering(around.link.line, member, wait_s=wait_s, samples=lambda: float(self.progress.done))
        self._settle_in(self._following(lambda gathering: gathering.follow()))

    def boundary(self) -> None:
        """As of any strategy: who is new waits for its first step."""
        self._schedules.check()
        self._schedules.end_epochs(self.progress)
        if self._ordered and not self.position.over:
            self._settle_in(self._following(lambda gathering: gathering.change()))
        while self.member is not None and self.member.new and self.member.speaker is not None:
            try:
                self.together(STEP)
            except Broken as error:
                self.recover(str(error))

    def end_epoch(self, epoch: int) -> None:
        """As of any strategy."""
        went_back = self.member is not None and self.member.new
        if not self.position.through and not went_back:
            left = f"left after {self.progress.offset} of {self.progress.samples} samples"
            raise InvalidValue(f"epoch {epoch}", left, "trained to its end where the model is trained in stages")
        self._schedules.check()

    def recover(self, why: str) -> None:
        """Into the next grid, whoever is lost."""
        self._settle_in(self._following(lambda gathering: gathering.recover(why)))

    def _following(self, into: Callable[[Gathering], Coroutine[Any, Any, Gathered]]) -> Gathered:
        assert self._gathering is not None  # noqa: S101 - alone nothing breaks, and nobody gives orders
        try:
            return at_once(into(self._gathering))
        except LineLost as error:
            lost(str(error))
        except PartLost:
            lost("a part of the model is with nobody any more")

    def _settle_in(self, gathered: Gathered) -> None:
        """In a new grid: say that we are there."""
        self._ordered = False
        assert self._gathering is not None  # noqa: S101 - it brought us here
        assert self._gathering.mesh is not None  # noqa: S101 - it has just been formed
        self.mesh, self.seat, self.generation = self._gathering.mesh, gathered.seat, gathered.order.generation
        self._around.log.settle(self.mesh.rank)
        if self.member is not None and self.member.new:
            self.position.arrive()
        self._telling.joined(gathered, self.progress, float(self.position.extent.samples(self.progress)))

    def finish(self) -> None:
        """As of any strategy: nobody goes before the last word is said."""
        progress, link, member = self.progress, self._around.link, self.member
        assert member is not None  # noqa: S101 - it has begun
        self._schedules.end_epochs(progress)
        while True:
            if member.new and member.speaker is None and not self.position.over:
                lost(f"all went back to step {progress.steps}, and the script has left its loop")
            if not member.new:
                self.position.extent.end(progress)
            try:
                if self.together(END) != END:
                    raise InvalidValue("the loop", f"left at step {progress.steps}, where others train on", SAME)
                if not self.position.extent.reached(progress):
                    with awaited(LEAVES):
                        self.mesh.sum(torch.zeros(1), self.seat.everyone())
                self._save_last()
            except (Broken, StaleWriter) as error:  # of the latter: a newer grid has begun, which has the last word
                if link.line is None:
                    raise
                self.recover(str(error))
                continue
            if self.mesh.rank == 0:
                done, worker_id = float(progress.done), link.worker_id
                link.say(Finished(worker_id=worker_id, step=progress.steps, done=done, loss=self.loss))
            try:
                self.mesh.sum(torch.zeros(1), self.seat.everyone())
                self.mesh.part(self.seat.everyone())
            except Broken as error:
                if self.mesh.rank == 0:
                    return
                self.recover(str(error))
            else:
                return

    def _save_last(self) -> None:
        assert self._vault is not None  # noqa: S101 - it has begun
        self._around.link.script_goes_on()  # it may be tried again for a while, which is not to look like a hang
        try:
            self._vault.save_last(self.mesh, self.seat.everyone())
        finally:
            self._around.link.script_waits()

    # ------------------------------------------------------------------------------------------- what a script asks

    @property
    def where(self) -> Where:
        """Rank 0 has the first part of the first copy; those that only keep are counted."""
        seat = self.seat
        grid = seat.copies, len(seat.parts)
        return Where(self.mesh.rank, len(seat.everyone()), self.generation, grid, (seat.copy, seat.part))

    @property
    def loss(self) -> float:
        """As all have agreed on it; alone on a GPU that of the step before, for which nothing has to wait."""
        if self.member is None:
            return math.nan
        alone = self._seen is not None and self._staged.device.type == "cuda" and len(self.seat.everyone()) == 1
        return self._seen.total() if alone and self._seen is not None else self.member.loss

    @property
    def loss_tensor(self) -> torch.Tensor:
        """The same."""
        return torch.tensor(self.loss)

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """None without `clip_norm`."""
        return None if self._around.options.clip_norm is None else torch.tensor(self._norm)

    @property
    def gives_last(self) -> bool:
        """There is one for each step."""
        return True

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        """Evaluations come to the same at all workers."""
        return list(figures)
