"""Numbers that all members read alike after every step: without a stop on a CPU, one step later on a GPU."""

from __future__ import annotations

import torch

from sublet.train.numerics.gradients import LOSS

__all__ = ["Readings"]


class Readings:
    """What the control numbers were at the last step that is known to be over.

    On a GPU they are copied to the host while the next step is under way. All members look at the same one at the
    same boundary, so they still agree; they only learn of an order one step later.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self.numbers = [0.0] * count
        self._heard: float | None = None  # the loss of the step under way
        self._loss: torch.Tensor | None = torch.zeros((), device=device)
        self._number, self._dtype = 0.0, torch.float32  # of the last loss, where nobody has asked for it as a tensor
        self._under_way: tuple[torch.Tensor, torch.cuda.Event] | None = None
        self._hosts = [torch.zeros(count, pin_memory=True) for _ in range(2)] if self._gpu else []

    @property
    def loss(self) -> torch.Tensor:
        """Of the last step, over the global batch, where it was computed."""
        if self._loss is None:
            self._loss = torch.tensor(self._number, dtype=self._dtype)
        return self._loss

    def hear(self, loss: torch.Tensor, control: torch.Tensor) -> bool:
        """All of the loss of a step that one process takes at once: whether it needs no sum, and so no tensors.

        Each kind of call of torch costs more than it seems: it is made once a step, and by then out of the caches.
        """
        if self._gpu or loss.dtype != control.dtype or loss.device != control.device:
            return False
        self._heard = loss.item() + 0.0  # as of a sum that begins with 0.0
        return True

    def take(self, control: torch.Tensor, loss: torch.Tensor) -> None:
        """After a step; `loss` is the number of it."""
        if self._heard is not None:
            self.numbers = [0.0] * len(self.numbers)
            self.numbers[LOSS] = self._number = self._heard
            self._heard, self._loss, self._dtype = None, None, control.dtype
            return
        self._loss = loss.clone()
        if not self._gpu:
            self.numbers = control.tolist()
            return
        before = self._under_way
        host = self._hosts[0] if before is None or before[0] is self._hosts[1] else self._hosts[1]
        host.copy_(control, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no type
        event.record()
        self._under_way = (host, event)
        if before is not None:
            before[1].synchronize()
            self.numbers = before[0].tolist()

    def forget(self) -> None:
        """The group has changed: what is under way was said in another one."""
        self._under_way = self._heard = None
        self.numbers = [0.0] * len(self.numbers)
