"""A script that knows nothing of Sublet: it reads torchrun's variables, saves on SIGTERM, and resumes from its file.

`sublet submit examples/unmodified.yaml` restarts it at every change of width; alone it runs as it is.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS, BATCH = 200, 64


def main() -> None:
    """Fit a line, wherever it was left."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    asked_to_leave: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_leave.append(number))
    file = Path(os.environ.get("SUBLET_CHECKPOINT_DIR", ".")) / "unmodified.pt"
    generator = torch.Generator().manual_seed(rank)
    model, step = nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if "SUBLET_CHECKPOINT_DIR" in os.environ and file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    loss = torch.zeros(())
    while step < STEPS:
        points = torch.randn(BATCH // world, 4, generator=generator)
        loss = nn.functional.mse_loss(model(points), points.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        leave = torch.tensor(float(bool(asked_to_leave)))
        if world > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            dist.all_reduce(leave)  # all leave at the same step
        optimizer.step()
        step += 1
        if leave > 0:
            if rank == 0 and "SUBLET_CHECKPOINT_DIR" in os.environ:
                part = file.with_suffix(".part")
                torch.save({"model": model.state_dict(), "step": step}, part)
                part.replace(file)
            sys.exit(83)  # left on notice, with everything saved: not a failure
    if rank == 0:
        print(f"{step} steps on {world} workers, loss {loss.item():.6f}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
