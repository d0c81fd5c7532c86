"""Real workers over gloo in a torch group of their own, each in a process that ends with its parent."""

from __future__ import annotations

import multiprocessing
import socket

import torch
import torch._dynamo  # the first optimizer of each process would, for two seconds
import torch.distributed as dist

from tests.rigs.ending import end_with_parent


def in_group(world, work, *given):
    """What `work(rank, ...)` has given in each of them, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes = [context.Pipe() for _ in range(world)]
    workers = [
        context.Process(target=_work, args=(port, rank, world, pipe, work, given), daemon=True)
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    try:
        return [pipe.recv() if pipe.poll(100) else None for pipe, _ in pipes]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _work(port, rank, world, pipe, work, given):
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    pipe.send(work(rank, *given))
