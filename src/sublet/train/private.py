"""The only module that uses private names of torch, each with its reason.

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


def times_written(tensor: torch.Tensor) -> int:
    """The number of writes in place: the only sign that backward added to a gradient."""
    return tensor._version


def is_compiled(module: torch.nn.Module) -> bool:
    """By `module.compile()`, which keeps the class of the module."""
    return module._compiled_call_impl is not None


def parts_of(scheduler: Any) -> Sequence[Any]:
    """The schedulers inside a ChainedScheduler or SequentialLR."""
    return cast(Sequence[Any], getattr(scheduler, "_schedulers", ()))


def copy_all(there: list[torch.Tensor], here: list[torch.Tensor]) -> None:
    """Many copies in one launch, as torch's own optimizers do: one by one, launches take longer than copies."""
    if there:
        torch._foreach_copy_(there, here)


@contextmanager
def answered_for(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` return this: torch sets it only in its own worker processes."""
    was = data_worker._worker_info
    data_worker._worker_info = info
    try:
        yield
    finally:
        data_worker._worker_info = was


# ---------------------------------------------------------------------- groups


def gather_blocks(group: Any, everything: torch.Tensor, mine: torch.Tensor) -> Any:
    """The block of each member, by rank: public functions do so for groups that torch has a name for."""
    return group._allgather_base(everything, mine)


@contextmanager
def coalesced(group: Any) -> Iterator[list[Any]]:
    """Messages of NCCL that go together, as `batch_isend_irecv` has them for named groups (needs a GPU).

    What to wait for is in the list afterwards.
    """
    works: list[Any] = []
    group._start_coalescing()
    try:
        yield works
    finally:
        works.append(group._end_coalescing())


def nccl_options(timeout: timedelta) -> Any:
    """For an NCCL group made without `init_process_group`, which sets the timeout in the same way (needs a GPU)."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return options


# ---------------------------------------------------------------------- memory of a GPU that another process reads


def as_shared(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """The facts by which another process on the same GPU opens this storage, as torch's pickle has them."""
    return cast(tuple[Any, ...], cast(Any, storage)._share_cuda_())


def shared_from(facts: Sequence[Any]) -> torch.UntypedStorage:
    """Open the storage of `as_shared`: the public way is a pickle, which can run any code."""
    return torch.UntypedStorage._new_shared_cuda(*facts)
