"""The loss of a step, added up when somebody asks for it."""

from __future__ import annotations

import torch

__all__ = ["Losses"]


class Losses:
    """Of its atoms. On a GPU, to look at one waits for all work that is under way: so nobody looks before it must."""

    def __init__(self, known: float = 0.0) -> None:
        self._known = known
        self._found: list[tuple[torch.Tensor, float]] = []
        self._sent: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def add(self, loss: torch.Tensor, share: float) -> None:
        """That of an atom, which is so much of the step."""
        self._found.append((loss.detach(), share))

    def send(self) -> None:
        """From a GPU on its way here: what is asked for a step later waits for nothing else."""
        if self._found and self._found[0][0].is_cuda and self._sent is None:
            host = torch.empty(len(self._found), dtype=torch.float64, pin_memory=True)
            host.copy_(torch.stack([loss.double() for loss, _ in self._found]), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no type
            event.record()
            self._sent = host, event

    def total(self) -> float:
        """In the order in which they came."""
        numbers: list[float] = []
        if self._sent is not None:
            host, event = self._sent
            event.synchronize()
            numbers = host.tolist()
        for loss, share in zip(numbers or (loss.item() for loss, _ in self._found), self._shares(), strict=True):
            self._known += loss * share
        self._found, self._sent = [], None
        return self._known

    def _shares(self) -> list[float]:
        return [share for _, share in self._found]
