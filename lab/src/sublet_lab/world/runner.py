"""Many seeds over some processes, counted by law, by fault and by effect, with the commit that they were run on."""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sublet_lab.world.life import live
from sublet_lab.world.story import draw_story

A_BATCH = 10  # seeds that a process is given at once; garbage is collected between two

Batch = tuple[list[int], tuple[str, ...], str, str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one seed, as little as is worth sending to another process."""

    seed: int
    law: str = ""
    what: str = ""
    seconds: float = 0.0
    events: int = 0
    commits: int = 0
    lives: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    digest: str = ""


@dataclass
class Count:
    """The counts of many seeds."""

    seeds: int = 0
    hours: float = 0.0  # of the world
    commits: int = 0
    lives: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # of jobs
    broken: dict[str, list[int]] = field(default_factory=dict)  # law -> seeds
    of: str = ""  # the commit that was checked out when it began

    def add(self, result: Result) -> None:
        """One more."""
        self.seeds += 1
        self.hours += result.seconds / 3600.0
        self.commits += result.commits
        self.lives += result.lives
        self.hits.update(result.hits)
        self.effects.update(result.effects)
        self.ends.update(result.ends)
        if result.law:
            self.broken.setdefault(result.law, []).append(result.seed)

    def row(self, **more: Any) -> dict[str, Any]:
        """For a file of counts."""
        return {
            "commit": self.of,
            "seeds": self.seeds,
            "hours": round(self.hours, 2),
            "commits": self.commits,
            "controllers": self.lives,
            "faults": dict(sorted(self.hits.items())),
            "effects": dict(sorted(self.effects.items())),
            "ends": dict(sorted(self.ends.items())),
            "broken": {law: sorted(seeds) for law, seeds in sorted(self.broken.items())},
            **more,
        }


def run_seed(seed: int, kinds: Sequence[str] = (), *, cloud: str = "", policy: str = "", grids: bool = False) -> Result:
    """One seed; a world that breaks by itself is a finding, too."""
    try:
        outcome = live(draw_story(seed, kinds, cloud=cloud, policy=policy, grids=grids))
    except Exception as error:  # noqa: BLE001 - all other seeds are to be run
        return Result(seed=seed, law="WORLD", what=repr(error))
    broken = outcome.broken
    return Result(
        seed=seed,
        law="" if broken is None else broken.law,
        what="" if broken is None else broken.what,
        seconds=outcome.seconds,
        events=outcome.events,
        commits=outcome.commits,
        lives=outcome.lives,
        hits=outcome.hits,
        effects=outcome.effects,
        ends=outcome.ends,
        digest=outcome.digest,
    )


def count_seeds(
    seeds: Iterable[int],
    *,
    processes: int = 2,
    kinds: Sequence[str] = (),
    cloud: str = "",
    policy: str = "",
    grids: bool = False,
    each: Callable[[Result], None] = lambda _: None,
) -> Count:
    """All of them; `each` is told as they come."""
    count = Count(of=commit())
    batches = [(batch, tuple(kinds), cloud, policy, grids) for batch in _batches(list(seeds))]
    for result in _results(batches, processes):
        count.add(result)
        each(result)
    return count


def _results(batches: list[Batch], processes: int) -> Iterator[Result]:
    if processes == 1:
        for batch in batches:
            yield from _run_batch(batch)
        return
    context = multiprocessing.get_context("spawn")  # a fork would share what was imported and drawn before
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for results in pool.map(_run_batch, batches):
            yield from results


def _run_batch(batch: Batch) -> list[Result]:
    seeds, kinds, cloud, policy, grids = batch
    gc.disable()
    if ours := not gc.get_freeze_count():
        gc.freeze()  # only what these lives leave is looked at
    try:
        return [run_seed(seed, kinds, cloud=cloud, policy=policy, grids=grids) for seed in seeds]
    finally:
        gc.enable()
        gc.collect()
        if ours:
            gc.unfreeze()


def _batches(seeds: list[int]) -> list[list[int]]:
    return [seeds[at : at + A_BATCH] for at in range(0, len(seeds), A_BATCH)]


def commit() -> str:
    """The commit of this file's checkout; "" outside of a repository, "+" behind it = with changes."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)  # noqa: S603, S607 - our own words
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "--short", "HEAD")
    return name + ("+" if name and git("status", "--porcelain", "--untracked-files=no") else "")


def append_row(path: Path, row: dict[str, Any]) -> None:
    """To a file of counts, a line of JSON each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at_unix_s": round(time.time()), **row}) + "\n")
