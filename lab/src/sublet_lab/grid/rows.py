"""Disturbed trainings of grids of real processes: what they came to, beside one process that is left alone."""

from __future__ import annotations

import hashlib
import math
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from sublet.domain.shape import Grid
from sublet.wire.messages import Finished, Ready
from sublet_lab.grid.control import Control, Process, Stuck
from sublet_lab.grid.model import BLOCKS, plainly
from sublet_lab.grid.script import EPOCHS, run_script, trained
from sublet_lab.grid.script import STEPS as STEPS_OF_SCRIPT
from sublet_lab.grid.worker import Fault, Kept

STEPS = 5
IN_A_STEP = ("forward 1", "backward 0", "before sum", "pending", "agreed", "applied")
IN_A_CHANGE = ("forming", "meeting", "met", "moving", "moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A training. Each phase is a grid that is there from a step on; a newcomer takes the seats that it names."""

    name: str
    phases: tuple[tuple[int, Grid], ...]
    steps: int = STEPS
    keeps: bool = False  # every part is kept by the member of the next one
    newcomers: tuple[int, ...] = ()  # seats of the last phase whose holders hand over and go
    faults: tuple[tuple[str, Fault], ...] = ()  # by the name of the worker
    script: bool = False  # over the SDK: a session with schedules and evaluations, until its epochs are over
    stops: int = EPOCHS  # of a script: it leaves its loop after so many
    judging: tuple[tuple[str, int], ...] = ()  # of a script: workers that die in the evaluation after this step
    kills: tuple[tuple[int, int, float, bool], ...] = ()  # after a step: place, seconds later, the one in its place too
    saves: tuple[int, ...] | None = None  # steps after which a checkpoint is asked for; None = there are none at all
    restarts: bool = False  # between two phases all save and go, and others go on from there
    together: tuple[int, ...] = ()  # places that are killed at once, when half of the steps are made
    goes_back: bool = False  # all are to be restored from a checkpoint at least once


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a row."""

    name: str
    broken: list[str] = field(default_factory=list)
    deaths: int = 0
    pauses_s: list[float] = field(default_factory=list)  # from a death to the last that joined
    rolled: int = 0
    redone: int = 0  # steps, after a part was lost with all its holders
    moved_bytes: int = 0


def run(row: Row) -> Result:
    """In processes that are gone when it returns."""
    result = Result(name=row.name)
    with tempfile.TemporaryDirectory(prefix="sublet-grid-") as folder:
        _run(row, result, None if row.saves is None else Kept(folder, row.saves))
    return result


def _run(row: Row, result: Result, kept: Kept | None) -> None:
    try:
        life = partial(run_script, stops=row.stops, judging=row.judging) if row.script else None
        with Control(row.steps, life, kept=kept) as control:
            members = _Members(control, row, result)
            members.train()
            if row.script:
                control.wait(lambda: not any(each.alive for each in members.seats))
                _judge_script(control, members.seats, row, result)
            else:
                control.leave()
                _judge(control, members.seats, row, result)
            back = [message.redone_steps for message in control.joined if message.kind == "restored"]
            result.redone = max(back, default=0)
            if row.goes_back and not back:
                result.broken.append("no worker went back to a checkpoint")
    except Stuck as error:
        result.broken.append(f"stuck: {error}")


class _Members:
    """The members, their seats, and the replacement of one that is gone."""

    def __init__(self, control: Control, row: Row, result: Result) -> None:
        self._control, self._row, self._result = control, row, result
        self._faults = dict[str, list[Fault]]()
        for name, fault in row.faults:
            self._faults.setdefault(name, []).append(fault)
        self._count = 0
        most = max(grid.gpus for _, grid in row.phases)
        self._all = [self._fresh() for _ in range(most)]
        self.seats: list[Process] = []
        self._givers: list[Process] = []
        self._grid = row.phases[0][1]
        self._kills = list(row.kills)

    def train(self) -> None:
        """Through all phases, kills and faults."""
        row = self._row
        for number, (_, grid) in enumerate(row.phases):
            last = number == len(row.phases) - 1
            end = row.steps if last else row.phases[number + 1][0]
            before, self._grid = self.seats, grid
            if row.restarts and number:
                self._control.leave(save=True)
                self._all, before = [self._fresh() for _ in self._all], []
            self.seats = self._all[: grid.gpus]
            for seat in row.newcomers if last and number else ():
                self._all[seat] = self.seats[seat] = self._fresh()
            self._givers = [each for each in before if each not in self.seats]
            self._order(broken=False)
            if row.together:
                self._kill_together(end)
            self._until(end, to_the_end=last and row.script)

    def _until(self, steps: int, *, to_the_end: bool) -> None:
        for _ in self._row.judging:
            self._control.until_death()
            self._mend()
        while self._kills and self._kills[0][0] < steps:
            self._kill(*self._kills.pop(0))
        while not to_the_end:  # a script ends by itself
            self._control.until_steps(steps)
            self._control.until_joined()  # all steps may have been made before the change: then it still has to be
            if all(each.alive for each in (*self.seats, *self._givers)):
                return
            self._mend()

    def _kill(self, after: int, place: int, later_s: float, again: bool) -> None:
        self._control.until_steps(after)
        if any(not each.alive for each in self.seats):
            self._mend()
            self._control.until_steps(after)
        time.sleep(later_s)
        os.kill(self.seats[place].pid, signal.SIGKILL)
        self._control.until_death()
        self._mend(wait=not again)
        if again:
            time.sleep(later_s)
            os.kill(self.seats[place].pid, signal.SIGKILL)
            self._control.until_death()
            self._mend()

    def _kill_together(self, steps: int) -> None:
        self._control.until_steps(steps // 2)
        for place in self._row.together:
            os.kill(self.seats[place].pid, signal.SIGKILL)
        self._control.wait(lambda: not any(self.seats[place].alive for place in self._row.together))
        self._mend()

    def _mend(self, *, wait: bool = True) -> None:
        """Another worker in each place of one that is gone, until all have joined."""
        while any(not each.alive for each in (*self.seats, *self._givers)):
            died_s = self._control.died_s
            self._result.deaths += sum(not each.alive for each in (*self.seats, *self._givers))
            self._givers = [each for each in self._givers if each.alive]
            for number, each in enumerate(self.seats):
                if not each.alive:
                    self._all[number] = self.seats[number] = self._fresh()
            self._order(broken=True)
            if not wait:
                return
            self._control.until_joined()
            joined_s = self._control.joined_s.get(self._control.generation)
            if joined_s is not None:
                self._result.pauses_s.append(joined_s - died_s)

    def _order(self, *, broken: bool) -> None:
        parts = self._grid.parts
        keeps = [((number % parts - 1) % parts,) for number in range(self._grid.gpus)] if self._row.keeps else []
        self._control.order(self.seats, self._grid, givers=self._givers, keeps=keeps, broken=broken)

    def _fresh(self) -> Process:
        name = f"w{self._count}"
        self._count += 1
        return self._control.start(name, *self._faults.get(name, ()))


def _judge_script(control: Control, seats: Sequence[Process], row: Row, result: Result) -> None:
    """Every loss and every evaluation within rounding of a double, and rates to the bit."""
    truth = trained(stops=row.stops)
    ends = {message.step for each in control.processes for message in each.said if isinstance(message, Finished)}
    if ends != {truth["steps"]}:
        result.broken.append(f"it is said to be finished after {sorted(ends)} steps, not {truth['steps']}")
    for each in control.processes:
        sizes = [message.blocks for message in each.said if isinstance(message, Ready)]
        if [len(found) for found in sizes] != [BLOCKS]:
            result.broken.append(f"{each.name} says of its blocks {sizes}")
    for seat, each in enumerate(seats):
        found = each.facts
        for what in ("steps", "rates", "ends"):
            if found.get(what) != truth[what]:
                result.broken.append(f"seat {seat}: {what} {found.get(what)}, not {truth[what]}")
        told = [
            (f"{what} of step {step}", value, truth[what][int(step)])
            for what in ("losses", "judged")
            for step, value in found.get(what, {}).items()
        ]
        for what, value, right in [*told, ("last", found.get("last", math.nan), truth["last"])]:
            if not abs(value - right) <= 1e-12 * abs(right):  # also what is not a number
                result.broken.append(f"seat {seat}: {what}: {value}, not {right}")
        if str(truth["steps"]) not in found.get("losses", {}) or not found.get("judged"):
            result.broken.append(f"seat {seat} did not come to the end")
    result.rolled = sum(message.rolled for message in control.joined)
    result.moved_bytes = sum(message.moved_bytes for message in control.joined)


def _judge(control: Control, seats: Sequence[Process], row: Row, result: Result) -> None:
    """Losses of every step, and weights, to the bit."""
    began = {message.generation: message.step for message in control.joined}

    def copies_at(step: int) -> int:
        return control.grids[max(generation for generation, first in began.items() if first <= step)].copies

    losses, weights = plainly(copies_at, row.steps)
    truth = {name: hashlib.sha256(each.numpy().tobytes()).hexdigest() for name, each in weights.items()}
    for step, said in sorted(control.losses.items()):
        if said != {losses[step - 1]}:
            result.broken.append(f"loss of step {step}: {said}, not {losses[step - 1]}")
    held: set[str] = set()
    for seat, each in enumerate(seats):
        found = each.facts.get("weights", {})
        held.update(found)
        if each.facts.get("applied") != row.steps:
            result.broken.append(f"seat {seat} has applied {each.facts.get('applied')} steps of {row.steps}")
        wrong = [name for name, bits in found.items() if truth[name] != bits]
        if wrong:
            result.broken.append(f"seat {seat} has other weights: {', '.join(wrong)}")
    if held != set(truth):
        result.broken.append(f"no worker holds {', '.join(sorted(set(truth) - held))}")
    result.rolled = sum(message.rolled for message in control.joined)
    result.moved_bytes = sum(message.moved_bytes for message in control.joined)


# ---------------------------------------------------------------------------------------------- which there are


def grids() -> Iterator[Row]:
    """Undisturbed, of each shape: oracles E1 and E2."""
    for grid in (Grid(1, 1), Grid(1, 2), Grid(1, 3), Grid(1, 4), Grid(2, 1), Grid(2, 2), Grid(2, 3)):
        yield Row(name=f"{grid}", phases=((0, grid),))
    yield Row(name="1 x 3, kept", phases=((0, Grid(1, 3)),), keeps=True)


def changes() -> Iterator[Row]:
    """Any sequence of grids: oracle E3."""
    shapes = (Grid(1, 1), Grid(2, 2), Grid(1, 3), Grid(2, 3), Grid(2, 1), Grid(1, 4))
    phases = tuple((2 * number, grid) for number, grid in enumerate(shapes))
    yield Row(name="1x1 2x2 1x3 2x3 2x1 1x4", phases=phases, steps=2 * len(shapes))


def scripts() -> Iterator[Row]:
    """Sessions of a user's script: undisturbed, resized, killed."""
    for grid in (Grid(1, 3), Grid(2, 2)):
        yield Row(name=f"script, {grid}", phases=((0, grid),), steps=STEPS_OF_SCRIPT, script=True)
    phases = ((0, Grid(1, 2)), (6, Grid(2, 2)), (12, Grid(1, 4)))
    yield Row(name="script, 1x2 2x2 1x4", phases=phases, steps=STEPS_OF_SCRIPT, script=True)
    for grid, keeps in ((Grid(2, 2), False), (Grid(1, 3), True)):
        kills = ((3, 1, 0.003, False), (9, 0, 0.011, True), (15, grid.gpus - 1, 0.007, False))
        name = f"script, {grid}, killed"
        yield Row(name=name, phases=((0, grid),), steps=STEPS_OF_SCRIPT, script=True, keeps=keeps, kills=kills)
    yield Row(
        name="script, 1 x 2, stops early, killed",
        phases=((0, Grid(1, 2)),),
        steps=STEPS_OF_SCRIPT,
        script=True,
        stops=4,
        keeps=True,
        kills=((7, 1, 0.003, False),),
    )

    deaths = (("w1", 4), ("w3", 8), ("w4", 8), ("w0", 12))
    yield Row(
        name="script, 1 x 3, killed in evaluations",
        phases=((0, Grid(1, 3)),),
        steps=STEPS_OF_SCRIPT,
        script=True,
        keeps=True,
        judging=deaths,
    )


def checkpoints() -> Iterator[Row]:
    """Rows of checkpoints saved by one grid and loaded by another, with all holders of a part killed."""
    shapes = (Grid(1, 3), Grid(2, 2), Grid(1, 1), Grid(2, 3))
    phases = tuple((2 * number, grid) for number, grid in enumerate(shapes))
    yield Row(name="saved, 1x3 2x2 1x1 2x3", phases=phases, steps=2 * len(shapes), saves=(), restarts=True)
    for grid, keeps, places in ((Grid(1, 3), True, (0, 1)), (Grid(2, 2), False, (1, 3)), (Grid(1, 2), True, (0, 1))):
        yield Row(
            name=f"saved, {grid}, {places} at once",
            phases=((0, grid),),
            steps=9,
            keeps=keeps,
            saves=(1,),
            together=places,
            goes_back=grid.gpus > len(places),  # with no member left, others begin with it
        )
    only = ((0, Grid(1, 3)),)
    for place in range(3):
        for point in ("saving", "written"):
            faults = ((f"w{place}", Fault(point, 5)),)
            name = f"saved, 1 x 3, {place} at {point}"
            yield Row(name=name, phases=only, steps=8, saves=(1, 4), faults=faults, goes_back=True)
    kills = ((6, 1, 0.003, False), (12, 0, 0.011, False))
    yield Row(
        name="saved, script, 1 x 3, killed", phases=only, steps=STEPS_OF_SCRIPT, script=True, saves=(), kills=kills
    )


def kill_points() -> Iterator[Row]:
    """Each point of a step and of a change, at each place; newcomers and givers too."""
    for grid, keeps in ((Grid(2, 2), False), (Grid(1, 3), True)):
        for place in range(grid.gpus):
            for point in IN_A_STEP:
                fault = Fault(point, 3 if point == "applied" else 2)
                name = f"{grid}, {place} at {point}"
                yield Row(name=name, phases=((0, grid),), keeps=keeps, faults=((f"w{place}", fault),))
        lost = Fault("agreed", 2, misses=True)  # the answer: the one that misses it, and the one that dies after it
        missing, dies = ("w1", "w2") if grid.copies > 1 else ("w2", "w1")
        faults = (("w0", lost), (missing, lost), (dies, Fault("applied", 3)))
        yield Row(name=f"{grid}, answer lost", phases=((0, grid),), keeps=keeps, faults=faults)
        fresh = f"w{grid.gpus}"
        for who in (*(f"w{place}" for place in range(grid.gpus)), fresh):
            for point in IN_A_CHANGE:
                if point == "moving" and who != fresh:  # one that receives nothing is not asked
                    continue
                for turn in (1, 2) if point == "moving" else (1,):
                    fault = Fault(point, -1 if who == fresh else 1, turn)
                    role = "newcomer" if who == fresh else "giver" if who == "w0" else who[1:]
                    name = f"{grid} with a newcomer, {role} at {point}{turn if turn > 1 else ''}"
                    phases = ((0, grid), (2, grid))
                    yield Row(name=name, phases=phases, newcomers=(0,), keeps=keeps, faults=((who, fault),))


def random_kills(kills: int, seed: int, at_once: int = 4) -> Iterator[Row]:
    """So many at any time, a few in each training."""
    rng, left, number = random.Random(seed), kills, 0  # noqa: S311 - which is killed, not which is trusted
    while left > 0:
        grid, keeps = rng.choice([(Grid(2, 2), False), (Grid(1, 3), True), (Grid(2, 3), False), (Grid(1, 2), True)])
        count = min(at_once, left)
        blows = []
        for blow in range(count):
            again = blow < count - 1 and rng.random() < 0.25
            blows.append((3 + 6 * blow, rng.randrange(grid.gpus), rng.random() * 0.05, again))
        left -= sum(2 if again else 1 for *_, again in blows)
        name = f"{grid}, kills of {seed}.{number}"
        yield Row(name=name, phases=((0, grid),), steps=6 * count + 6, keeps=keeps, kills=tuple(blows))
        number += 1
