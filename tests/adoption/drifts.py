"""Loops of the documentation as workers whose width changes twenty times at random, and what they come to.

A worker stops before each step at which something is to happen, until it has. So the same things happen at the same
steps whenever it is tried again with the same seed, however busy the machine is.

session     workers come and go, one is killed, all leave with a checkpoint and others go on: at most three at a time
parts       the model is cut into other parts, and has other numbers of copies
own         a loop of its own is ended with a notice, and started again
"""

from __future__ import annotations

import importlib
import json
import os
import random
import runpy
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend

from sublet.domain.shape import Grid
from sublet.train.checkpoint.restarted import Restarted
from sublet.train.sessions import loop as sessions
from sublet.wire.messages import EXIT_LEFT
from sublet_lab.grid.control import Control
from sublet_lab.trainers import Forked, World
from tests.rigs.docs_loops import BATCH, loops, numbers

SCRIPTS = Path(__file__).parent / "scripts"
LONG_S = 100.0  # on a busy machine
CHANGES, WIDEST = 20, 3
GRIDS = [Grid(*each) for each in ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (1, 4), (2, 2))]  # copies, parts
COPIES, MOST = Grid(2, 1), 4


# -------------------------------------------------------------------------------------- in a worker


def worker(directory: Path) -> None:
    """LOOP of the documentation, or SCRIPT; it notes its samples, and leaves all that it has trained behind."""
    torch.set_num_threads(1)
    os.chdir(directory)
    name = os.environ["SUBLET_WORKER_ID"]
    if script := os.environ.get("SCRIPT"):
        _watch(directory, name, counts=False)
        names = runpy.run_path(str(SCRIPTS / script / "after.py"), run_name="__main__")
    else:
        loop = loops()[os.environ["LOOP"]]
        _watch(directory, name, counts=loop.kind == "session")
        names = loop.run(directory)
    _leave_behind(directory / f"{name}.pt", names)


