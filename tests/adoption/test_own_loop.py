"""A loop of the script's own under a real controller: two ranks, a pause, a kill; it never starts over."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.chaos.rig import rig

torch = pytest.importorskip("torch")

STEPS = 300
SCRIPT = f"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from sublet import train

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ck = train.checkpointed(model=model, optimizer=optimizer, steps={STEPS})
for step in range(ck.resume(), {STEPS}):
    time.sleep(float(sys.argv[1]))
    draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    loss = model(torch.randn(4, 8, generator=draw)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ck.tick(step + 1)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), sys.argv[2])
"""
pytestmark = pytest.mark.timeout(250)


def trained(world, folder, name, pause_s, strike=lambda _: None):
    """The weights that it comes to, and its last view."""
    script, end = folder / "own_loop.py", folder / f"{name}.pt"
    script.write_text(SCRIPT, encoding="utf-8")
    job_id = world.submit(
        name=name, argv=(sys.executable, str(script), str(pause_s), str(end)), sdk=False, min_workers=2, max_workers=2
    )
    strike(job_id)
    (view,) = world.until_ended(job_id)
    assert (view["phase"], view["failures_user"]) == ("finished", 0), view["error"]
    return torch.load(end), view


def test_a_loop_of_its_own_tells_how_far_it_is_and_comes_to_the_same_after_a_pause_and_a_kill(tmp_path):
    with rig() as world:
        world.start()

        def strike(job_id):
            world.until(lambda: world.job(job_id).get("step", 0) > 20, "it trains")
            assert 0 < world.job(job_id)["progress"] < 1
            world.post(f"jobs/{job_id}/pause")
            world.until(lambda: world.job(job_id).get("phase") == "paused", "it leaves")
            view = world.job(job_id)
            paused_at = view["step"]
            assert view["checkpoint_step"] == paused_at > 20  # it saved where it was
            assert (view["steps_lost"], view["usd_redone"]) == (0, 0.0)
            world.post(f"jobs/{job_id}/resume")
            world.until(lambda: world.job(job_id).get("step", 0) > paused_at + 20, "it goes on")
            os.kill(world.workers()[0], signal.SIGKILL)
            world.until(lambda: world.job(job_id).get("failures_infra"), "the kill is seen")

        expected, calm = trained(world, tmp_path, "calm", 0.0)
        assert (calm["progress"], calm["work"], calm["usd_redone"]) == (1.0, STEPS, 0.0)
        found, view = trained(world, tmp_path, "struck", 0.02, strike)
        assert all(torch.equal(found[key], value) for key, value in expected.items())
        assert view["steps_lost"] < STEPS / 2  # since the last save, not since the beginning
        assert view["usd_redone"] > 0
        assert view["usd_useful"] > view["usd_redone"]
        said = [event["text"] for event in (world.ask("events", job=view["id"]) or {})["events"]]
        assert not any("started over" in text or "began at step 0" in text for text in said), said
        world.down()
        world.audit()
