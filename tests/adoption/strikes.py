"""Scripts of `scripts/` as workers whose nodes are taken, and what they come to.

alone       one worker, left in peace
resized     one, then two; the first is killed; all leave with a checkpoint, and another goes on to the end
restarted   one worker; all leave with a checkpoint and another goes on, twice
judged      two workers, of which rank 0 alone evaluates, and is killed
"""

from __future__ import annotations

import importlib
import os
import runpy
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend

from sublet import train
from sublet.train.sessions import loop
from sublet_lab.trainers import World
from tests.rigs.training import BATCH, Logged, network

SCRIPTS = Path(__file__).parent / "scripts"
LONG_S = 100.0  # on a busy machine
PAUSE_S = 0.05  # a step: strikes are told steps, and news of them come five times a second
WIDE = 5  # steps that two workers make before one of them is struck


def paced(directory: Path) -> None:
    """One of the scripts, slowly enough to be struck; it notes at which width each step was made."""
    torch.set_num_threads(1)
    os.chdir(directory)
    step, pause_s = loop.Session.step, float(os.environ["PAUSE_S"])

    def slow_step(self: loop.Session, *given: object, **named: object) -> None:
        time.sleep(pause_s)
        while Path("hold").exists():
            time.sleep(0.005)
        step(self, *given, **named)
        if self.updated:
            with Path("widths").open("a") as noted:
                noted.write(f"{self.steps} {self.world}\n")

    loop.Session.step = slow_step
    runpy.run_path(str(SCRIPTS / os.environ["SCRIPT"] / "after.py"), run_name="__main__")


def _world(directory: Path, script: Callable[[Path], None] = paced, pause_s: float = PAUSE_S) -> World:
    if framework := os.environ.get("FRAMEWORK"):
        importlib.import_module(framework)  # seconds, as above
    # As a controller says at first.
    ranks = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    return World(script, directory, PAUSE_S=str(pause_s), SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"), **ranks)


def _until(world: World, reached: Callable[[], bool], what: str) -> None:
    world.until(reached, what, wait_s=LONG_S)


def _begin(world: World) -> None:
    """One more worker, and the others that are there: a busy machine takes long to start it, so they wait."""
    staying, hold = [member for member in world.members if member.code is None], world.directory / "hold"
    hold.touch()
    new = world.start(1)
    _until(world, lambda: all(worker.ready for worker in new), "ready")
    world.regroup(staying + new)
    hold.unlink()
    _until(world, lambda: world.finished or world.joined_all(), "joined")


def _make(world: World, steps: int) -> None:
    _until(world, lambda: world.finished or max(world.heard_steps(), default=-1) >= steps, f"step {steps}")


def _wide(world: World) -> int:
    """Steps that were made by two workers."""
    noted = world.directory / "widths"
    rows = [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []
    return len({step for step, width in rows if width == "2"})


def _save_and_leave(world: World) -> None:
    world.regroup([], save=True)
    _until(world, lambda: all(worker.code is not None for worker in world.workers), "all left")


def _over(world: World, **facts: object) -> dict[str, object]:
    _until(world, lambda: world.finished, "finished")
    _until(world, lambda: all(member.code is not None for member in world.members), "exits")
    return {"codes": list(world.codes().values()), "generations": world.generation, **facts}


def alone(directory: Path) -> dict[str, object]:
    world = _world(directory, pause_s=0.0)
    _begin(world)
    return _over(world)


def resized(directory: Path) -> dict[str, object]:
    world = _world(directory)
    _begin(world)
    _make(world, 8)
    _begin(world)
    _until(world, lambda: world.finished or _wide(world) >= WIDE, f"{WIDE} steps by two")
    _make(world, 18)
    world.kill(world.members[0])
    _until(world, lambda: world.finished or (len(world.members) == 1 and world.joined_all()), "the other goes on")
    _make(world, 28)
    _save_and_leave(world)
    _begin(world)
    return _over(world, wide=_wide(world))


def restarted(directory: Path) -> dict[str, object]:
    world = _world(directory)
    for steps in (10, 25):
        _begin(world)
        _make(world, steps)
        _save_and_leave(world)
    _begin(world)
    return _over(world)


# -------------------------------------------------------------------------------------- other loops


LOSSES = (5.0, 2.0, 4.0, 3.0, 1.0, 6.0)  # after each epoch


def judging(directory: Path) -> None:
    """Rank 0 notes the epochs that were the best so far; after the third all wait."""
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with train.session(model, optimizer, Logged(4 * BATCH), global_batch=BATCH, epochs=len(LOSSES)) as s:
        kept = s.keep(best=float("inf"))
        for epoch in s.epochs():
            for x, y in s:
                s.step(torch.nn.functional.mse_loss(model(x), y))
                while s.steps >= 14 and not (directory / "go").exists():
                    (directory / f"{s.rank}.waits").touch()
                    time.sleep(0.02)
            if s.rank == 0 and LOSSES[epoch] < kept.best:
                kept.best = LOSSES[epoch]
                with (directory / "best").open("a") as noted:
                    noted.write(f"{epoch} ")


def judged(directory: Path) -> dict[str, object]:
    world = _world(directory, judging)
    both = world.start(2)
    _until(world, lambda: all(worker.ready for worker in both), "ready")
    world.regroup(both)
    _until(world, lambda: all((directory / f"{rank}.waits").exists() for rank in (0, 1)), "both wait")
    world.kill(world.members[0])
    (directory / "go").touch()
    return _over(world)


SCENARIOS = {scenario.__name__: scenario for scenario in (alone, resized, restarted, judged)}
