"""One race: writers of rising generations, some of them slow or cut off, save to one bucket and load from it.

Each does what a session does: it opens the bucket, loads the newest checkpoint, and saves as it trains on. The next one
is started while those before it may still live. The laws:

    whole    what HEAD names is there, bit by bit, after every request
    rising   the generation in HEAD never falls
    stale    nothing is committed by a generation below one that has loaded
    kept     whoever loads finds no less than what any writer was told is saved
    right    what is loaded is what its writer saved
    leaks    a day later the bucket has what HEAD names and nothing else
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import torch

from sublet.errors import StaleWriter, SubletError
from sublet.machine.objects import StoreFailed
from sublet.train.checkpoint.bucket import HEAD, Bucket
from sublet.train.checkpoint.checkpoints import Checkpoints, LoadedCheckpoint
from sublet_lab.races.shelf import Shelf
from sublet_lab.races.turns import FATES, Program, Turns

WORST = 0.06  # of the requests meet one fate; of some seeds none does
KEEP = 2
DAY_S = 86_400.0
TRIES = 30  # of a load, by a reader that must know


class Broken(AssertionError):
    """A law does not hold."""


@dataclass(slots=True)
class Course:
    """The course of one race."""

    seed: int
    requests: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    loads: int = 0
    stale: int = 0  # writers that were told so
    broken: str = ""


class _Clock:
    """The clock of the store and of all its users."""

    def __init__(self, random: Random) -> None:
        self._random, self.unix_s = random, 1.75e9

    def tick(self) -> None:
        """A request takes a second or so; now and then hours pass."""
        self.unix_s += self._random.expovariate(1.0)
        if self._random.random() < 0.01:
            self.unix_s += self._random.expovariate(1.0 / 7200.0)

    def unix(self) -> float:
        return self.unix_s

    def monotonic(self) -> float:
        return self.unix_s

    def since_boot(self) -> tuple[str, float]:
        return "", 0.0


class _Dice:
    def __init__(self, random: Random) -> None:
        self._random = random

    def token(self, nbytes: int) -> str:
        return self._random.randbytes(nbytes).hex()

    def random(self) -> float:
        return self._random.random()


def race(seed: int) -> Course:
    """The course of a seed; `broken` names the law, if one is."""
    return _Race(seed).run()


class _Race:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - no secret: the course of a seed
        self.course = Course(seed)
        self._clock = _Clock(Random(seed + 1))  # noqa: S311 - as above
        self._rng = _Dice(Random(seed + 2))  # noqa: S311 - as above
        self._shelf = Shelf(self._clock.unix)
        worst = self._random.choice((0.0, WORST / 3, WORST))
        chances = {fate: self._random.uniform(0.0, worst) for fate in FATES}
        for fate in ("dies before", "dies after"):
            chances[fate] /= 5.0
        self._turns = Turns(self._random, chances, self._after)
        self._generation = 0  # given to the last that began
        self._loaded = 0  # the highest that has loaded
        self._told = 0  # the highest step that a writer was told is saved
        self._head: dict[str, Any] = {"generation": 0, "kept": []}
        self._text: bytes | None = None

    def run(self) -> Course:
        for number in range(self._random.randint(2, 6)):
            program = Program(f"w{number}", pace=self._random.choice((1.0, 1.0, 0.3, 0.05)))
            sleeps, saves = self._random.randint(0, 40) * number, self._random.randint(1, 6)
            self._turns.start(program, partial(self._write, program, sleeps, saves))
        try:
            self._turns.run()
            self._look_at_the_end()
        except Broken as error:
            self.course.broken = str(error)
        self.course.requests, self.course.fates = self._turns.turns, self._turns.fates
        return self.course

    # ------------------------------------------------------------------------------------------ what a program does

    def _write(self, program: Program, sleeps: int, saves: int) -> None:
        self._turns.sleep(program, sleeps)
        self._generation += 1
        generation = self._generation
        random = Random(f"{self.course.seed} {program.name}")  # noqa: S311 - as above
        store = Bucket(self._turns.objects_of(program, self._shelf), wall=self._clock, rng=self._rng)
        kept = Checkpoints(store, keep=KEEP, writer=program.name, generation=generation, wall=self._clock)
        try:
            step = self._load(kept, program, generation)
            for _ in range(saves):
                self._turns.sleep(program, random.randint(0, 3))
                step += random.randint(1, 3)
                try:
                    kept.save(step, _state(step, program.name), {}).wait()
                except StaleWriter:
                    self.course.stale += 1
                    return
                except SubletError:
                    if program.dead:
                        return
                else:
                    self._told = max(self._told, step)
        finally:
            kept.close()

    def _load(self, kept: Checkpoints, program: Program, generation: int) -> int:
        for _ in range(TRIES):
            told = self._told
            try:
                found = kept.newest()
            except StoreFailed:
                continue
            self._loaded = max(self._loaded, generation)
            self._judge(found, told, f"{program.name} of generation {generation}")
            return 0 if found is None else found.step
        program.dead = True
        return 0

    def _judge(self, found: LoadedCheckpoint | None, told: int, who: str) -> None:
        self.course.loads += 1
        step = 0 if found is None else found.step
        if step < told:
            raise Broken(f"kept: {who} loads step {step}, and {told} was told to be saved")
        if found is not None and not _is_right(found):
            raise Broken(f"right: {who} loads of step {step} without a save")

    # ------------------------------------------------------------------------------------------ laws

    def _after(self) -> None:
        self._clock.tick()
        text = self._shelf.data(HEAD)
        head: dict[str, Any] = json.loads(text)["head"] if text is not None else {"generation": 0, "kept": []}
        if text != self._text:
            self._moved(head)
            self._text, self._head = text, head
        for entry in head["kept"]:
            self._see_whole(entry)

    def _moved(self, head: Mapping[str, Any]) -> None:
        if head["generation"] < self._head["generation"]:
            raise Broken(f"rising: HEAD falls from {self._head['generation']} to {head['generation']}")
        for entry in head["kept"]:
            if entry not in self._head["kept"]:
                self.course.commits += 1
                if entry["generation"] < self._loaded:
                    step, by = entry["step"], entry["generation"]
                    raise Broken(f"stale: step {step} of generation {by} is committed, {self._loaded} has loaded")

    def _see_whole(self, entry: Mapping[str, Any]) -> None:
        folder = entry["folder"]
        text = self._shelf.data(f"{folder}/MANIFEST.json")
        if text is None or hashlib.sha256(text).hexdigest() != entry["sha256"]:
            raise Broken(f"whole: HEAD names {folder}, whose manifest is not that")
        for file in _files_of(text):
            data = self._shelf.data(f"{folder}/{file['name']}")
            if data is None or hashlib.sha256(data).hexdigest() != file["sha256"]:
                raise Broken(f"whole: {folder}/{file['name']} is missing or another")

    def _look_at_the_end(self) -> None:
        """By one whose line is good, a day later and another."""
        for _ in range(2):
            self._clock.unix_s += DAY_S + 1.0
            self._generation += 1
            store = Bucket(self._shelf, wall=self._clock, rng=self._rng)
            with Checkpoints(store, keep=KEEP, writer="last", generation=self._generation, wall=self._clock) as kept:
                found = kept.newest()
                self._judge(found, self._told, "the last")
                step = 1 if found is None else found.step + 1
                kept.save(step, _state(step, "last"), {}).wait()
                self._told = step
        self._after()
        named = {HEAD}
        for entry in self._head["kept"]:
            text = self._shelf.data(f"{entry['folder']}/MANIFEST.json")
            assert text is not None
            named |= {f"{entry['folder']}/{name}" for name in ("MANIFEST.json", *(f["name"] for f in _files_of(text)))}
        if left := set(self._shelf.keys()) - named:
            raise Broken(f"leaks: {len(left)} objects, such as {min(left)}")


def _state(step: int, writer: str) -> dict[str, Any]:
    return {"weights": torch.full((50,), float(step)), "step": step, "writer": writer}


def _is_right(found: LoadedCheckpoint) -> bool:
    state = found.state
    return state["step"] == found.step and bool((state["weights"] == float(found.step)).all())


def _files_of(manifest: bytes) -> list[dict[str, Any]]:
    facts: dict[str, Any] = json.loads(manifest)["manifest"]
    return list(facts["files"])
