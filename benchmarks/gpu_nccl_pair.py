"""One rank of two, for `benchmarks.gpu_nccl steps`: a session under torchrun's variables, and plain DDP, in turns.

The default group of torch is DDP's: the session has groups of its own beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpt import LARGE, TINY, Sizes, loss_of, made, text_of
from sublet import train
from sublet.train.link.devices import one_gpu_settings

BATCH, BLOCKS, STEPS = 16, 16, 6


def main() -> None:
    """Rank 0 prints seconds a step, of each block."""
    sizes = TINY if os.environ.get("SUBLET_BENCH_TINY") else LARGE
    os.environ.update(one_gpu_settings())
    torch.set_num_threads(1)
    if sizes is LARGE:
        torch.cuda.set_device(0)
    loops = {"session": session_steps(sizes), "ddp": ddp_steps(sizes)}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(BLOCKS + 1):
        for name, loop in loops.items():
            began_s = time.perf_counter()
            for _ in range(STEPS):
                next(loop)
            if sizes is LARGE:
                torch.cuda.synchronize()
            if number:  # the first block warms up
                times[name].append((time.perf_counter() - began_s) / STEPS)
    print(json.dumps(times))
    sys.stdout.flush()
    os._exit(0)


def session_steps(sizes: Sizes) -> Iterator[None]:
    """As a script has it."""
    model, optimizer = made(sizes)
    with train.session(model, optimizer, text_of(sizes, BATCH * 64), global_batch=BATCH) as session:
        for batch in session.batches(epochs=BLOCKS * STEPS):
            session.step(loss_of(model, batch))
            yield


def ddp_steps(sizes: Sizes) -> Iterator[None]:
    """The same by torch alone."""
    dist.init_process_group("gloo" if sizes is TINY else "nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = made(sizes)
    whole = DistributedDataParallel(model)
    inputs, targets = text_of(sizes, BATCH * 64).tensors
    while True:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0)).to(inputs.device)
        for start in range(0, len(order), BATCH):
            chosen = order[start + rank * BATCH // world : start + (rank + 1) * BATCH // world]
            optimizer.zero_grad(set_to_none=True)
            loss_of(whole, (inputs[chosen], targets[chosen])).backward()  # type: ignore[arg-type, no-untyped-call]  # DDP has no type of its model
            optimizer.step()
            yield


if __name__ == "__main__":
    main()
