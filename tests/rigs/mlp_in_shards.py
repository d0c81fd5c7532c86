"""A small model that `fully_shard` has cut over all ranks: as a job, in a test's group, and whole, which is its truth.

    python mlp_in_shards.py FOLDER

As a job, rank 0 writes into FOLDER, after each start and after each step, the step, the number of ranks, the loss over
the global batch and a digest of the whole state. It ends where a file `enough` is in FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from sublet import train

BATCH, SAMPLES, PACE_S = 24, 96, 0.05


def a_model():
    """Rows that no number of ranks divides, a frozen layer, and one that has no gradient until step 4."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"in": nn.Linear(6, 13), "frozen": nn.Linear(13, 13), "out": nn.Linear(13, 3)}).double()
    model["late"] = nn.Linear(13, 3).double()
    model["frozen"].requires_grad_(False)
    return model


def an_optimizer(model, kind="adamw"):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def cut(model):
    for layer in model.children():
        fully_shard(layer)
    return model


def loss_of(model, step, rank=0, world=1):
    """The mean over this rank's rows of the global batch."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    mine = rows[torch.arange(BATCH).add(step * BATCH).remainder(SAMPLES)].chunk(world)[rank]
    inside = model["frozen"](model["in"](mine).tanh()).tanh()
    found = model["out"](inside) + (model["late"](inside) if step >= 4 else 0.0)
    return (found - mine[:, :3].sin()).square().mean()


def alone(steps, kind="adamw"):
    """The loss of each step, and the state after the last, where nothing is cut and nobody interrupts."""
    model = a_model()
    optimizer = an_optimizer(model, kind)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    losses = [step_of(model, optimizer, scheduler, step) for step in range(steps)]
    return losses, state_of(model, optimizer)


def step_of(model, optimizer, scheduler, step):
    """Its loss over the global batch."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    optimizer.zero_grad()
    loss = loss_of(model, step, rank, world)
    loss.backward()
    optimizer.step()
    scheduler.step()
    mean = loss.detach() / world
    if world > 1:
        dist.all_reduce(mean)
    return float(mean)


def whole(value):
    value = value.detach()
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).numpy().copy()


def state_of(model, optimizer):
    """All tensors of the model and the optimizer, by name, whole, as arrays."""
    found = {name: whole(each) for name, each in model.named_parameters()}
    names = {id(each): name for name, each in model.named_parameters()}
    for each, row in optimizer.state.items():
        tensors = {key: value for key, value in sorted(row.items()) if isinstance(value, torch.Tensor)}
        found |= {f"{names[id(each)]}.{key}": whole(value) for key, value in tensors.items()}
    return found


def digest_of(model, optimizer):
    digest = hashlib.sha256(repr([group["lr"] for group in optimizer.param_groups]).encode())
    for name, each in sorted(state_of(model, optimizer).items()):
        digest.update(name.encode() + each.tobytes())
    return digest.hexdigest()


def opened(directory, kind="adamw"):
    model = cut(a_model())
    optimizer = an_optimizer(model, kind)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return train.checkpointed(directory=directory, steps=10_000, **parts), model, optimizer, scheduler


def lived(rank, directory, until, kind="adamw"):
    """From the last checkpoint to step `until`, where all are told to go; what it began with and what it left."""
    ck, *parts = opened(directory, kind)
    began, losses = ck.resume(), {}
    at_first = state_of(*parts[:2])
    for step in range(began, until):
        losses[step] = step_of(*parts, step)
        if step == until - 1 and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)  # one of them
        try:
            ck.tick(step + 1)
        except SystemExit as left:
            return began, losses, at_first, state_of(*parts[:2]), left.code
    raise AssertionError("it was told to go")


def lived_in_a_bucket(rank, uri, access, until):
    os.environ.update(access)
    return lived(rank, uri, until)


def main(folder):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ck, *parts = opened(None)
    rank, world = dist.get_rank(), dist.get_world_size()
    step, enough = ck.resume(), torch.zeros(1)
    with (folder / f"{time.time_ns()}-{world}-{rank}.jsonl").open("w") as file:

        def say(loss):
            told = {"step": step, "world": world, "loss": loss, "state": digest_of(*parts[:2])}  # all gather it
            print(json.dumps(told), file=file, flush=True)

        say(None)
        while not enough:
            loss = step_of(*parts, step)
            step += 1
            say(loss)
            ck.tick(step)
            time.sleep(PACE_S)
            enough.fill_((folder / "enough").exists())
            dist.all_reduce(enough)
    dist.destroy_process_group()


def said(folder):
    """What each start of rank 0 wrote, in order; a line that was cut off is left out."""
    lives = []
    for path in sorted(folder.glob("*-0.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        lives += [rows] if rows else []
    return lives


if __name__ == "__main__":
    main(Path(sys.argv[1]))
