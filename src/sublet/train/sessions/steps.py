"""One step of this worker: micro-batches out, losses in, and in the end an update that all members make alike.

The sum over the group comes with the last backward. If the group breaks under it, nothing has changed; nor has it if
what a step needs does not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sublet.errors import InvalidValue, OutOfMemory
from sublet.train.data.loading import samples_of
from sublet.train.data.samples import MicroBatch
from sublet.train.link.following import Broken
from sublet.train.link.peers import BROKEN, PeerGroup, gist_of
from sublet.train.numerics.drift import Drift
from sublet.train.numerics.gradients import Control, Gradients, Readings
from sublet.train.numerics.memory import SMALLER, Cut, Memory, gauge_of, samples_that_fit
from sublet.train.numerics.noise import Noise, halves_due
from sublet.train.numerics.schedules import Schedules
from sublet.train.numerics.seeds import seed_python_and_numpy
from sublet.train.numerics.updates import Updates
from sublet.train.sessions.fitness import check_counted, check_shape
from sublet.train.sessions.options import Options, loss_of
from sublet.train.sessions.probe import Probe, is_due
from sublet.train.sessions.stopwatch import Stopwatch
from sublet.train.sessions.turns import Turns
from sublet.train.shards.meeting import PeerMesh, Shards
from sublet.train.state.state import Progress
from sublet.train.streams.streamed import is_stream, streamed_of

EVERY = 20  # steps between measurements: two passes over the gradients each
EVERY_ADAPTIVE = 5  # where the batch follows from it
MANY_HALVED = 12  # at the first step of sums over so many to a sample: a scale too low for once costs less than a step


class Measuring:
    """Decides which steps measure gradient noise; `can`: gradients are those of the mean of one loss."""

    def __init__(self, options: Options, progress: Progress, *, can: bool) -> None:
        self._adaptive, self._progress, self._can = options.adaptive, progress, can
        self.now = False  # the step under way measures
        self.halved = False  # for that alone it is taken in two
        self.samples_in_all = 0  # of the whole training, once that is known
        self._weight = 0.0

    def plan(self, size: int, world: int, micro_batch: int | None) -> int | None:
        """For a step of `size` samples: how many are taken at a time."""
        every = EVERY if self._adaptive is None else EVERY_ADAPTIVE
        # The gradient of the whole batch alone tells nothing about noise: there must be a smaller one beside it.
        cut = world > 1 or (micro_batch or size) < size
        self.halved = not cut and self.takes_halves(size)
        self.now = self.halved or (self._progress.steps % every == 0 and size > 1 and cut and self._can)
        return -(-size // 2) if self.halved else micro_batch

    def takes_halves(self, size: int) -> bool:
        """Whether a full step that is taken at once is halved."""
        progress = self._progress
        if self._adaptive is None or size < max(2, progress.batch):
            return False
        return halves_due(progress.steps, progress.noise.count, self.samples_in_all // self._adaptive.high)

    def begin(self, gradients: Gradients, count: int, size: int, workers: int, scale: float) -> None:
        """A worker's first micro-batch, of `count` samples; losses are multiplied by `scale`."""
        self._weight = (size / count / scale) ** 2 / workers
        gradients.slots[Control.INVERSE].fill_(1.0 / (count * workers))

    def add(self, slots: list[torch.Tensor], gradient: torch.Tensor) -> None:
        """Some of what that micro-batch has made."""
        norm = torch.linalg.vector_norm(gradient)
        slots[Control.SMALL].add_(norm * norm, alpha=self._weight)

    def conclude(self, gradients: Gradients, size: int) -> None:
        """After the sum."""
        norm, progress = float(torch.nn.utils.get_total_norm(gradients.tensors)), self._progress
        small, inverse = (float(gradients.slots[each]) for each in (Control.SMALL, Control.INVERSE))
        progress.noise.add(small, inverse, norm**2, size, at=float(progress.done))


