"""The device of a worker, the backend of a group, and host memory for messages between GPUs.

Gloo ends a process that hands it memory of a GPU, so messages go through the host. That memory is pinned, so copies run
at the speed of the bus and beside other work. Torch keeps released pinned memory for later, so there is no pool here.

    there = staging.out(tensor)                    # to be sent; the tensor itself where it is on the host already
    room = staging.room(tensor)                    # to be received into
    staging.bring(room, tensor)                    # when it has come
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import torch

GLOO = "gloo"  # carries tensors of a GPU too, through the host
NCCL = "cpu:gloo,cuda:nccl"
ONE_GPU = "SUBLET_TEST_ONE_GPU"  # tests alone set it: workers on one GPU pass for workers with a GPU each


def backend_for(names: Sequence[str]) -> str:
    """The backend of a group whose members train on devices of these names; "" = a CPU.

    NCCL refuses a GPU that two members share ("Duplicate GPU detected"). Gloo sums and broadcasts tensors of a GPU, but
    crashes when it sends one from member to member: such messages go through the host.
    """
    shared = len(set(names)) < len(names)
    return GLOO if shared or not all(names) else NCCL


def device_name(device: torch.device, *, whole: bool = False) -> str:
    """The same for all processes on this GPU, another for any other GPU of the world; "" for a CPU.

    Where tests share one (`ONE_GPU`), each process has another name for its share, and all the same for the `whole`.
    """
    if device.type != "cuda":
        return ""
    facts = torch.cuda.get_device_properties(device)
    uuid = str(getattr(facts, "uuid", ""))
    if os.environ.get(ONE_GPU) and not whole:
        return f"{uuid} {os.getpid()}"
    return uuid or f"{socket.gethostname()} {os.environ.get('CUDA_VISIBLE_DEVICES', '')} {device.index or 0}"


def device_model(device: torch.device) -> str:
    """The maker's name of it, or its type: cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def agreed_backend(store: Any, rank: int, world: int, name: str) -> str:
    """All members publish their devices in the store, and so decide alike."""
    store.set(f"device {rank}", name)
    names = store.multi_get([f"device {member}" for member in range(world)])
    return backend_for([found.decode() for found in names])


def one_gpu_settings() -> dict[str, str]:
    """By which NCCL takes processes on one GPU for hosts, which talk by sockets; nothing outside of tests."""
    if not os.environ.get(ONE_GPU):
        return {}
    apart = {"NCCL_HOSTID": f"process-{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo"}
    return apart | {f"NCCL_{way}_DISABLE": "1" for way in ("P2P", "SHM", "IB")}


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
        """Host memory of the same size, to receive into; the tensor itself if it is on the host."""
        if not self.is_needed(tensor):
            return tensor
        return host_memory(tensor.shape, tensor.dtype, pinned=tensor.is_cuda)

    def bring(self, there: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy received memory to the tensor: on a GPU before all later work."""
        if there is not tensor:
            tensor.copy_(there, non_blocking=True)


def host_memory(shape: Sequence[int], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    """Uninitialised."""
    if pinned:
        try:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        except RuntimeError:  # no more memory may be pinned: slower copies are better than none
            pass
    return torch.empty(shape, dtype=dtype)
