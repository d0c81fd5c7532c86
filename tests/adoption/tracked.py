"""A job that logs every step to TRACKER, struck as in `strikes`, and told after each strike what it has cost."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend

from sublet import train
from sublet.wire.messages import Spent
from sublet_lab.trainers import World
from tests.adoption.strikes import BATCH, PAUSE_S, Logged, _make, _over, _save_and_leave, _until, network
from tests.rigs.logged import TRACKERS

EPOCHS = 6


def logging(directory: Path) -> None:
    torch.set_num_threads(1)
    model, data = network(), Logged(320)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tracker = TRACKERS[os.environ["TRACKER"]][0](directory / "runs")
    with train.session(model, optimizer, data, global_batch=BATCH, epochs=EPOCHS, tracker=tracker) as s:
        for x, y in s:
            time.sleep(float(os.environ["PAUSE_S"]))
            while (directory / "hold").exists():
                time.sleep(0.005)
            s.step(torch.nn.functional.mse_loss(model(x), y))
            if s.updated:
                s.log({"loss": s.loss})
    if s.rank == 0:
        (directory / "steps").write_text(str(s.steps))


def _world(directory: Path) -> World:
    more = {"SUBLET_CHECKPOINT_DIR": str(directory / "checkpoints"), "SUBLET_RUN_ID": "home-job-1"}
    return World(logging, directory, PAUSE_S=str(PAUSE_S), **more)


def _joins(world: World, directory: Path) -> None:
    """One more; a busy machine takes long to start it, and training is not to end meanwhile."""
    staying = [member for member in world.members if member.code is None]
    (directory / "hold").touch()
    new = world.start(1)
    _until(world, lambda: all(worker.ready for worker in new), "ready")
    (directory / "hold").unlink()
    world.regroup(staying + new)
    _until(world, lambda: world.finished or world.joined_all(), "joined")


def _pay(world: World, usd: float, resizes: int, preemptions: int) -> None:
    for member in world.members:
        member.say(Spent(worker_id=member.name, usd=usd, resizes=resizes, preemptions=preemptions))


def tracked(directory: Path) -> dict[str, object]:
    """Two workers; rank 0 is killed; all leave with a checkpoint; the one that comes is killed and steps are redone."""
    importlib.import_module(f"sublet.integrations.{os.environ['TRACKER']}")  # seconds that each worker would spend
    world = _world(directory)
    _joins(world, directory)
    _make(world, 5)
    _joins(world, directory)
    _pay(world, 0.5, 1, 0)
    _make(world, 15)
    world.kill(world.members[0])
    _until(world, lambda: world.finished or (len(world.members) == 1 and world.joined_all()), "the other goes on")
    _pay(world, 1.5, 2, 1)
    _make(world, 25)
    _save_and_leave(world)
    _joins(world, directory)
    _make(world, 35)
    world.kill(world.members[0])
    _until(world, lambda: all(worker.code is not None for worker in world.workers), "it is gone")
    before = max(world.heard_steps())
    _joins(world, directory)
    redone = before - max(
        said.step for _, name, said in world.messages if name == world.members[0].name and hasattr(said, "redone_steps")
    )
    return _over(world, redone=redone)


SCENARIOS = {"tracked": tracked}
