"""Three real workers over gloo who make a few steps with torch's own group: the noise that each has measured."""

from __future__ import annotations

import multiprocessing
import socket

import torch
import torch._dynamo  # the first optimizer of each process would, for two seconds
import torch.distributed as dist

from sublet.train.options import Options
from sublet.train.peers import PeerGroup
from sublet.train.steps import Steps
from sublet.train.turns import Turns
from tests.rigs.ending import end_with_parent
from tests.rigs.little_network import adam, data, loss_of, network

WORLD, STEPS = 3, 3


def together(*cases):
    """Of each case, so many samples of a batch, the noise that each worker has measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes = [context.Pipe() for _ in range(WORLD)]
    workers = [
        context.Process(target=_work, args=(port, rank, cases, pipe), daemon=True)
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    try:
        found = [pipe.recv() if pipe.poll(100) else None for pipe, _ in pipes]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return list(zip(*found, strict=True))


def _work(port, rank, cases, pipe):
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    pipe.send([_trained(PeerGroup(rank=rank, world=WORLD), case) for case in cases])


def _trained(group, samples):
    model = network().eval()
    steps = Steps(model, Turns(model, adam(model)), data(), Options(global_batch=samples, seed=0))
    steps.guard()
    steps.settle_in(group)
    while steps.progress.steps < STEPS:
        for batch in steps.batches(group, lambda: False):
            steps.step(loss_of(model, batch))
    noise = steps.progress.noise
    steps.release()
    return noise.count, noise.signal, noise.scatter
