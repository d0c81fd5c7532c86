"""What ranges of the optimizer's state cost beside whole copies of it: memory, the time of a step, that of a resize.

    python -m benchmarks.shards                 the table
    python -m benchmarks.shards --quick         fewer rounds, steps and changes
    python -m benchmarks.shards --course        10.9 million parameters through worlds of 4, 5, 4, 3, 5 and 2 instead
    python -m benchmarks.shards --json FILE     everything that was measured

Real processes that talk by gloo over loopback, one thread each. The ways take turns, round by round, and another one is
first in each round, so that a busy machine disturbs all alike; shown are ratios of medians over all rounds. CPU time
stands beside wall time for the same reason: there are more workers than most machines have cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # an optimizer imports it: two seconds that each worker would spend
from torch import nn
from torch.utils.data import TensorDataset

import sublet.train.sessions.copies  # noqa: F401 - as above
from sublet import train
from sublet_lab.trainers import World

STEP_GOAL, RESIZE_GOAL, COURSE_GOAL_S = 1.10, 2.0, 0.2
COURSE, COURSE_LAYERS = (4, 5, 4, 3, 5, 2), 26
WIDTHS = (2, 4)
WAYS = {"replicated": 0, "each range on one": 1, "each range on two": 2}  # workers that hold a range; 0 = no ranges
FEATURES, HIDDEN, LAYERS, BATCH = 256, 640, 7, 64
WARM = 5  # steps of a generation that do not count
LATEST_S = 600.0  # any wait, on however busy a machine

Row = dict[str, float]
Pair = tuple[float, float]  # seconds on the wall and of CPU


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    rounds: int
    steps: int  # before the first change, and between changes
    changes: int  # down by one worker and up again


def main() -> None:
    """Print the table."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, steps and changes")
    parser.add_argument("--course", action="store_true", help="worlds of 4, 5, 4, 3, 5 and 2, and nothing else")
    parser.add_argument("--rounds", type=int, help="as many, instead of five (two if quick)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args()
    usual = Size(2, 15, 1) if asked.quick else Size(5, 25, 2)
    size = replace(usual, rounds=asked.rounds or usual.rounds)
    if asked.course:
        show_course([run_course(keep, size) for _ in range(size.rounds) for keep in (1, 2)])
        return
    rows: dict[tuple[int, str], list[list[Row]]] = {(width, way): [] for width in WIDTHS for way in WAYS}
    for number in range(size.rounds):
        order = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
        for width, way in itertools.product(WIDTHS, order):
            rows[width, way].append(run(width, WAYS[way], size))
    found = [figures(width, {way: rows[width, way] for way in WAYS}) for width in WIDTHS]
    show(found, size)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def run(width: int, keep: int, size: Size) -> list[Row]:
    """One world: steps, and changes of its width; what its workers wrote down."""
    with tempfile.TemporaryDirectory() as name:
        world = World(trains, Path(name))
        world.keep = keep
        world.regroup(world.start(width))
        _some_steps(world, size)
        for _ in range(size.changes):
            world.regroup(world.members[:-1])
            _some_steps(world, size)
            (new,) = world.start(1)
            world.until(partial(getattr, new, "ready"), "ready", wait_s=LATEST_S)
            world.regroup([*world.members, new])
            _some_steps(world, size)
        world.end()
        return [json.loads(line) for path in Path(name).glob("*.notes") for line in path.read_text().splitlines()]


def run_course(keep: int, size: Size) -> tuple[int, list[Pair]]:
    """Through all of its worlds; of each change, seconds on the wall and of rank 0's CPU, without the step after it."""
    with tempfile.TemporaryDirectory() as name:
        world = World(partial(trains, layers=COURSE_LAYERS), Path(name))
        world.keep = keep
        world.regroup(world.start(COURSE[0]))
        _some_steps(world, size)
        for width in COURSE[1:]:
            new = world.start(max(0, width - len(world.members)))
            world.until(lambda new=new: all(each.ready for each in new), "ready", wait_s=LATEST_S)
            world.regroup([*world.members, *new][:width])
            _some_steps(world, size)
        world.end()
        rows = [json.loads(line) for path in Path(name).glob("*.notes") for line in path.read_text().splitlines()]
    return keep, [each for more in (1, -1, 2, -3) for each in pauses_of(rows, more)]


def show_course(found: list[tuple[int, list[Pair]]]) -> None:
    """The middle of all changes, and the ends."""
    print(f"worlds of {', '.join(map(str, COURSE))}; goal {1e3 * COURSE_GOAL_S:.0f} ms for each change")
    for keep in sorted({keep for keep, _ in found}):
        walls, cpus = zip(*[pair for kept, pairs in found if kept == keep for pair in pairs], strict=True)
        for name, seen in (("wall", walls), ("CPU of rank 0", cpus)):
            least, middle, most = (1e3 * each for each in (min(seen), statistics.median(seen), max(seen)))
            print(
                f"each range on {keep}: {name} {middle:.0f} ms in the middle of {len(seen)}, {least:.0f} to {most:.0f}"
            )


def _some_steps(world: World, size: Size) -> None:
    world.until(world.joined_all, "joined", wait_s=LATEST_S)
    last = max(world.heard_steps()) + size.steps
    world.until(lambda: max(world.heard_steps()) >= last, f"step {last}", wait_s=LATEST_S)


def trains(directory: Path, layers: int = LAYERS) -> None:
    """One worker; rank 0 writes down when each step was over, all what their optimizer keeps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = [each for _ in range(layers) for each in (nn.Linear(HIDDEN, HIDDEN), nn.ReLU())]
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), *hidden, nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = os.open(directory / f"{os.environ['SUBLET_WORKER_ID']}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    dataset = TensorDataset(torch.randn(4096, FEATURES), torch.randint(10, (4096,)))
    noted = -1
    with train.session(model, optimizer, dataset, global_batch=BATCH) as s:
        for x, y in s.batches(epochs=1_000_000):
            before, generation = s.steps, s.generation
            s.step(nn.functional.cross_entropy(model(x), y))
            if s.steps == before:
                continue
            row: Row = {"generation": generation, "rank": s.rank, "world": s.world, "step": s.steps}
            if s.rank == 0:
                row |= {"at_s": time.monotonic(), "cpu_s": time.process_time()}
            if generation != noted:
                noted, row["moments"] = generation, moment_bytes(optimizer)
            if s.rank == 0 or "moments" in row:
                os.write(log, json.dumps(row).encode() + b"\n")


def moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Of the memory that they lie in: a view of a larger piece counts as that."""
    kept = [each for state in optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)]
    memory = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept if each.dim()}
    return sum(memory.values())


