"""Two workers that have measured something else each, and a scenario in which rank 0's counts.

Run by `tests/rigs/scenario.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from sublet import train
from sublet_lab.trainers import World
from tests.rigs.training import BATCH, Logged, network


def asks(directory: Path) -> None:
    """After the first step, after a whole epoch, and at its end: what this rank has, and what all are told."""
    torch.set_num_threads(1)
    model, told = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with train.session(model, optimizer, Logged(3 * BATCH + 1), global_batch=BATCH, epochs=1) as s:
        for _ in s.epochs():
            for x, y in s:
                s.step(torch.nn.functional.mse_loss(model(x), y))
                if s.steps == 1:
                    told.append(s.told_by_rank_0([s.rank + 0.1, float("nan") if s.rank else 1e-30]))
            told.append(s.told_by_rank_0([s.rank + 7.0]))  # the last step had a sample for one of them alone
    (directory / f"{os.environ['SUBLET_WORKER_ID']}.json").write_text(json.dumps([s.rank, told]))


def together(directory: Path) -> dict[str, object]:
    world = World(asks, directory)
    workers = world.start(2)
    world.until_ready(workers)
    world.regroup(workers)
    world.until_over()
    return {"told": sorted(json.loads(path.read_text()) for path in directory.glob("w*.json"))}


SCENARIOS = {"together": together}
