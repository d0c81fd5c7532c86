"""How workers with ranges talk, over the group that sums their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sublet.train.link.peers import PeerGroup, talking
from sublet.train.link.staging import Staging

__all__ = ["PeerMesh"]

_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name warns in 2.13


class PeerMesh:
    """As `meeting.Mesh` says; of one alone nothing is said."""

    def __init__(self, group: PeerGroup, staging: Staging | None = None) -> None:
        self._staging = staging or Staging()
        self.rank, self.world, self._group = group.rank, group.world, group
        self._works: list[Any] = []
        self._sent: list[torch.Tensor] = []  # memory that gloo still reads
        self._came: list[tuple[torch.Tensor, torch.Tensor]] = []  # where it belongs, and what came for it
        self._batch: list[Any] = []

    def sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Over all."""
        if len(ranks) > 1 and tensor.numel():
            with talking():
                self._group.all_reduce(tensor)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """What `source` has, at all."""
        if self.world > 1 and tensor.numel():
            with talking():
                self._group.broadcast(tensor, source)

    def gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """The block of each, by rank."""
        with talking():
            self._group.wait(_ALL_GATHER(everything, mine, async_op=True))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """By gloo from the host's memory (`staging`). NCCL has its messages all at once."""
        if self._group.is_nccl:
            self._batch.append(dist.P2POp(dist.isend, tensor.to(self._group.device), to))
            return
        there = self._staging.out(tensor)
        self._sent.append(there)
        with talking():
            self._works.append(dist.isend(there, to, tag=tag))

    def receive(self, tensor: torch.Tensor, giver: int, tag: int) -> None:
        """See `send`."""
        if self._group.is_nccl:
            device = self._group.device
            there = tensor if tensor.device == device else torch.empty_like(tensor, device=device)
            self._came.append((tensor, there))
            self._batch.append(dist.P2POp(dist.irecv, there, giver))
            return
        there = self._staging.room(tensor)
        self._came.append((tensor, there))
        with talking():
            self._works.append(dist.irecv(there, giver, tag=tag))

    def settle(self) -> None:
        """Until all is there."""
        works, batch, came = self._works, self._batch, self._came
        self._works, self._batch, self._came = [], [], []
        with talking():
            if batch:
                works = [*works, *dist.batch_isend_irecv(batch)]
            for work in works:
                self._group.wait_for_message(work)
        for tensor, there in came:
            self._staging.bring(there, tensor)
        self._sent = []
