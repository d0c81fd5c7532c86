"""Which steps measure the gradient noise, and what for: a smaller gradient beside that of the whole batch (`noise`)."""

from __future__ import annotations

import torch

from sublet.train.numerics.gradients import INVERSE, SMALL, Gradients
from sublet.train.numerics.noise import halves_due
from sublet.train.sessions.options import Options
from sublet.train.state.state import Progress

__all__ = ["Measuring"]

EVERY = 20  # steps between measurements: two passes over the gradients each
EVERY_ADAPTIVE = 5  # where the batch follows from it


class Measuring:
    """Of one session; `can`: its gradients are those of the mean of one loss, or they tell nothing."""

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
        """Of a full step that is taken at once."""
        progress = self._progress
        if self._adaptive is None or size < max(2, progress.batch):
            return False
        return halves_due(progress.steps, progress.noise.count, self.samples_in_all // self._adaptive.high)

    def begin(self, gradients: Gradients, count: int, size: int, workers: int, scale: float) -> None:
        """A worker's first micro-batch, of `count` samples; losses are multiplied by `scale`."""
        self._weight = (size / count / scale) ** 2 / workers
        gradients.slots[INVERSE].fill_(1.0 / (count * workers))

    def add(self, slots: list[torch.Tensor], gradient: torch.Tensor) -> None:
        """Some of what that micro-batch has made."""
        norm = torch.linalg.vector_norm(gradient)
        slots[SMALL].add_(norm * norm, alpha=self._weight)

    def conclude(self, gradients: Gradients, size: int) -> None:
        """After the sum."""
        control = gradients.control.tolist()
        norm = float(torch.nn.utils.get_total_norm(gradients.tensors))
        self._progress.noise.add(control[SMALL], control[INVERSE], norm**2, size, at=float(self._progress.done))
