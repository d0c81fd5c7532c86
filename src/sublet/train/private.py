"""Names of torch that are not public, each with the reason why it is needed: nothing else here uses one.

Tried with torch 2.13 on CPUs, and with 2.11 on a GPU (`benchmarks.gpu_grid`). For another version there is
`tests/unit/train/test_private.py`, and for what needs a GPU that benchmark.
"""
# ruff: noqa: SLF001 - this is what it is for

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.data._utils import worker as data_worker

__all__ = [
    "abort_nccl",
    "answered_for",
    "as_shared",
    "copy_all",
    "count_groups_anew",
    "is_compiled",
    "nccl_options",
    "parts_of",
    "shared_from",
    "times_written",
]


def times_written(tensor: torch.Tensor) -> int:
    """How often it was written to in place: whether backward added to a gradient shows nowhere else."""
    return tensor._version


def is_compiled(module: torch.nn.Module) -> bool:
    """By `module.compile()`, which leaves the module what it is."""
    return module._compiled_call_impl is not None


def parts_of(scheduler: Any) -> Sequence[Any]:
    """Those that a chain or a sequence of schedulers steps: each counts for itself."""
    return cast(Sequence[Any], getattr(scheduler, "_schedulers", ()))


def copy_all(there: list[torch.Tensor], here: list[torch.Tensor]) -> None:
    """Many copies by one launch, as torch's own optimizers do: one by one the launches take longer than the copies."""
    if there:
        torch._foreach_copy_(there, here)


@contextmanager
def answered_for(info: Any) -> Iterator[None]:
    """What a dataset asks `get_worker_info()` is this: torch sets it in processes of its own alone."""
    was = data_worker._worker_info
    data_worker._worker_info = info
    try:
        yield
    finally:
        data_worker._worker_info = was


# ---------------------------------------------------------------------- groups


def count_groups_anew() -> None:
    """The next group has the name of a first one.

    Torch counts groups and names the next by the count. One that could not be formed is counted and never destroyed,
    and we would wait for a newcomer, whose count begins at 0, under another name.
    """
    dist.distributed_c10d._world.group_count = 0


def abort_nccl(group: Any) -> None:
    """End what this group waits for, from another thread (needs a GPU): public functions wait for it."""
    group._get_backend(torch.device("cuda")).abort()


def nccl_options(timeout: timedelta) -> Any:
    """For a group of NCCL that is made without `init_process_group`, which sets the timeout so itself (needs a GPU)."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return options


# ---------------------------------------------------------------------- memory of a GPU that another process reads


def as_shared(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """The facts by which another process on the same GPU opens it, as torch's own pickle of a tensor has them."""
    return cast(tuple[Any, ...], cast(Any, storage)._share_cuda_())


def shared_from(facts: Sequence[Any]) -> torch.UntypedStorage:
    """What `as_shared` told of: public is only a pickle, which runs whatever comes in it."""
    return torch.UntypedStorage._new_shared_cuda(*facts)