class Steps:
    """All that makes a step of `model`: data, gradients, optimizer, schedules, and the checks on them."""

    def __init__(self, model: torch.nn.Module, turns: Turns, dataset: Any, options: Options) -> None:
        self._model, self._turns, self._updates = model, turns, Updates(turns.optimizers, options)
        self.device = turns.all[0].gradients.parameters[0].device
        self._options, self.adaptive = options, options.adaptive
        batch_device = None if options.device is None else torch.device(options.device)
        self.stream = streamed_of(dataset, options, batch_device) if is_stream(dataset) else None
        self._samples = self.stream or samples_of(
            dataset, options.seed, options.collate, batch_device, options.global_batch
        )
        self.schedules = Schedules(options.schedulers, every=options.scheduler_every)
        self.drift = Drift(model.parameters(), turns.together)
        self.progress = Progress(samples=self._samples.count, batch=options.global_batch)
        if options.counts and options.scaler is not None:
            self.progress.halved = options.global_batch.bit_length() - 1 + MANY_HALVED
        self.readings = Readings(self.device)
        self.memory = Memory(options.micro_batch, gauge_of(self.device), samples_that_fit())
        self.watch = Stopwatch(self.device)
        self.broken: str | None = None  # why the step under way is dropped
        self._cut: Cut | None = None  # it did not fit
        self._group = PeerGroup()
        self._ordered: Callable[[], bool] = bool  # there is no news
        self._size = 0  # samples of the step under way
        self._piece: MicroBatch | None = None  # the micro-batch that the user has
        self._begun = False  # the first micro-batch of a step has been through, and the last has not
        self._heard = False  # of the loss of the step under way there is nothing to add up
        self.probe: Probe | None = None  # while what the script has is given to look at its loss alone
        self._is_probed = turns.several  # or need not be
        self.noise = Measuring(options, self.progress, can=not (options.sums or turns.several))
        self.grows = True  # the batch by itself, towards the noise; under a controller the plan chooses it alone
        self._weights: dict[float, torch.Tensor] = {}
        self.updated = False  # by the last call of `step`
        self.gives_last = False  # the micro-batch that the user has, or had, is the last of its step
        self.grad_norm: torch.Tensor | None = None  # of the last update, before it was clipped
        self.shards: Shards | None = None  # the optimizer's state is in ranges
        self.save_due = False  # of ranges, which all have to hear of

    @property
    def gradients(self) -> Gradients:
        """The gradients of the next update."""
        return self._turns.now(self.progress).gradients

    def guard(self) -> None:
        """From now on only we update the model."""
        self._updates.guard.begin()

    def release(self) -> None:
        """Everything as it was before `guard`."""
        self._updates.guard.end()
        if self.shards is not None and self.shards.is_cut:
            self.shards.moments.forget()  # what it keeps is a range: the parameters are its own again, and no more
        for turn in self._turns.all:
            turn.gradients.detach()

    def settle_in(self, group: PeerGroup) -> None:
        """A new group: what was said in the old one does not count."""
        self._fit_trained()
        for turn in self._turns.all:
            if group.world > 1:
                turn.gradients.attach()
            else:
                turn.gradients.detach()
        self.readings.forget()
        self.drift.forget()
        self.watch.restart()
        self.schedules.note()

    def begin_epoch(self) -> None:
        """Before its first batch: the script may have frozen or thawed something, and chooses as all others do."""
        self._fit_trained()
        if not self.progress.offset:
            seed_python_and_numpy(self._options.seed, self.progress.epoch)

    def _fit_trained(self) -> None:
        for turn in self._turns.all if self.shards is None else ():  # ranges are of what was trained at the start
            turn.gradients.refit()

    def obey(self, batch: int) -> None:
        """The plan chose this batch, which is kept within the range; 0 = the one that we have stays, if it is.

        What we have may be a checkpoint's, of a script that had another range, or another batch.
        """
        if self.adaptive is None:
            self.progress.batch = self._options.global_batch
            return
        self.progress.batch = self.adaptive.clamped(batch or self.progress.batch)
        self.look_at_memory()

    def look_at_memory(self) -> int:
        """Before more samples at a time come than ever: how many will fit; the most bytes since the last look."""
        return self.memory.expect(0 if self.adaptive is None else self.adaptive.high)

    def give_up(self, group: PeerGroup) -> str:
        """Drop the step, as far as it is not applied; why. Others may need its sums, if our range is updated."""
        half = self.shards is not None and self.shards.half
        for turn in () if half else self._turns.all:
            turn.gradients.give_up(group)
        why, self.broken = self.broken or "", None
        return why

    def take_cut(self) -> Cut | None:
        """Whether the step that was just dropped did not fit; it is told once."""
        cut, self._cut = self._cut, None
        return cut

    def cut_given(self) -> Cut | None:
        """The micro-batch that the script has did not fit; None if it has none. OutOfMemory if it is one sample."""
        piece, self._piece = self._piece, None
        return None if piece is None or self._turns.several else self.memory.cut(piece.count)

    def found(self, given: Any, counted: Any) -> tuple[Any, Any] | None:
        """The loss of the micro-batch that the script has, and its count; None if it did not fit: it is dropped.

        Of a batch if there is a `loss=`, else of a function or a tensor.
        """
        options = self._options
        if options.loss is not None and counted is not None:
            raise InvalidValue("counted", counted, "left out with loss=, which returns a pair: the sum, and its count")
        try:
            if options.loss is None:
                return given() if callable(given) else given, counted
            return loss_of(self._model, options.loss, given, counts=options.counts)
        except torch.OutOfMemoryError:
            if self.probe is not None:
                self.probe.give_up()
                self._piece = None
                return None
            if self._piece is None or self._turns.several:
                raise
            self._drop_unfit(self._piece)
            return None

    def step(self, loss: torch.Tensor, name: str | None = None, counted: torch.Tensor | float | None = None) -> None:
        """Backward from the loss over the micro-batch; after the last one of the step, update the model.

        With several optimizers `name` is that of the loss; `counted` is the count of a loss with reduction="counted".
        """
        self.updated = False
        piece = self._piece
        if piece is None:
            raise InvalidValue("step", "a second call", "called once for every batch of batches()")
        number = self._turns.call(name)
        if self._turns.all_called:
            self._piece = None
        if self.broken is not None or number < self.progress.turn:
            return  # the step is dropped; or this turn of it was applied before the group broke
        check_shape(loss)
        check_counted(counted, asked=self._options.counts)
        if self.probe is not None:
            self.probe.take(loss, counted)
            self.readings.numbers[Control.LOSS] = float(loss.detach())
            return
        turn = self._turns.now(self.progress)
        share = self.progress.sums_share if self._options.sums else piece.count / self._size
        share = 0.0 if piece.spare else share
        gradients, measures = turn.gradients, self.noise.now and piece.first and not piece.spare
        gradients.check_frozen()
        if piece.last and gradients.shared:
            gradients.arm(self._group, partial(self.noise.add, gradients.slots) if measures else None)
        try:
            scaled = self._updates.scaled(loss)
            if share == 1.0:
                scaled.backward()  # type: ignore[no-untyped-call]  # torch gives it no type
            else:
                scaled.backward(self._weight(share, scaled))  # type: ignore[no-untyped-call]  # torch gives it no type
        except torch.OutOfMemoryError as error:
            if self._turns.several:
                raise OutOfMemory(piece.count, hint=f"a smaller global_batch; or {SMALLER}") from error
            loss.detach_()  # the script may hold it while it computes the next one, and what it was made from with it
            self._drop_unfit(piece)
            return
        whole = piece.first and piece.last and share == 1.0 and counted is None and not self._turns.several
        alone = whole and not gradients.shared and not self.noise.now
        self._heard = alone and self.readings.hear(loss, gradients.control)
        if not self._heard:
            gradients.slots[Control.LOSS].add_(loss.detach(), alpha=share)
        if counted is not None and not piece.spare:
            gradients.slots[Control.COUNTED].add_(counted)
        if self._turns.several:
            self._turns.clear_others(turn)
        if self._turns.is_last(self.progress):  # what comes before it in several counts as computing
            self.watch.computed(piece.count, last=piece.last)
        self._begun = not piece.last
        if piece.last:
            self._update()
            return
        if measures:
            for gradient in gradients.tensors:
                self.noise.add(gradients.slots, gradient)

    @property
    def under_way(self) -> bool:
        """Between the first loss of a step and its end."""
        return self._begun or self.progress.turn > 0

    @property
    def all_have_samples(self) -> bool:
        """Whether every rank has samples of the last step, and so is in the script's loop."""
        return self.stream is None or self._samples.holders(self._size, self._group.world) == self._group.world

    def batches(self, group: PeerGroup, ordered: Callable[[], bool]) -> Iterator[Any]:
        """The micro-batches of this worker for the next step; `step` must be called for each, and the last updates.

        `ordered` says whether there is news that all members should know of. If the group breaks, `broken` says why.
        """
        self._group, self._ordered = group, ordered
        if self.stream is not None:
            try:
                self.stream.exchange(group, self.progress.steps)
            except Broken as error:
                self.broken = str(error)
                return
        progress, micro_batch = self.progress, None if self._turns.several else self.memory.micro_batch
        self._size = size = progress.size
        micro_batch = self.noise.plan(size, group.world, micro_batch)
        steps, piece = progress.steps, None
        for piece in self._samples.pieces(progress.offset, size, group.rank, group.world, micro_batch):
            if piece.first and self.noise.now and not piece.spare:
                workers = self._samples.holders(size, group.world)
                self.noise.begin(self.gradients, piece.count, size, workers, self._updates.scale)
            self.memory.footprint.gives(piece.count)
            batch = self._load(piece)
            if not self._is_probed:
                yield from self._probed(batch, piece)
            yield from self._given(batch, piece)
            if self._cut is not None:
                return
        while piece is None and self.broken is None and progress.steps == steps:
            self.gradients.arm(group)  # more workers than a stream has shards: this one takes part in sums alone
            self._update()
        assert self.broken is not None or progress.steps == steps + 1  # noqa: S101 - a bug of ours, not of the user's

    def _given(self, batch: Any, piece: MicroBatch) -> Iterator[Any]:
        self._piece, self.gives_last = piece, piece.last
        self._turns.begin()
        yield batch
        if self._piece is not None:
            raise InvalidValue("step", "no call", "called once for every batch of batches()")

    def _probed(self, batch: Any, piece: MicroBatch) -> Iterator[Any]:
        """The first micro-batch of a training, before it counts: what its loss is (`probe`)."""
        self._is_probed, options = True, self._options
        if self.progress.steps or not is_due(options):
            return
        self.probe = probe = Probe(self._model, options, piece.count)
        spare = replace(piece, spare=True, last=False)
        try:
            for part in probe.parts(batch):
                if options.loss is None:
                    yield from self._given(part, spare)
                elif (found := self.found(part, None)) is not None:
                    probe.take(*found)
        finally:
            self.probe = None
        self.watch.gives()
        probe.conclude(speaks=self._group.rank == 0)

    def _load(self, piece: MicroBatch) -> Any:
        self.watch.loads()
        batch = self._samples.load(self.progress.epoch, piece)
        self.watch.gives()
        return batch

    def _drop_unfit(self, piece: MicroBatch) -> None:
        """Drop this step, and close the group's connections so that the others stop waiting in its sum."""
        self._piece, self._cut, self._begun = None, self.memory.cut(piece.count), False
        self.watch.restart()
        if self.gradients.shared:
            self.broken = f"{piece.count} samples at a time did not fit; next: micro_batch={self._cut.micro_batch}"
            self._group.hang_up()
        else:
            self.gradients.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _weight(self, share: float, loss: torch.Tensor) -> torch.Tensor:
        weight = self._weights.get(share)
        if weight is None or weight.dtype != loss.dtype or weight.device != loss.device:
            weight = self._weights[share] = torch.tensor(share, dtype=loss.dtype, device=loss.device)
        return weight

    def _update(self) -> None:
        """Sum over the group and apply; if the group breaks, nothing has changed."""
        progress, turn, last = self.progress, self._turns.now(self.progress), self._turns.is_last(self.progress)
        gradients = turn.gradients
        if gradients.shared:
            if self._ordered():
                gradients.slots[Control.ORDERS].fill_(1.0)
            if self.save_due:
                gradients.slots[Control.SAVE].fill_(1.0)
            if last:
                self.drift.put(gradients.slots, progress, self._group.world)
            try:
                gradients.sum(self._group)
            except BROKEN as error:
                self.broken = gist_of(error)
                return
            if last:
                self.drift.compare(gradients.control, self._group.world)
            else:  # a rank that has left its loop, or evaluates, is missing in the next sum
                self.drift.require_together(self._group, progress, gradients.control.tolist())
        halved = self.progress.halved
        if self._options.counts:
            halved = gradients.divide(self.progress.sums_share, known=self._options.scaler is not None)
        if last:
            self.watch.summed()
            self.readings.take(gradients.control, gradients.slots[Control.LOSS])
        self._updates.unscale(turn.optimizer)
        if self.noise.now:
            self.noise.conclude(gradients, self._size)
        self.grad_norm = self._updates.clip(gradients)
        self._updates.apply(turn, progress, self._size, last=last)
        if self.shards is not None and self.shards.is_cut:
            try:
                self.shards.gather(PeerMesh(self._group))
            except Broken as error:
                self.broken = str(error)
                return
        if not last:
            gradients.clear()
            progress.turn += 1
            return
        self.progress.halved = halved
        self.count()
        self.updated = True

    def apply_late(self, noise: Noise) -> None:
        """The update of our range, with sums that another had, clipped as they were."""
        self.progress.noise = noise
        self._updates.apply(self._turns.all[0], self.progress, self._size, last=True)

    def count(self) -> None:
        """All of the model is as after the step under way: schedules and the batch follow."""
        progress, gradients = self.progress, self.gradients
        (gradients.drop if self._heard else gradients.clear)()
        self._heard = False
        self.watch.updated(full=self._size == progress.batch and not self.noise.halved)
        progress.turn = 0
        progress.advance()
        due = progress.steps if self.adaptive is None else progress.done // self.adaptive.initial
        self.schedules.end_step(progress, due)
        if self.adaptive is not None and self.grows:
            batch = self.adaptive.grown(progress.batch, progress.noise.scale)
            if batch != progress.batch:
                progress.batch = batch
                self.look_at_memory()
                self.watch.restart()
