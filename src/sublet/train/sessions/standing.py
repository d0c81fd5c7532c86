"""What a script may ask of its session: who this worker is among the others, and how far training is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sublet.train.sessions.position import Position
from sublet.train.sessions.strategy import Strategy
from sublet.train.sessions.tracking import Log
from sublet.train.state.state import Progress
from sublet.train.streams.drawn import NO_END

__all__ = ["Standing"]


class Standing:
    """The part of a session that changes nothing."""

    _progress: Progress
    _position: Position
    _way: Strategy
    _log: Log

    def __len__(self) -> int:
        """Steps of an epoch, for bars of progress; a stream, or batches that are drawn, have none."""
        if self._progress.samples >= NO_END:
            raise TypeError("this session has no length: its batches have no end")
        return (self._progress.samples + self._progress.batch - 1) // self._progress.batch

    def __bool__(self) -> bool:
        return True

    @property
    def steps(self) -> int:
        """Steps applied in all, those before a resume included."""
        return self._progress.steps

    @property
    def steps_in_epoch(self) -> int:
        """Steps applied in the epoch that training is in: the number of its next batch, from 0 on."""
        return self.steps - self._progress.before

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._progress.epoch

    @property
    def samples_done(self) -> int:
        """Samples behind us, over all epochs."""
        return self._progress.done

    @property
    def global_batch(self) -> int:
        """Samples per step now."""
        return self._progress.batch

    @property
    def noise(self) -> float | None:
        """Gradient noise scale in samples; None while it cannot be told."""
        return self._progress.noise.scale

    def log(self, values: Mapping[str, Any]) -> None:
        """Numbers by name, of the step that is behind us, to `tracker=`: once for each step, whoever is rank 0."""
        if not self._position.probes:
            self._log.write(values, rank=self.rank, world=self.world, steps=self.steps)

    @property
    def rank(self) -> int:
        """0 for the worker that prints and evaluates."""
        return self._way.where.rank

    @property
    def world(self) -> int:
        """Number of workers now."""
        return self._way.where.world

    @property
    def generation(self) -> int:
        """Number of the decision that made the present group; 0 without a controller."""
        return self._way.where.generation

    @property
    def grid(self) -> tuple[int, int]:
        """Copies of the model, and parts of each: one where it is not trained in stages."""
        return self._way.where.grid

    @property
    def place(self) -> tuple[int, int]:
        """(copy, part) of this worker."""
        return self._way.where.place

    @property
    def updated(self) -> bool:
        """Whether the last `s.step()` ended a step: not before its last micro-batch, nor where it was dropped."""
        return self._way.updated

    @property
    def gives_last(self) -> bool:
        """Whether the micro-batch that was given last is the last of its step: `s.step()` with its loss updates."""
        return self._way.gives_last

    @property
    def loss(self) -> float:
        """Loss over the global batch of the last step (on a GPU: of the one before); of several the last one's."""
        return self._way.loss

    @property
    def loss_tensor(self) -> torch.Tensor:
        """Loss over the global batch of the last step itself, where it was computed: nothing has waited for it."""
        return self._way.loss_tensor

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """Length of the gradient of the last step, before it was clipped; None without `clip_norm`."""
        return self._way.grad_norm
