"""Scripts that have left their loop, as real processes that are ordered about.

left        a loop that its script leaves early: all are killed behind it, and started again
relieved    the same, and one of two is lost before it has said that it left
undone      the same with ranges, of which one is lost with it: there is only the checkpoint of some steps before
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend

from sublet import train
from sublet.wire.files import Saved
from sublet.wire.messages import SaveNow
from sublet_lab.trainers import World
from tests.rigs.training import Logged, network

LONG_S = 100.0  # on a busy machine
SAMPLES, BATCH, EPOCHS = 320, 16, 4
STEPS = SAMPLES // BATCH  # of an epoch


def leaving(directory: Path) -> None:
    """Patience, over epochs of which one ends early by itself, or a number of steps; and lines behind the loop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, data, ends_at = network(), Logged(SAMPLES), int(os.environ["ENDS_AT"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    length = {"steps": int(os.environ["STEPS"])} if "STEPS" in os.environ else {"epochs": EPOCHS}
    with train.session(model, optimizer, data, global_batch=BATCH, **length) as s:  # type: ignore[arg-type]
        kept = s.keep(bad=0, seen=[])
        for epoch in s.epochs():
            for x, y in s:
                s.step(torch.nn.functional.mse_loss(model(x), y))
                if epoch == 0 and s.steps_in_epoch == 5:
                    break  # of this epoch alone
                if ends_at and s.steps == ends_at:
                    break
            kept.bad += 1
            kept.seen.append(s.steps)
            if kept.bad == 2 or (ends_at and s.steps == ends_at):
                break
        while s.rank == 1 and "HANGS" in os.environ:
            (directory / "hangs").touch()
            time.sleep(0.005)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()
    end = {"weights": weights, "bad": kept.bad, "seen": kept.seen, "steps": s.steps, "epoch": s.epoch}
    draft = directory / f"{os.environ['SUBLET_WORKER_ID']}.draft"
    draft.write_text(json.dumps(end))
    draft.rename(draft.with_suffix(".end"))
    while not (directory / "go").exists():  # evaluates, saves its model
        time.sleep(0.005)


def left(directory: Path, workers: int) -> dict[str, object]:
    """What each start came to. The first is killed behind its loop, and so is the second."""
    world = World(leaving, directory, SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"))
    found = []
    for start in range(3):
        before = set(directory.glob("*.end"))
        _begin(world, workers)
        _until(world, lambda b=before: len(set(directory.glob("*.end")) - b) == workers, "behind its loop")
        found.append([json.loads(path.read_text()) for path in sorted(set(directory.glob("*.end")) - before)])
        if start == 2:
            (directory / "go").touch()
            _until(world, lambda: all(member.code is not None for member in world.members), "exits")
        for worker in world.workers:
            if worker.code is None:
                world.kill(worker)
        _until(world, lambda: all(worker.code is not None for worker in world.workers), "all are gone")
    logs = sorted(directory.glob("*.err"))
    return {"starts": found, "codes": list(world.codes().values()), "said": [path.read_text() for path in logs]}


def relieved(directory: Path) -> dict[str, object]:
    """Of two that have left their loop one is killed before it has said so, and another comes in its place."""
    world = World(leaving, directory, SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"), HANGS="1")
    _begin(world, 2)
    _until(world, (directory / "hangs").exists, "it hangs")
    del world.env["HANGS"]
    (new,) = world.start(1)
    _until(world, lambda: new.ready, "ready")
    stays, goes = world.members
    world.kill(goes)
    world.regroup([stays, new])
    (directory / "go").touch()
    _until(world, lambda: all(worker.code is not None for worker in world.workers), "exits")
    ends = [json.loads(path.read_text()) for path in sorted(directory.glob("*.end"))]
    return {"ends": ends, "codes": list(world.codes().values()), "finished": world.finished}


def undone(directory: Path) -> dict[str, object]:
    """What was found of the first, and what another that is started then comes to."""
    world = World(leaving, directory, SUBLET_CHECKPOINT_DIR=str(directory / "checkpoints"), HANGS="1")
    world.keep = 1
    _begin(world, 2)
    stays, goes = world.members
    stays.say(SaveNow(worker_id=stays.name))
    _until(world, lambda: any(isinstance(said, Saved) for _, said in stays.heard), "saved")
    _until(world, (directory / "hangs").exists, "it hangs")
    world.kill(goes)
    world.regroup([stays], broken=True)
    _until(world, lambda: all(worker.code is not None for worker in world.workers), "both have ended")
    found: dict[str, object] = {"finished": world.finished, "codes": list(world.codes().values())}
    del world.env["HANGS"]
    (directory / "go").touch()
    _begin(world, 1)
    _until(world, lambda: all(worker.code is not None for worker in world.workers), "exits")
    [end] = [json.loads(path.read_text()) for path in directory.glob("*.end")]
    return found | {"then": world.finished, "end": end}


def _begin(world: World, count: int = 1) -> None:
    """So many more workers, and the others that are there, which wait for them meanwhile."""
    staying, hold = [member for member in world.members if member.code is None], world.directory / "hold"
    hold.touch()
    new = world.start(count)
    _until(world, lambda: all(worker.ready or worker.code is not None for worker in new), "ready")
    world.regroup(staying + new)
    hold.unlink()
    _until(world, lambda: world.finished or world.joined_all(), "joined")


def _until(world: World, reached: Callable[[], bool], what: str) -> None:
    world.until(reached, what, wait_s=LONG_S)


SCENARIOS = {scenario.__name__: scenario for scenario in (left, relieved, undone)}
