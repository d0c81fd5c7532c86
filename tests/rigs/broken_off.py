"""Scripts that are broken off amid an epoch, as real processes that are ordered about.

swallowed   a script that catches everything, run as an agent runs it: told to leave, and then another start of it
annealed    lines before the batches, an evaluation among them: workers come amid an epoch, are killed, and come back
left        a loop that its script leaves early: all are killed behind it, and started again
relieved    the same, and one of two is lost before it has said that it left
undone      the same with ranges, of which one is lost with it: there is only the checkpoint of some steps before
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend

from sublet import train
from sublet.runtime.agent.script import WarmCommand, run_script
from sublet.testing.trainers import World
from sublet.wire.messages import Left, SaveNow
from sublet.wire.saves import Saved
from tests.rigs.training import Logged, network

LONG_S = 100.0  # on a busy machine
SAMPLES, BATCH, EPOCHS = 320, 16, 4
STEPS = SAMPLES // BATCH  # of an epoch


# ------------------------------------------------------------------------------ a script that catches everything


def as_an_agent_runs_it(directory: Path) -> None:
    """`train.py` of this directory, in a warm fork; its exit code is what the process ends with."""
    torch.set_num_threads(1)
    os.chdir(directory)
    atexit._clear()  # of those who forked us
    raise SystemExit(run_script(WarmCommand(str(directory / "train.py"), is_module=False, arguments=())))


def swallowed(directory: Path) -> dict[str, object]:
    """Exit codes and words of a start that is told to leave, and of the next; and what a calm one came to."""
    found: dict[str, object] = {}
    by_signal = os.environ.get("BY") == "signal"  # one with a loop of its own, which joins nobody
    for way in ("calm", "struck"):
        place = directory / way
        place.mkdir()
        (place / "train.py").write_text((directory / "train.py").read_text())
        world = World(as_an_agent_runs_it, place, SUBLET_CHECKPOINT_DIR=str(place / "checkpoints"))
        begin = World.start if by_signal else _begin
        if way == "struck":
            begin(world, 1)
            _until(world, lambda w=world: (w.directory / "step").exists(), "some steps")
            if by_signal:
                world.kill(world.workers[0], signal.SIGTERM)
            else:
                world.regroup([], save=True)
            _until(world, lambda w=world: all(worker.code is not None for worker in w.workers), "it has left")
            said = [message for _, _, message in world.messages]
            half = torch.load(place / "model.pt")["weight"].tolist() if (place / "model.pt").exists() else None
            found |= {"finished": world.finished, "left": any(isinstance(each, Left) for each in said), "half": half}
        (place / "hurry").touch()
        begin(world, 1)
        _until(world, lambda w=world: all(worker.code is not None for worker in w.workers), "it has ended")
        found[way] = [list(world.codes().values()), torch.load(place / "model.pt")["weight"].tolist()]
    return found


# -------------------------------------------------------------------------------------- lines before the batches


def annealing(directory: Path) -> None:
    """Each of its lines would do harm if it counted twice, or at one worker alone."""
    torch.set_num_threads(1)
    model, data, pause_s = network(), Logged(SAMPLES), float(os.environ["PAUSE_S"])
    target = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    with train.session(model, optimizer, data, global_batch=BATCH, epochs=EPOCHS) as s:
        kept = s.keep(tau=1.0, levels=[], target=target)
        for epoch in s.epochs():
            optimizer.param_groups[0]["lr"] *= 0.8
            kept.tau *= 0.9
            kept.levels.append(s.evaluate(loss_of, data))
            target.load_state_dict(model.state_dict())
            torch.manual_seed(epoch)
            for x, y in s:
                time.sleep(pause_s)
                while (directory / "hold").exists():
                    time.sleep(0.005)
                near = torch.nn.functional.mse_loss(model(x), target(x).detach())
                s.step(kept.tau * torch.nn.functional.mse_loss(model(x), y) + 0.1 * near)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()
    end = {"weights": weights, "levels": kept.levels, "tau": kept.tau, "rate": optimizer.param_groups[0]["lr"]}
    (directory / f"{os.environ['SUBLET_WORKER_ID']}.end").write_text(json.dumps(end))


def annealed(directory: Path) -> dict[str, object]:
    """What all who reached the end came to, left in peace and struck."""
    found: dict[str, object] = {}
    for way, strikes in (("calm", _none), ("struck", _strikes)):
        place = directory / way
        place.mkdir()
        pause_s = "0.01" if way == "struck" else "0"
        world = World(annealing, place, PAUSE_S=pause_s, SUBLET_CHECKPOINT_DIR=str(place / "checkpoints"))
        _begin(world)
        strikes(world)
        _until(world, lambda w=world: w.finished, "finished")
        _until(world, lambda w=world: all(member.code is not None for member in w.members), "exits")
        ends = [json.loads(path.read_text()) for path in sorted(place.glob("*.end"))]
        found[way] = {"ends": ends, "codes": list(world.codes().values()), "generations": world.generation}
    return found


# ---------------------------------------------------------------------------------- a loop that is left for good


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
                if s.steps == ends_at:
                    break
            kept.bad += 1
            kept.seen.append(s.steps)
            if kept.bad == 2 or s.steps == ends_at:
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


def _none(_: World) -> None:
    """In peace."""


def _strikes(world: World) -> None:
    _make(world, STEPS + 5)
    _begin(world)  # a second, amid the second epoch
    _make(world, STEPS + 10)
    world.kill(world.members[0])
    _until(world, lambda: world.finished or (len(world.members) == 1 and world.joined_all()), "the other goes on")
    _make(world, 2 * STEPS + 5)
    _begin(world)  # another, amid the third
    _make(world, 2 * STEPS + 10)
    world.regroup([], save=True)
    _until(world, lambda: all(worker.code is not None for worker in world.workers), "all left")
    _begin(world)  # from the checkpoint, amid the third
    _make(world, 3 * STEPS + 2)
    _begin(world)  # amid the last, so that two are there at the end


def _begin(world: World, count: int = 1) -> None:
    """So many more workers, and the others that are there, which wait for them meanwhile."""
    staying, hold = [member for member in world.members if member.code is None], world.directory / "hold"
    hold.touch()
    new = world.start(count)
    _until(world, lambda: all(worker.ready or worker.code is not None for worker in new), "ready")
    world.regroup(staying + new)
    hold.unlink()
    _until(world, lambda: world.finished or world.joined_all(), "joined")


def _make(world: World, steps: int) -> None:
    _until(world, lambda: world.finished or max(world.heard_steps(), default=-1) >= steps, f"step {steps}")


def _until(world: World, reached: Callable[[], bool], what: str) -> None:
    world.until(reached, what, wait_s=LONG_S)


SCENARIOS = {scenario.__name__: scenario for scenario in (swallowed, annealed, left, relieved, undone)}
