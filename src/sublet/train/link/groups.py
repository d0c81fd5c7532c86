"""Torch's groups as objects, without a default group: gloo for memory of the host, NCCL from GPU to GPU.

A script's own `torch.distributed` is free to have a default group beside ours. A group of NCCL is ended by `abort`
and never destroyed: `destroy_process_group`, and the destructor, wait for a peer that is gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sublet.errors import InvalidValue
from sublet.train.link.devices import one_gpu_settings
from sublet.train.link.sockets import COLLECTIVE_TIMEOUT
from sublet.train.private import nccl_options

# Torch's watchdog would end a worker whose peer is gone, and its monitor one that recovers.
QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
}
DUPLICATE = "Duplicate GPU"  # NCCL, of two members on one
_lock = threading.Lock()
_ended: list[Any] = []  # groups of NCCL: their communicators are given back, their destructors never run


def within(store: Any, name: str) -> Any:
    """A part of a store, in which keys of others do not count."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]  # as in sockets.open_store


def gloo_group(store: Any, rank: int, world: int, timeout: timedelta = COLLECTIVE_TIMEOUT) -> Any:
    """Blocks until all are there."""
    return dist.ProcessGroupGloo(store, rank, world, timeout)


def nccl_group(store: Any, rank: int, world: int, device: torch.device) -> Any:
    """Blocks until all are there and have added up once; InvalidValue where two of them have one GPU."""
    os.environ.update(one_gpu_settings())
    with _environment(QUIET):
        group: Any = dist.ProcessGroupNCCL(store, rank, world, nccl_options(COLLECTIVE_TIMEOUT))
    torch.cuda.set_device(device)  # of this thread
    try:
        group.allreduce([torch.zeros(1, device=device)]).wait()
    except RuntimeError as error:
        abort_nccl(group)
        if DUPLICATE in str(error):
            allowed = "one of its own for each worker: as many workers on a node as it has GPUs"
            raise InvalidValue("device", f"{device}, which another worker has too", allowed) from error
        raise
    torch.cuda.current_stream(device).synchronize()
    return group


def abort_nccl(group: Any) -> None:
    """End what it waits for and give back its communicators; from any thread, and more than once."""
    with _lock:
        if any(each is group for each in _ended):
            return
        _ended.append(group)
    with contextlib.suppress(RuntimeError):  # what it was about has failed
        group.abort()


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set for as long as something is made that reads them; those of the user count more."""
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
