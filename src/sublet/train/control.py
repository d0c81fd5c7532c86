"""Numbers that all members read alike after every step: without a stop on a CPU, one step later on a GPU."""

from __future__ import annotations

import torch

__all__ = ["Readings"]


class Readings:
    """What the control numbers were at the last step that is known to be over.

    On a GPU they are copied to the host while the next step is under way. All members look at the same one at the
    same boundary, so they still agree; they only learn of an order one step later.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self.numbers = [0.0] * count
        self._under_way: tuple[torch.Tensor, torch.cuda.Event] | None = None
        self._hosts = [torch.zeros(count, pin_memory=True) for _ in range(2)] if self._gpu else []

    def take(self, control: torch.Tensor) -> None:
        """After a step."""
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
        self._under_way = None
        self.numbers = [0.0] * len(self.numbers)
