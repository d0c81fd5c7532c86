"""Three real workers over gloo who make a few steps with torch's own group: what each of them came to, and said."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import random
import socket

import numpy as np
import torch
import torch._dynamo  # the first optimizer of each process would, for two seconds
import torch.distributed as dist

from sublet.train.gradients import DOUBT
from sublet.train.options import Options
from sublet.train.peers import PeerGroup
from sublet.train.steps import Steps
from sublet.train.turns import Turns
from tests.rigs.ending import end_with_parent
from tests.rigs.little_network import adam, data, loss_of, network

WORLD, STEPS = 3, 3


def together(*cases):
    """Of each case (samples of a batch, who draws) what each worker says: its noise, its dice, and its words."""
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
    pipe.send([_trained(PeerGroup(rank=rank, world=WORLD), *case) for case in cases])


def draw(who, rank, batch):
    """As a script would, in its loop."""
    if who == "samples":
        np.random.random(len(batch[0]))  # noqa: NPY002 - the dice of a script
    elif who == "all" or (who == "rank 0" and rank == 0):
        random.random()


def _trained(group, samples, who):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - as above
    model = network().eval()
    steps = Steps(model, Turns(model, adam(model)), data(), Options(global_batch=samples, seed=0))
    steps.guard()
    steps.settle_in(group)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        while steps.progress.steps < STEPS:
            for batch in steps.batches(group, lambda: False):
                draw(who, group.rank, batch)
                steps.step(loss_of(model, batch))
            if steps.readings.numbers[DOUBT] > 0.0:  # as a session does between two steps
                steps.drift.require_equal(group, steps.progress)
    noise = steps.progress.noise
    steps.release()
    return {
        "noise": (noise.count, noise.signal, noise.scatter),
        "dice": (random.random(), np.random.random()),  # noqa: NPY002 - as above
        "said": said.getvalue(),
    }
