"""A group of real processes over gloo, some of whose parameters take no part in some steps; and torch's own loop."""

from __future__ import annotations

import multiprocessing
import random
import socket

import torch
import torch._dynamo  # the first optimizer of each process would, for two seconds
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from sublet.train.checkpoint.saving import Saver
from sublet.train.data.samples import mixed
from sublet.train.link.peers import PeerGroup
from sublet.train.sessions.options import Options
from sublet.train.sessions.steps import Steps
from sublet.train.sessions.turns import Turns
from sublet.train.shards.meeting import PeerMesh
from sublet.train.shards.run import SessionRun
from sublet.train.state.state import State
from tests.rigs.ending import end_with_parent

WIDTH, WAYS, BATCH, MICRO, STEPS, CLIP = 5, 4, 12, 2, 10, 0.5
OPTIMIZERS = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.01),  # a moment that does not begin with zero
}


class Ways(nn.Module):
    """Which of them samples go, follows from the step, and from the samples."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.ways = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(WAYS))
        self._seed = seed
        self.double()

    def forward(self, x, number, step):
        rng = random.Random(f"{self._seed} {step}")
        open_ways = rng.sample(range(WAYS - 1), rng.randint(1, WAYS - 1))  # and nobody ever goes the last
        found = self.first(x)
        if rng.random() < 0.4:
            found = found.detach()
        way = open_ways[int(number[0]) % len(open_ways)]
        return self.ways[way](found.tanh())


def freeze(model, seed, step):
    """Some of them, for this step: never all that a sample goes through."""
    rng = random.Random(f"{seed} is frozen at {step}")
    for name, parameter in model.named_parameters():
        may = not (name.startswith("ways") and name.endswith("bias"))
        parameter.requires_grad_(not (may and step > 0 and rng.random() < 0.4))


def data():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.sin().sum(1, keepdim=True), torch.arange(BATCH))


def told(model, optimizer_state):
    weights = {name: each.tolist() for name, each in model.state_dict().items()}
    kept = {
        str(number): {name: torch.as_tensor(each).tolist() for name, each in state.items() if each is not None}
        for number, state in optimizer_state.items()
    }
    return {"weights": weights, "kept": kept}


def alone(optimizer, seed, *, freezes=False):
    """Torch's own loop, over micro-batches as they are in the group; what `freezes` is frozen and thawed on the way."""
    model, samples = Ways(seed), data()
    updates = OPTIMIZERS[optimizer](model)
    for step in range(STEPS):
        updates.zero_grad()
        if freezes:
            freeze(model, seed, step)
        order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(mixed(0, step)))
        for at in range(0, BATCH, MICRO):
            x, y, number = samples[order[at : at + MICRO]]
            (nn.functional.mse_loss(model(x, number, step), y) * (MICRO / BATCH)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        updates.step()
    return told(model, updates.state_dict()["state"])


def together(world, cases):
    """Of each case (ranges, optimizer, seed, freezes) what each worker has in the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pipes = [context.Pipe() for _ in range(world)]
    workers = [
        context.Process(target=_work, args=(port, rank, world, cases, pipe), daemon=True)
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


def _work(port, rank, world, cases, pipe):
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    pipe.send([_trained(PeerGroup(rank=rank, world=world), *case) for case in cases])


def _trained(group, ranges, optimizer, seed, freezes):
    model = Ways(seed)
    updates = OPTIMIZERS[optimizer](model)
    options = Options(global_batch=BATCH, micro_batch=MICRO, clip_norm=CLIP, seed=0)
    steps = Steps(model, Turns(model, updates), data(), options)
    state, mesh = State(model, updates, [], None, 0), PeerMesh(group)
    if ranges > 1:
        run = SessionRun(steps, state, Saver(None, "alone", lambda _: None))
        run.carries = True
        run.shards.meet(mesh, ranges)
    steps.guard()
    steps.settle_in(group)
    while steps.progress.steps < STEPS:
        for x, y, number in steps.batches(group, lambda: False):
            if freezes:
                freeze(model, seed, steps.progress.steps)
            steps.step(nn.functional.mse_loss(model(x, number, steps.progress.steps), y))
    if ranges == 1:
        return told(model, updates.state_dict()["state"])
    run.shards.collect(mesh)  # to the first
    return told(model, state.moments.state_dict()["state"] if group.rank == 0 else {})
