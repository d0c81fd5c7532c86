"""Memory of the host through which messages between GPUs go: gloo ends a process that hands it memory of a GPU.

It is pinned, so that a copy goes at the speed of the bus, and one to the GPU goes on while we do. Torch keeps pinned
memory that was let go, and hands it out again once no copy uses it any more: so there is no pool of ours.

    there = staging.out(tensor)                    # to be sent; the tensor itself where it is on the host already
    room = staging.room(tensor)                    # to be received into
    staging.bring(room, tensor)                    # when it has come
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["Staging", "host_memory"]


class Staging:
    """For tensors of any device."""

    def is_needed(self, tensor: torch.Tensor) -> bool:
        """Whether this cannot be sent from where it is."""
        return tensor.device.type != "cpu"

    def out(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers on the host, when this returns."""
        if not self.is_needed(tensor):
            return tensor
        there = self.room(tensor)
        there.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        return there

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """As much memory of the host, for what is to come; the tensor itself where it will do."""
        if not self.is_needed(tensor):
            return tensor
        return host_memory(tensor.shape, tensor.dtype, pinned=tensor.is_cuda)

    def bring(self, there: torch.Tensor, tensor: torch.Tensor) -> None:
        """What has come to where it belongs: on a GPU before all that is asked of it from now on."""
        if there is not tensor:
            tensor.copy_(there, non_blocking=True)


def host_memory(shape: Sequence[int], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    """Of which nobody knows what is in it."""
    if pinned:
        try:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        except RuntimeError:  # no more memory may be pinned: slower copies are better than none
            pass
    return torch.empty(shape, dtype=dtype)
