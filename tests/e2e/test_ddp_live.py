"""Scripts without the SDK that join a process group, under a real controller."""

from __future__ import annotations

import sys

import pytest

from tests.chaos.rig import rig

torch = pytest.importorskip("torch")

DDP = """
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world, folder = dist.get_rank(), dist.get_world_size(), Path(sys.argv[1])
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
enough = torch.zeros(1)
while not enough:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    (folder / f"trains-{world}-{rank}").touch()
    time.sleep(0.05)
    enough.fill_((folder / "enough").exists())
    dist.all_reduce(enough)  # all end at the same step
dist.destroy_process_group()
"""
COPY = """
import time

import torch

model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
"""
pytestmark = pytest.mark.timeout(300)


def submitted(world, folder, text, *arguments, **facts):
    script = folder / "plain.py"
    script.write_text(text, encoding="utf-8")
    return world.submit(argv=(sys.executable, str(script), *arguments), sdk=False, grace_s=1.0, **facts)


def test_a_script_of_one_or_two_workers_that_is_scaled_to_one_trains_on(tmp_path):
    with rig() as world:
        world.start()
        job_id = submitted(world, tmp_path, DDP, str(tmp_path), max_workers=2)
        world.until((tmp_path / "trains-2-1").exists, "two train")
        world.post(f"jobs/{job_id}/scale", {"low": 1, "high": 1})
        world.until((tmp_path / "trains-1-0").exists, "one trains alone")
        (tmp_path / "enough").touch()
        (view,) = world.until_ended(job_id)
        assert (view["phase"], view["failures_user"]) == ("finished", 0), view["error"]
        world.down()
        world.audit()


def test_several_copies_of_a_script_that_nobody_could_read_are_ended_with_the_reason(tmp_path):
    with rig() as world:
        world.start()
        job_id = submitted(world, tmp_path, COPY, min_workers=2, max_workers=2)
        (view,) = world.until_ended(job_id, patience_s=200.0)
        assert (view["phase"], view["failures_user"]) == ("failed", 1), view
        for words in ("train 2 copies of the same model", "--workers 1", "init_process_group()"):
            assert words in view["error"], words
        world.down()
        world.audit()
