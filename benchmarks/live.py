"""How long real training stands still: at a resize, after a SIGKILL, at the start; with torchrun beside it.

Real processes on this machine, under a controller as users run it; times are of the workers' own diaries, by the
machine's monotonic clock. A pause is from the end of the last step before to the end of the first after, less a normal
step. A recovery is from the SIGKILL to the end of the next step, whole. A start is from the HTTP request to the end of
the first step. The load of the machine stands beside the figures: on a busy one all are too long.

    python -m benchmarks.live [PART ...] [--quick] [--json]     parts: resizes kills booting torchrun starts overhead
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.live_others import submitted, torchrun_restarts
from benchmarks.live_stage import Change, Step, on_stage, waited_for

PAUSE_GOAL_S, RECOVERY_GOAL_S, START_GOAL_S, OVERHEAD_GOAL = 0.5, 2.0, 1.0, 0.01
TOUR = (3, 2, 3, 4, 2)  # widths one after the other, from 2; every kind of change at least once
BLOCK = 50  # steps
BOOT_S = 10.0  # for a node to boot, where survivors should not wait for it; clouds take longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line of the table."""

    name: str
    taken: Sequence[float]  # seconds, or a ratio
    goal: float | None = None  # for the worst, unless it is for the median; None = none was set
    of_median: bool = False
    unit: str = "s"
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        """Whether the goal is reached."""
        judged = median(self.taken) if self.of_median else max(self.taken)
        return None if self.goal is None else judged <= self.goal


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, or JSON."""
    parts: dict[str, Callable[[bool], Iterator[Measured]]] = {
        "resizes": resizes,
        "kills": kills,
        "booting": booting,
        "torchrun": torchrun,
        "starts": starts,
        "overhead": overhead,
    }
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(parts)}; all of them otherwise")
    parser.add_argument("--quick", action="store_true", help="one round of everything")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - parts.keys():
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found: list[Measured] = []
    if not asked.json:
        print(f"live training, {os.cpu_count()} cores")
        print(f"  {'':46}{'times':>6}{'median':>9}{'worst':>9}{'goal':>14}   ok    load")
    for name in asked.parts or parts:
        for measured in parts[name](asked.quick):
            found.append(measured)
            if not asked.json:
                print(_row(measured), flush=True)
    if asked.json:
        print(json.dumps([_facts(measured) for measured in found], indent=2))


# ---------------------------------------------------------------------- planned changes


def resizes(quick: bool) -> Iterator[Measured]:  # noqa: FBT001 - every part is asked the same
    """One job that is told to have another width, again and again."""
    steps, changes = asyncio.run(_toured(1 if quick else 10))
    pauses: dict[str, list[tuple[Change, float]]] = {}
    for change in changes:
        before, after = _around(steps, change)
        assert after.number == before.number + 1, "a step was lost or made twice"
        normal_s = _normal_s(steps, after)
        kind = f"{before.workers} -> {after.workers}"
        pauses.setdefault(kind, []).append((change, after.at_s - before.at_s - normal_s))
    for kind, taken in sorted(pauses.items()):
        yield Measured(
            name=f"planned resize {kind}",
            taken=[pause_s for _, pause_s in taken],
            goal=PAUSE_GOAL_S,
            of_median=True,
            facts={
                "formed_s": median(change.formed_s for change, _ in taken),
                "state_s": median(change.state_s for change, _ in taken),
                "asked_to_step_s": median(_around(steps, change)[1].at_s - change.asked_s for change, _ in taken),
                "steps_lost": 0,
            },
        )


async def _toured(rounds: int) -> tuple[list[Step], list[Change]]:
    async with on_stage("elastic", workers=4, low=4) as stage:
        await stage.resize(2)
        changes = [await stage.resize(workers) for _ in range(rounds) for workers in TOUR]
        return stage.steps(), changes


def _around(steps: Sequence[Step], change: Change) -> tuple[Step, Step]:
    """The last step before and the first after, as the worker saw them that is rank 0 afterwards."""
    after = next(step for step in steps if step.generation == change.generation and step.rank == 0)
    mine = [step for step in steps if step.pid == after.pid and step.at_s < after.at_s]
    return mine[-1], after


def _normal_s(steps: Sequence[Step], first: Step) -> float:
    """Of this worker, in the group that begins with this step."""
    ends = [step.at_s for step in steps if step.pid == first.pid and step.generation == first.generation]
    return median(later - sooner for sooner, later in itertools.pairwise(ends))


# ---------------------------------------------------------------------- kills


def kills(quick: bool) -> Iterator[Measured]:  # noqa: FBT001
    """Somebody at random, rank 0 as well as others: the instance with all on it, or the worker alone."""
    for whole, workers in itertools.product((True, False), (2, 3, 4)):
        name = f"SIGKILL of {'an instance' if whole else 'a worker'}, {workers} workers"
        yield _recoveries(name, whole=whole, workers=workers, count=1 if quick else 5)


def booting(quick: bool) -> Iterator[Measured]:  # noqa: FBT001
    """The same where the next node takes its time, as on every cloud."""
    name = f"SIGKILL of an instance, the next boots {BOOT_S:g} s"
    yield _recoveries(name, whole=True, workers=3, count=1 if quick else 3, boot_s=BOOT_S)


def _recoveries(name: str, *, whole: bool, workers: int, count: int, boot_s: float = 0.0) -> Measured:
    steps, changes = asyncio.run(_struck(whole=whole, workers=workers, count=count, boot_s=boot_s))
    taken, lost = [], 0
    for change in changes:
        after = next(step for step in steps if step.generation >= change.generation)
        reached = max(step.number for step in steps if step.at_s < after.at_s)
        taken.append(after.at_s - change.asked_s)
        lost += reached + 1 - after.number
    facts = {
        "known_to_joined_s": median(change.to_joined_s for change in changes),
        "formed_s": median(change.formed_s for change in changes),
        "state_s": median(change.state_s for change in changes),
        "steps_lost": lost,
        "workers": [change.workers for change in changes],
    }
    return Measured(name=name, taken=taken, goal=RECOVERY_GOAL_S, facts=facts)


async def _struck(*, whole: bool, workers: int, count: int, boot_s: float) -> tuple[list[Step], list[Change]]:
    rng = random.Random(workers)  # noqa: S311 - no secret
    async with on_stage("elastic", workers=workers, low=1, boot_s=boot_s) as stage:
        changes = [await stage.kill(rng.choice(stage.nodes), whole=whole) for _ in range(count)]
        return stage.steps(), changes


# ---------------------------------------------------------------------- beside others


def torchrun(quick: bool) -> Iterator[Measured]:  # noqa: FBT001
    """The same training as plain DDP under torchrun, which restarts it from its last checkpoint."""
    for workers in (2,) if quick else (2, 3, 4):
        theirs, redone = torchrun_restarts(workers, 1 if quick else 2)
        ours = _recoveries("", whole=False, workers=workers, count=len(theirs))
        yield Measured(name=f"torchrun, a worker killed, {workers} workers", taken=theirs, facts={"steps_lost": redone})
        yield Measured(name="  ours right after it", taken=ours.taken, goal=RECOVERY_GOAL_S, facts=ours.facts)
        ratio = median(theirs) / median(ours.taken)
        yield Measured(name="  torchrun's over ours", taken=[ratio], unit="x")


def starts(quick: bool) -> Iterator[Measured]:  # noqa: FBT001
    """`sublet up`, then jobs over HTTP, each on instances that are rented for it."""
    up_s, first_s, taken = submitted((1,) if quick else (1, 2, 4), 2 if quick else 6)
    yield Measured(name="'sublet up' until it answers", taken=[up_s])
    yield Measured(name="submit to first step, the first job", taken=[first_s], goal=START_GOAL_S)
    for workers, times in taken.items():
        name = f"submit to first step, {workers} worker{'s' if workers > 1 else ''}"
        yield Measured(name=name, taken=times, goal=START_GOAL_S)


def overhead(quick: bool) -> Iterator[Measured]:  # noqa: FBT001
    """Steps of the SDK and of DDP in turns, in the same processes; in blocks, for what is not done at every step."""
    ours_s, ours_cpu_s, *ddp = asyncio.run(_beside(200 if quick else 1_000))
    sides = zip(("bare DDP", "", "DDP with views", ""), (ours_s, ours_cpu_s) * 2, ddp, strict=True)
    for name, ours, theirs in sides:
        blocks = [slice(start, start + BLOCK) for start in range(0, len(ours), BLOCK)]
        ms = 1e3 * median(theirs)
        yield Measured(
            name=f"SDK over {name}, a step of {ms:.1f} ms" if name else f"  in CPU time, of {ms:.1f} ms",
            taken=[sum(ours[block]) / sum(theirs[block]) - 1.0 for block in blocks],
            goal=OVERHEAD_GOAL,
            of_median=True,
            unit="%",
            facts={"ours_ms": 1e3 * median(ours), "ddp_ms": ms},
        )


async def _beside(steps: int) -> list[list[float]]:
    """Per step of rank 0: wall and CPU seconds of ours, then of the others'."""
    async with on_stage("beside", workers=2, low=2, more=("--steps", str(steps))) as stage:
        await waited_for(lambda: bool(stage.record.outcome), "the end of training", patience_s=600.0)
        diaries = [path.read_text(encoding="utf-8") for path in (stage.home / "diaries").iterdir()]
    lines = [line.split() for text in diaries for line in text.splitlines()]
    first = [list(map(float, line[3:])) for line in lines if line[2] == "0"]
    assert len(first) == steps
    return [list(column) for column in zip(*first, strict=True)]


# ---------------------------------------------------------------------- the table


def _row(measured: Measured) -> str:
    def shown(value: float) -> str:
        return f"{value:.2%}" if measured.unit == "%" else f"{value:.3f} {measured.unit}"

    goal = ""
    if measured.goal is not None:
        bound = f"{measured.goal:.0%}" if measured.unit == "%" else f"{measured.goal:g} {measured.unit}"
        goal = ("median " if measured.of_median else "worst ") + bound
    ok = {True: "yes", False: "NO", None: ""}[measured.ok]
    middle, worst = shown(median(measured.taken)), shown(max(measured.taken))
    load = f"{os.getloadavg()[0]:.1f}"
    return f"  {measured.name:46}{len(measured.taken):>6}{middle:>9}{worst:>9}{goal:>14}   {ok:<4}{load:>6}"


def _facts(measured: Measured) -> dict[str, Any]:
    return {
        "name": measured.name,
        "unit": measured.unit,
        "median": median(measured.taken),
        "worst": max(measured.taken),
        "taken": list(measured.taken),
        "goal": measured.goal,
        "goal_is_for": None if measured.goal is None else "median" if measured.of_median else "worst",
        "ok": measured.ok,
        **measured.facts,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
