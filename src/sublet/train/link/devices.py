"""On which device a worker trains, and how a group talks whose members may share one."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["GLOO", "NCCL", "agreed_backend", "backend_for", "device_model", "device_name"]

GLOO = "gloo"  # carries tensors of a GPU too, through the host
NCCL = "cpu:gloo,cuda:nccl"


def backend_for(names: Sequence[str]) -> str:
    """For members on devices of these names; "" = a CPU.

    NCCL refuses a GPU that two of its members share ("Duplicate GPU detected"), which is what a node with more workers
    than GPUs means. Gloo sums and broadcasts tensors of a GPU; sending from one to one it cannot (it crashes), so that
    must go through the memory of the host, as state does here.
    """
    shared = len(set(names)) < len(names)
    return GLOO if shared or not all(names) else NCCL


def device_name(device: torch.device) -> str:
    """The same for all processes on this GPU, another for any other GPU of the world; "" for a CPU."""
    if device.type != "cuda":
        return ""
    facts = torch.cuda.get_device_properties(device)
    uuid = str(getattr(facts, "uuid", ""))
    return uuid or f"{socket.gethostname()} {os.environ.get('CUDA_VISIBLE_DEVICES', '')} {device.index or 0}"


def device_model(device: torch.device) -> str:
    """As its maker calls it, or what it is: cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def agreed_backend(store: Any, rank: int, world: int, name: str) -> str:
    """All members tell their devices through the store, and so decide alike."""
    store.set(f"device {rank}", name)
    names = store.multi_get([f"device {member}" for member in range(world)])
    return backend_for([found.decode() for found in names])
