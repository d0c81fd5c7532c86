"""What the live benchmark trains: a small network whose workers write down when each of their steps ended.

    elastic      under a controller, through `sublet.train`
    restarting   under torchrun: plain DDP that begins again from its own checkpoint
    beside       under a controller: in turns one step through `sublet.train`, one of bare DDP on a twin, and one of
                 DDP with gradients as views, which copies less

A line of `<folder>/<pid>` is: generation, workers, rank, steps made, seconds of the machine's monotonic clock; of
`beside` the last are seconds of each of the three steps, on the wall and on a core. What an accelerator would
take per sample is slept, so that four workers fit on two cores and more of them are faster.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from sublet import train

WIDTH, SAMPLES, BATCH = 256, 1 << 12, 64
SAVE_EVERY = 50  # steps, of the script that restarts
BESIDE_WIDTH, BESIDE_BATCH = 256, 128  # about 10 ms of arithmetic, for two workers on a core each
WARM_UP = 50  # pairs


class Diary:
    """One file per process, so that nobody waits for anybody."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *facts: float) -> None:
        """One line, there for all to read at once."""
        os.write(self._file, (" ".join(map(repr, facts)) + "\n").encode())


def main() -> None:
    """Train as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("elastic", "restarting", "beside"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ms-per-sample", type=float, default=1.5)
    asked = parser.parse_args()
    torch.manual_seed(0)
    if asked.mode == "beside":
        beside(asked.folder, asked.steps)
    else:
        train_on = elastic if asked.mode == "elastic" else restarting
        train_on(asked.folder, asked.steps, asked.ms_per_sample / 1e3)


def elastic(folder: Path, steps: int, sample_s: float) -> None:
    """As a user of the SDK writes it, and a line per step."""
    diary, model, data = Diary(folder), _network(WIDTH), _data(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    with train.session(model, optimizer, data, global_batch=BATCH) as session:
        made = session.steps
        for inputs, wanted in session.batches(epochs=-(-steps * BATCH // SAMPLES)):
            loss = nn.functional.mse_loss(model(inputs), wanted)
            time.sleep(sample_s * len(inputs))
            session.step(loss)
            if session.steps > made:  # a step whose group broke was not made
                made = session.steps
                diary.write(session.generation, session.world, session.rank, made, time.monotonic())


def restarting(folder: Path, steps: int, sample_s: float) -> None:
    """As a user of torchrun writes it: DDP, a checkpoint now and then, and on from there."""
    diary, model, data = Diary(folder), _network(WIDTH), _data(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    saved, first = folder.with_suffix(".checkpoint"), 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    parallel = DistributedDataParallel(model)
    for step in range(first, steps):
        inputs, wanted = (tensor[_share(step, BATCH, rank, world)] for tensor in data.tensors)
        loss = nn.functional.mse_loss(parallel(inputs), wanted)
        time.sleep(sample_s * len(inputs))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        diary.write(restarts, world, rank, step + 1, time.monotonic())
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            draft = saved.with_suffix(".draft")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, draft)
            draft.replace(saved)


def beside(folder: Path, steps: int) -> None:
    """Seconds of each kind of step, in turns, over the same workers and the same connections."""
    diary, data, model = Diary(folder), _data(BESIDE_WIDTH), _network(BESIDE_WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    with train.session(model, optimizer, data, global_batch=BESIDE_BATCH) as session:
        batches = session.batches(epochs=-(-(WARM_UP + steps + 1) * BESIDE_BATCH // SAMPLES))
        inputs, wanted = next(batches)  # joins the group, which DDP then uses too
        session.step(nn.functional.mse_loss(model(inputs), wanted))
        twins = [
            DistributedDataParallel(_network(BESIDE_WIDTH), gradient_as_bucket_view=as_view)
            for as_view in (False, True)
        ]
        others = [torch.optim.AdamW(twin.parameters()) for twin in twins]
        order = torch.randperm(SAMPLES)
        for step in range(WARM_UP + steps):
            moments = [_both_clocks()]
            inputs, wanted = next(batches)
            session.step(nn.functional.mse_loss(model(inputs), wanted))
            moments.append(_both_clocks())
            for index, other in enumerate(others):
                chosen = order[_share(step, BESIDE_BATCH, session.rank, session.world)]
                inputs, wanted = (tensor[chosen] for tensor in data.tensors)
                other.zero_grad()
                loss = nn.functional.mse_loss(twins[index](inputs), wanted)
                loss.backward()  # type: ignore[no-untyped-call]
                other.step()
                moments.append(_both_clocks())
            if step >= WARM_UP:
                pairs = itertools.pairwise(moments)
                took = [later - sooner for before, after in pairs for sooner, later in zip(before, after, strict=True)]
                diary.write(session.generation, session.world, session.rank, *took)
        del twins  # before the group, whose threads would otherwise wait for us


def _both_clocks() -> tuple[float, float]:
    """Seconds on the wall, and of this process on a core, all its threads together."""
    return time.perf_counter(), time.process_time()


def _network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
    )


def _data(width: int) -> TensorDataset:
    inputs = torch.randn(SAMPLES, width)
    return TensorDataset(inputs, inputs.roll(1, dims=1))


def _share(step: int, batch: int, rank: int, world: int) -> slice:
    """This worker's samples of a step."""
    start = step * batch % SAMPLES
    return slice(start + rank * batch // world, start + (rank + 1) * batch // world)


if __name__ == "__main__":
    main()