# -------------------------------------------------------------------------------------- figures

COLUMNS = ("step", "step_cpu", "shrink", "shrink_cpu", "grow", "grow_cpu", "resize", "resize_cpu")  # ms; of rank 0


def figures(width: int, rounds: dict[str, list[list[Row]]]) -> dict[str, Any]:
    """Of one width: medians of each way, and their ratios to those of whole copies."""
    ways: dict[str, dict[str, float]] = {}
    for way, worlds in rounds.items():
        kinds = {
            "step": [each for world in worlds for each in steps_of(world, width)],
            "shrink": [each for world in worlds for each in pauses_of(world, -1)],
            "grow": [each for world in worlds for each in pauses_of(world, 1)],
        }
        moments = [row["moments"] for world in worlds for row in world if "moments" in row and row["world"] == width]
        ways[way] = {"moments": statistics.median(moments) / 1e6}
        for kind, pairs in kinds.items():
            ways[way][kind], ways[way][f"{kind}_cpu"] = (
                statistics.median(side) * 1e3 for side in zip(*pairs, strict=True)
            )
        for clock in ("", "_cpu"):  # there and back
            ways[way][f"resize{clock}"] = ways[way][f"shrink{clock}"] + ways[way][f"grow{clock}"]
    whole = ways["replicated"]
    ratios = {
        way: {name: value / whole[name] if whole[name] > 0.0 else math.nan for name, value in found.items()}
        for way, found in ways.items()
    }
    return {"workers": width, "medians": ways, "ratios": ratios, "rows": rounds}


def _generations(rows: Iterable[Row]) -> list[list[Row]]:
    """The steps that rank 0 saw, by generation."""
    timed = sorted((row for row in rows if "at_s" in row), key=lambda row: (row["generation"], row["step"]))
    return [list(group) for _, group in itertools.groupby(timed, key=lambda row: row["generation"])]


def _between(before: Row, after: Row) -> Pair:
    return after["at_s"] - before["at_s"], after["cpu_s"] - before["cpu_s"]


def steps_of(rows: Iterable[Row], width: int) -> list[Pair]:
    """Wall and CPU seconds of each step at a width."""
    return [
        _between(a, b)
        for group in _generations(rows)
        for a, b in itertools.pairwise(group[WARM:])
        if b["world"] == width
    ]


def pauses_of(rows: Iterable[Row], more: int) -> list[Pair]:
    """From the last step before each change by so many workers to the first one after it, without that step itself."""
    found = []
    for before, after in itertools.pairwise(_generations(rows)):
        if after[0]["world"] - before[0]["world"] == more and len(after) > WARM:
            usual = [_between(a, b) for a, b in itertools.pairwise(after[1:])]
            wall_s, cpu_s = _between(before[-1], after[0])
            step_s, step_cpu_s = (statistics.median(side) for side in zip(*usual, strict=True))
            found.append((wall_s - step_s, cpu_s - step_cpu_s))
    return found


def show(found: list[dict[str, Any]], size: Size) -> None:
    """As a table."""
    print(f"{size.rounds} rounds; medians, and their ratios to those of replicated state (CPU is that of rank 0)")
    heads = "".join(f"{name.replace('_', ' '):>12}" for name in COLUMNS)
    print(f"workers  {'way':<19}{'moments MB':>10}{heads}   ms")
    for each in found:
        for way, values in each["medians"].items():
            print(f"{each['workers']:>7}  {way:<19}{values['moments']:10.2f}", end="")
            print("".join(f"{values[name]:12.1f}" for name in COLUMNS))
            if WAYS[way]:
                ratios = each["ratios"][way]
                print(f"{'':>28}{ratios['moments']:9.3f}x" + "".join(f"{ratios[name]:11.2f}x" for name in COLUMNS))
    print(
        f"goals: moments min(1, keep / workers) of replicated; a step at most {STEP_GOAL:.2f}x; "
        f"a resize, there and back, at most {RESIZE_GOAL:.1f}x\n"
        "a change is without the step that follows it, by its median: on a busy machine less than nothing may be left"
    )


if __name__ == "__main__":
    main()