def _watch(directory: Path, name: str, *, counts: bool) -> None:
    """Of every session of this process: samples that are given, steps that are made; and where it is to stop."""
    notes = os.open(directory / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(step: int, generation: int = 0, epoch: int = 0, samples: list[int] | None = None) -> None:
        facts = {"step": step, "generation": generation, "epoch": epoch, "samples": samples}
        os.write(notes, json.dumps(facts).encode() + b"\n")

    batches, step = sessions.Session.batches, sessions.Session.step

    def noted_batches(self: Any, *given: Any, **named: Any) -> Any:
        for batch in batches(self, *given, **named):
            if counts and not self._strategy.steps._piece.spare:
                note(self.steps, self.generation, self.epoch, numbers(batch))
            yield batch

    def held_step(self: Any, *given: Any, **named: Any) -> float:
        before = self.steps
        _hold(directory, before, self._link.has_order)
        found = step(self, *given, **named)
        if self.steps > before:
            note(before, self.generation)
        return found

    sessions.Session.batches, sessions.Session.step = noted_batches, held_step
    tick = Restarted.tick

    def held_tick(self: Any, step: int) -> None:
        _hold(directory, step, self._noticed.is_set)
        note(step)
        tick(self, step)

    Restarted.tick = held_tick


def _hold(directory: Path, step: int, ordered: Callable[[], bool]) -> None:
    """Where something is to happen, until it has, or somebody wants something of us."""
    while (directory / f"stop-{step}").exists() and not ordered():
        (directory / f"waits-{step}").touch()
        time.sleep(0.002)


def _leave_behind(path: Path, names: dict[str, Any]) -> None:
    """Everything with weights, and every learning rate; whoever looks sees all of it or nothing."""
    modules = {name: each for name, each in names.items() if isinstance(each, torch.nn.Module)}
    optimizers = [each for _, each in sorted(names.items()) if isinstance(each, torch.optim.Optimizer)]
    trained = {
        "weights": {name: each.state_dict() for name, each in modules.items()},
        "rates": [group["lr"] for each in optimizers for group in each.param_groups],
    }
    torch.save(trained, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


# -------------------------------------------------------------------------------------- who disturbs them


class Place:
    """Where one training happens, with something at each of these steps."""

    def __init__(self, directory: Path, steps: list[int], rng: random.Random) -> None:
        self.directory, self.steps, self.rng = directory, steps, rng
        directory.mkdir()
        for step in steps:
            (directory / f"stop-{step}").touch()

    def is_reached(self, step: int) -> bool:
        """Somebody waits there."""
        return (self.directory / f"waits-{step}").exists()

    def wait_for(self, step: int) -> None:
        """Until then, where nobody else waits meanwhile."""
        ends_s = time.monotonic() + LONG_S
        while not self.is_reached(step):
            if time.monotonic() > ends_s:
                raise TimeoutError(f"step {step}")
            time.sleep(0.002)

    def pass_by(self, step: int) -> None:
        """All has happened there."""
        (self.directory / f"stop-{step}").unlink()

    def read(self) -> dict[str, Any]:
        """Samples of each step that was applied, the last time that it was, and of each epoch."""
        texts = [path.read_text() for path in sorted(self.directory.glob("*.log"))]
        rows = [json.loads(line) for text in texts for line in text.splitlines()]
        counted: dict[int, int] = {}
        for row in rows:
            if row["samples"] is None:
                counted[row["step"]] = max(row["generation"], counted.get(row["step"], -1))
        given: dict[int, list[int]] = {}
        epochs: dict[int, list[int]] = {}
        for row in rows:
            if row["samples"] is not None and counted.get(row["step"]) == row["generation"]:
                given[row["step"]] = sorted(given.get(row["step"], []) + row["samples"])
                epochs[row["epoch"]] = sorted(epochs.get(row["epoch"], []) + row["samples"])
        return {"steps": len(counted), "given": given, "epochs": epochs}


def _twice(train: Callable[[Place], dict[str, Any]], directory: Path, seed: int, every: int = 1) -> dict[str, Any]:
    """Left alone, to see how long it is; and with changes at steps that are drawn."""
    what = os.environ.get("LOOP") or os.environ["SCRIPT"]
    rng = random.Random(f"{what} {seed}")
    alone = train(Place(directory / "alone", [], rng))
    steps = sorted(rng.sample(range(1, alone["steps"] - 1, every), CHANGES))
    return {"alone": alone, "disturbed": train(Place(directory / "disturbed", steps, rng))}


# -------------------------------------------------------------------------------------- sessions


class Disturbed:
    """A session whose workers come and go."""

    def __init__(self, place: Place) -> None:
        self.place, self.kinds = place, list[str]()
        if framework := os.environ.get("FRAMEWORK"):
            importlib.import_module(framework)  # seconds that each worker would spend
        at_first = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # as a controller says
        kept = str(place.directory / "checkpoints")
        self.world = World(worker, place.directory, SUBLET_CHECKPOINT_DIR=kept, SUBLET_RUN_ID="run", **at_first)
        self.world.forgives = True  # on a busy machine
        self.grows = "LOOP" in os.environ and loops()[os.environ["LOOP"]].grows
        self.world.batch = 2 * BATCH if self.grows else 0  # at first: with any other there are more steps

    def train(self) -> dict[str, Any]:
        """To the end; members are those who are there then."""
        place, world = self.place, self.world
        self._order([], 1)
        for step in place.steps:
            self._until(lambda s=step: place.is_reached(s), f"step {step}")
            self._disturb(last=step == place.steps[-1])
            place.pass_by(step)
        self._until(lambda: world.finished, "finished")
        world.until(lambda: all(each.code is not None for each in world.members), "exits", wait_s=LONG_S)
        return {"kinds": self.kinds, "codes": [each.code for each in world.members], **place.read()}

    def _disturb(self, *, last: bool) -> None:
        rng, world, members = self.place.rng, self.world, self.world.members
        world.batch = rng.randint(BATCH, 2 * BATCH) if self.grows else 0
        kinds = ["resize", "resize", "restart"] + ["kill"] * (len(members) > 1)
        self.kinds.append(kind := "resize" if last else rng.choice(kinds))
        if kind == "kill":
            world.kill(rng.choice(members))
            self._until(lambda: len(world.members) < len(members) and world.joined_all(), "the others go on")
        elif kind == "restart":
            world.regroup([], save=True)
            self._until(lambda: all(each.code is not None for each in world.workers), "all left")
            self._order([], rng.randint(1, WIDEST))
        else:
            least = 2 if last else 1  # in the end several are there to compare
            width = rng.choice([width for width in range(least, WIDEST + 1) if width != len(members)])
            self._order(rng.sample(members, min(width, len(members))), width)

    def _order(self, staying: list[Forked], width: int) -> None:
        """These, and others until there are so many."""
        new = self.world.start(width - len(staying))
        self._until(lambda: all(each.ready for each in new), "ready")
        self.world.regroup(staying + new)
        self._until(self.world.joined_all, "joined")

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        self.world.until(lambda: self.world.finished or reached(), what, wait_s=LONG_S)


def session(directory: Path, *, seed: int = 1) -> dict[str, Any]:
    return _twice(lambda place: Disturbed(place).train(), directory, seed)


# -------------------------------------------------------------------------------------- models that are cut


def parts(directory: Path, *, seed: int = 1) -> dict[str, Any]:
    return _twice(_in_grids, directory, seed, every=2)  # a grid changes when the next step begins


def _in_grids(place: Place) -> dict[str, Any]:
    with Control(0, partial(_in_a_grid, place.directory), limit_s=LONG_S) as control:
        there = [control.start(f"w{number}") for number in range(MOST if place.steps else 1)]
        control.order(there[:1], GRIDS[0])
        control.until_joined()
        for step in place.steps:
            place.wait_for(step)
            now, before = control.grids[control.generation], control.members
            last = step == place.steps[-1]  # in the end each has a whole copy, to be compared
            grid = COPIES if last else place.rng.choice([each for each in GRIDS if each != now])
            members = place.rng.sample(there, grid.gpus)
            control.order(members, grid, givers=[each for each in before if each not in members])
            control.until_joined()
            place.pass_by(step)
        control.wait(lambda: all(not each.alive for each in control.members))
        codes = [each.facts["code"] for each in control.members]
    return {"kinds": ["grid"] * len(place.steps), "codes": codes, **place.read()}


def _in_a_grid(directory: Path, name: str, connection: socket.socket, facts: int, _: object) -> None:
    os.environ.update(SUBLET_CONTROL_FD=str(connection.fileno()), SUBLET_WORKER_ID=name)
    code: Any = 0
    try:
        worker(directory)
    except SystemExit as error:
        code = error.code
    os.write(facts, json.dumps({"code": code}).encode())


# -------------------------------------------------------------------------------------- loops of their own


def own(directory: Path, *, seed: int = 1) -> dict[str, Any]:
    return _twice(_started_again, directory, seed)


def _started_again(place: Place) -> dict[str, Any]:
    """One process at a time, ended with a notice."""
    world = World(worker, place.directory, SUBLET_CHECKPOINT_DIR=str(place.directory / "checkpoints"))
    for step in [*place.steps, None]:
        (started,) = world.start(1)
        if step is not None:
            world.until(lambda s=step: place.is_reached(s), f"step {step}", wait_s=LONG_S)
            world.kill(started, signal.SIGTERM)
        world.until(lambda each=started: each.code is not None, "it ends", wait_s=LONG_S)
    codes = [each.code for each in world.workers]
    return {"kinds": ["restart"] * codes.count(EXIT_LEFT), "codes": codes[-1:], **place.read()}


SCENARIOS = {scenario.__name__: scenario for scenario in (session, parts, own)}
