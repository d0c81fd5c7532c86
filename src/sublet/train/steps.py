"""One step of this worker: micro-batches out, losses in, and in the end an update that all members make alike.

The sum over the group comes with the last backward. If the group breaks under it, nothing has changed; nor has it if
what a step needs does not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from sublet.errors import InvalidValue, OutOfMemory
from sublet.train.control import Readings
from sublet.train.drift import Drift
from sublet.train.fitness import check_loss, check_optimizer, check_shape
from sublet.train.footprint import gauge_of
from sublet.train.gradients import CONTROLS, INVERSE, LEFT, LOSS, ORDERS, SMALL, Gradients
from sublet.train.loading import samples_of
from sublet.train.memory import SLIMMER, Cut, Memory, samples_that_fit
from sublet.train.noise import BatchRange, halves_due
from sublet.train.options import Options
from sublet.train.peers import BROKEN, PeerGroup, gist_of
from sublet.train.rates import rate_rule
from sublet.train.rehearsal import is_rehearsal
from sublet.train.samples import Piece
from sublet.train.schedules import Schedules
from sublet.train.state import Progress
from sublet.train.stopwatch import Stopwatch

__all__ = ["Steps"]

NOISE_EVERY = 20  # steps between measurements of the gradient noise: two passes over the gradients each
NOISE_EVERY_ADAPTIVE = 5  # where the batch follows from it


class Steps:
    """All that makes a step of `model`: data, gradients, optimizer, schedules, and the checks on them."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, options: Options
    ) -> None:
        check_optimizer(optimizer)
        self.gradients = Gradients(model.parameters())
        if not self.gradients.parameters:
            raise InvalidValue("model", type(model).__name__, "a module with parameters that require gradients")
        self.device = self.gradients.parameters[0].device
        self._optimizer, self._options, self.adaptive = optimizer, options, options.adaptive
        batch_device = None if options.device is None else torch.device(options.device)
        self._samples = samples_of(dataset, options.seed, options.collate, batch_device, options.global_batch)
        self._rule = rate_rule(options.lr_rule)
        self.schedules = Schedules(options.schedulers, optimizer)
        self.drift = Drift(model.parameters(), optimizer)
        self.progress = Progress(samples=self._samples.count, batch=options.global_batch)
        self.readings = Readings(CONTROLS, self.device)
        self.memory = Memory(options.micro_batch, gauge_of(self.device), samples_that_fit())
        self.watch = Stopwatch(self.device)
        self.broken: str | None = None  # why the step under way is dropped
        self._cut: Cut | None = None  # it did not fit
        self._group, self._ordered = PeerGroup(), _never
        self._size = 0  # samples of the step under way
        self._piece: Piece | None = None  # the micro-batch that the user has
        self._judged = False  # the loss was looked at
        self._measured = False  # this step measures noise
        self._halved = False  # for that alone it is taken in two
        self.samples_in_all = 0  # of the whole training, once that is known
        self.grows = (
            True  # the batch by itself, towards the noise; under a controller the plan chooses it, and nobody else
        )
        self._rehearses = is_rehearsal()
        self._small_weight = 0.0
        self._weights: dict[float, torch.Tensor] = {}
        self._updating = False
        self._handles: list[Any] = []

    def guard(self) -> None:
        """From now on only we update the model."""
        self._handles.append(self._optimizer.register_step_pre_hook(self._refuse_other_updates))
        vars(self._optimizer)["zero_grad"] = (
            _nothing  # gradients are ours; a line left over must not clear half a batch
        )

    def release(self) -> None:
        """Everything as it was before `guard`."""
        for handle in self._handles:
            handle.remove()
        vars(self._optimizer).pop("zero_grad", None)
        self.gradients.detach()

    def settle_in(self, group: PeerGroup) -> None:
        """A new group: what was said in the old one does not count."""
        if group.world > 1:
            self.gradients.attach()
        else:
            self.gradients.detach()
        self.readings.forget()
        self.drift.forget()
        self.watch.restart()
        self.schedules.note()

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
        """Drop the step; why."""
        self.gradients.give_up(group)
        why, self.broken = self.broken or "", None
        return why

    def take_cut(self) -> Cut | None:
        """Whether the step that was just dropped did not fit; it is told once."""
        cut, self._cut = self._cut, None
        return cut

    def cut_given(self) -> Cut | None:
        """The micro-batch that the script has did not fit; None if it has none. OutOfMemory if it is one sample."""
        piece, self._piece = self._piece, None
        return None if piece is None else self.memory.cut(piece.count)

    def computed(self, loss: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """The loss of the micro-batch that the script has; None if it did not fit, and the step is dropped."""
        try:
            return loss()
        except torch.OutOfMemoryError:
            if self._piece is None:
                raise
            self._drop_unfit(self._piece)
            return None

    def step(self, loss: torch.Tensor) -> None:
        """Backward from the mean loss over the micro-batch; after the last one of the step, update the model."""
        piece, self._piece = self._piece, None
        if piece is None:
            raise InvalidValue("step", "a second call", "called once for every batch of batches()")
        check_shape(loss)
        if not self._judged:
            check_loss(loss, piece.count)
            self._judged = piece.count > 1
        gradients, share = self.gradients, piece.count / self._size
        if piece.last and gradients.shared:
            gradients.arm(self._measure_small if self._measured and piece.first else None)
        try:
            if share == 1.0:
                loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no type
            else:
                loss.backward(self._weight(share, loss))  # type: ignore[no-untyped-call]  # torch gives it no type
        except torch.OutOfMemoryError:
            loss.detach_()  # the script may hold it while it computes the next one, and what it was made from with it
            self._drop_unfit(piece)
            return
        gradients.slots[LOSS].add_(loss.detach(), alpha=share)
        self.watch.computed(piece.count, last=piece.last)
        if piece.last:
            self._update()
        elif piece.first and self._measured:
            for gradient in gradients.tensors:
                self._measure_small(gradient)

    def stop_early(self, group: PeerGroup) -> int:
        """The script has left its loop before the end: how many members have, at this very step; one of BROKEN.

        Those that train on take it for a step, and learn of it there.
        """
        self.gradients.arm()
        self.gradients.slots[LEFT].fill_(1.0)
        self.gradients.sum(group)
        left = int(self.gradients.control[LEFT])
        self.gradients.clear()
        return left

    def batches(self, group: PeerGroup, ordered: Callable[[], bool]) -> Iterator[Any]:
        """The micro-batches of this worker for the next step; `step` must be called for each, and the last updates.

        `ordered` says whether there is news that all members should know of. If the group breaks, `broken` says why.
        """
        self._group, self._ordered = group, ordered
        progress, micro_batch = self.progress, self.memory.micro_batch
        self._size = size = progress.size
        every = NOISE_EVERY if self.adaptive is None else NOISE_EVERY_ADAPTIVE
        # The gradient of the whole batch alone tells nothing about noise: there must be a smaller one beside it.
        cut = group.world > 1 or (micro_batch or size) < size
        self._halved = not cut and self._takes_halves(size)
        if self._halved:
            micro_batch = -(-size // 2)
        self._measured = self._halved or (progress.steps % every == 0 and size > 1 and cut)
        steps, piece = progress.steps, None
        for piece in self._samples.pieces(progress.offset, size, group.rank, group.world, micro_batch):
            if piece.first and self._measured:
                self._begin_measuring(piece)
            self._piece = piece
            self.memory.footprint.gives(piece.count)
            yield self._load(piece)
            if self._cut is not None:
                return
            if self._piece is not None:
                raise InvalidValue("step", "no call", "called once for every batch of batches()")
        if piece is None:  # more workers than samples: nothing to do but to take part in the sum
            self.gradients.arm()
            self._update()
        assert self.broken is not None or progress.steps == steps + 1  # noqa: S101 - a bug of ours, not of the user's

    def _takes_halves(self, size: int) -> bool:
        """Of a full step that is taken at once."""
        if self.adaptive is None or size < max(2, self.progress.batch):
            return False
        in_all = self.samples_in_all // self.adaptive.high
        return halves_due(self.progress.steps, self.progress.noise.count, in_all)

    def _load(self, piece: Piece) -> Any:
        self.watch.loads()
        batch = self._samples.load(self.progress.epoch, piece)
        self.watch.gives()
        return batch

    def _drop_unfit(self, piece: Piece) -> None:
        """Nobody goes on with this step: those who wait in its sum are hung up on."""
        self._piece, self._cut = None, self.memory.cut(piece.count)
        self.watch.restart()
        if self.gradients.shared:
            self.broken = f"{piece.count} samples at a time did not fit; next: micro_batch={self._cut.micro_batch}"
            self._group.hang_up()
        else:
            self.gradients.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _begin_measuring(self, piece: Piece) -> None:
        workers = min(self._group.world, self._size)  # that have samples
        self._small_weight = (self._size / piece.count) ** 2 / workers
        self.gradients.slots[INVERSE].fill_(1.0 / (piece.count * workers))

    def _measure_small(self, gradient: torch.Tensor) -> None:
        norm = torch.linalg.vector_norm(gradient)
        self.gradients.slots[SMALL].add_(norm * norm, alpha=self._small_weight)

    def _weight(self, share: float, loss: torch.Tensor) -> torch.Tensor:
        weight = self._weights.get(share)
        if weight is None or weight.dtype != loss.dtype or weight.device != loss.device:
            weight = self._weights[share] = torch.tensor(share, dtype=loss.dtype, device=loss.device)
        return weight

    def _update(self) -> None:
        """Sum over the group and apply; if the group breaks, nothing has changed."""
        gradients, progress = self.gradients, self.progress
        if gradients.shared:
            if self._ordered():
                gradients.slots[ORDERS].fill_(1.0)
            self.drift.put(gradients.slots, progress, self._group.world)
            try:
                gradients.sum(self._group)
            except BROKEN as error:
                self.broken = gist_of(error)
                return
            self.drift.compare(gradients.control, self._group.world)
        self.watch.summed()
        self.readings.take(gradients.control)
        if self._measured:
            self._conclude()
        if self._options.clip_norm is not None:
            norm = torch.nn.utils.get_total_norm(gradients.tensors)
            torch.nn.utils.clip_grads_with_norm_(gradients.parameters, self._options.clip_norm, norm)
        self._updating = True
        try:
            if self.adaptive is None:
                self._optimizer.step()
            else:
                self._scaled_update(self.adaptive)
        except torch.OutOfMemoryError as error:  # the samples are out of memory by now: fewer of them would not help
            raise OutOfMemory(0, hint=SLIMMER) from error
        self._updating = False
        gradients.clear()
        self.watch.updated(full=self._size == progress.batch and not self._halved)
        progress.advance()
        self._schedule()

    def _conclude(self) -> None:
        control = self.gradients.control.tolist()
        self.progress.noise.add(
            control[SMALL],
            control[INVERSE],
            float(torch.nn.utils.get_total_norm(self.gradients.tensors)) ** 2,
            self._size,
            at=float(self.progress.done),
        )

    def _scaled_update(self, batches: BatchRange) -> None:
        groups, rule = self._optimizer.param_groups, self._rule
        before = [group["lr"] for group in groups]
        # The last step of an epoch may be of a few samples: at a rate for the whole batch it would run away.
        batch = max(self._size, min(self.progress.batch, batches.initial))
        noise = self.progress.noise.scale
        for group in groups:
            group["lr"] = group["lr"] * rule.factor(batches, batch, noise, rooted="betas" in group)
        self._optimizer.step()
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate

    def _schedule(self) -> None:
        if self._rehearses:  # its schedules would be over long before it is
            return
        progress = self.progress
        due = progress.steps if self.adaptive is None else progress.done // self.adaptive.initial
        while progress.scheduled < due:
            self.schedules.step()
            progress.scheduled += 1
        if self.adaptive is not None and self.grows:
            batch = self.adaptive.grown(progress.batch, progress.noise.scale)
            if batch != progress.batch:
                progress.batch = batch
                self.look_at_memory()
                self.watch.restart()

    def _refuse_other_updates(self, *_: Any) -> None:
        if not self._updating:
            raise InvalidValue("optimizer.step()", "a call", "left to the session: s.step(loss) updates the model")


def _never() -> bool:
    """There is no news."""
    return False


def _nothing(*_: Any, **__: Any) -> None:
    """In place of zero_grad."""
