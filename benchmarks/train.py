"""What `sublet.train` costs: per step beside bare DDP, with a model in stages, at a resize, and after a kill.

Two workers on the CPU, one thread each. The two sides take turns in blocks, in the same processes and over the same
group, so that a busy machine disturbs both alike; CPU time is shown beside wall time for the same reason.
`python -m benchmarks.train`; with `quick` fewer blocks and changes.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from sublet import train
from sublet.train.sessions.stopwatch import Stopwatch
from sublet_lab.trainers import World

OVERHEAD_GOAL, MEASURING_GOAL = 0.01, 0.005
PAUSE_GOAL_S, BACK_GOAL_S = 0.5, 2.0
FEATURES, HIDDEN, BATCH = 256, 640, 128
BLOCK = 20  # steps


def main() -> None:
    """Print both."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    quick = "quick" in sys.argv[1:]
    overhead(blocks=10 if quick else 60)
    of_a_grid(blocks=10 if quick else 60)
    of_a_grid(blocks=10 if quick else 40, hidden=4 * HIDDEN, block=2)
    for width in (2, 4):
        changes(width, count=5 if quick else 15)


def overhead(blocks: int) -> None:
    """Seconds per step of the session and of DDP, block by block."""
    os.environ["BLOCKS"] = str(blocks)
    rows = _run(beside_ddp, 2, lambda _: None)
    print(f"overhead per step, 2 workers, {len(rows)} blocks of {BLOCK} steps (median ms)")
    print("                  bare DDP    session   overhead   goal")
    for name, kind in (("wall", "wall_s"), ("CPU of rank 0", "cpu_s")):
        pairs = [(row["ours_" + kind], row["ddp_" + kind]) for row in rows]
        ours, ddp = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs) - 1.0
        print(f"  {name:<14} {ddp:9.3f}  {ours:9.3f}  {ratio:9.2%}   at most {OVERHEAD_GOAL:.0%}")
    cost_s = measuring_s()
    step_s = statistics.median(row["ours_wall_s"] for row in rows)
    print(
        f"  measuring the step: {cost_s * 1e6:.2f} us, {cost_s / step_s:.3%} of a step   at most {MEASURING_GOAL:.1%}"
    )
    print()


def of_a_grid(blocks: int, hidden: int = HIDDEN, block: int = BLOCK) -> None:
    """CPU of a step of the session of a model in stages, in a grid of one, beside the plain session's.

    In turns, `block` steps each. A step of the larger model takes some hundred ms, as those of real ones do.
    """
    torch.set_num_threads(1)
    dataset = _dataset(BATCH * block * (blocks + 1))
    (plain, plain_optimizer), (cut, cut_optimizer) = _deep_network(hidden), _deep_network(hidden)
    facts = {"global_batch": BATCH, "micro_batch": BATCH // 4}
    pairs = []
    with (
        train.session(plain, plain_optimizer, dataset, **facts) as one,
        train.session(cut, cut_optimizer, dataset, epochs=1, loss=score, **facts) as other,
    ):
        micro_batches, steps = one.batches(epochs=1), other.batches()
        for turn in range(blocks + 1):
            begun = _clocks()
            for _ in range(block * 4):
                x, y = next(micro_batches)
                one.step(nn.functional.cross_entropy(plain(x), y))
            ours = _since(begun, block)
            begun = _clocks()
            for _ in range(block):
                other.step(next(steps))
            if turn:  # the first has the making of all things in it
                pairs.append((ours, _since(begun, block)))
        for _ in micro_batches:
            raise AssertionError("the blocks are all that there is")
        for _ in steps:
            raise AssertionError("the blocks are all that there is")
    same = all(torch.equal(a, b) for a, b in zip(plain.parameters(), cut.parameters(), strict=True))
    size = sum(each.numel() for each in plain.parameters()) / 1e6
    print(f"a grid of one beside the plain session, {size:.1f} M parameters, {blocks} blocks of {block} steps")
    print(f"  (median ms)        plain        cut   overhead   weights equal: {same}")
    for at, name in enumerate(("wall", "CPU")):
        middle = [statistics.median(pair[side][at] for pair in pairs) * 1e3 for side in (0, 1)]
        ratio = statistics.median(pair[1][at] / pair[0][at] for pair in pairs) - 1.0
        print(f"  {name:<14} {middle[0]:9.3f}  {middle[1]:9.3f}  {ratio:9.2%}   at most {OVERHEAD_GOAL:.0%}")
    print()


def score(output: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The loss, of the output."""
    return nn.functional.cross_entropy(output, batch[1])


def measuring_s(steps: int = 20_000) -> float:
    """Seconds that the stopwatch itself takes in a step of one micro-batch: the least of several goes."""
    watch, took = Stopwatch(torch.device("cpu")), []
    for _ in range(7):
        begun_s = time.perf_counter()
        for _ in range(steps):
            watch.loads()
            watch.gives()
            watch.computed(BATCH, last=True)
            watch.summed()
            watch.updated(full=True)
        watch.take()
        took.append((time.perf_counter() - begun_s) / steps)
    return min(took)


def changes(width: int, count: int) -> None:
    """How long training stands still when a worker goes, comes, or is killed."""
    told: dict[str, list[float]] = {"shrink": [], "grow": [], "kill": []}

    def order(world: World) -> None:
        for _ in range(count):
            for kind, moments in told.items():
                world.run_for(0.15)
                if kind == "grow":
                    new = world.start(width - len(world.members))
                    world.until_ready(new)
                    world.run_for(0.05)
                    moments.append(world.regroup(world.members + new))
                elif kind == "shrink":
                    moments.append(world.regroup(world.members[:-1]))
                else:
                    moments.append(time.monotonic())
                    world.kill(world.members[-1])
                    generation = world.generation
                    world.until(lambda g=generation: world.generation > g, "the kill is seen")
                world.until_joined()
            new = world.start(width - len(world.members))
            world.until_ready(new)
            world.regroup(world.members + new)
            world.until_joined()
        world.end()

    rows = [row for row in _run(timed, width, order) if "at_s" in row]
    steps = sorted({(row["at_s"], row["generation"]) for row in rows})
    usual_s = statistics.median(b[0] - a[0] for a, b in itertools.pairwise(steps) if a[1] == b[1])
    print(f"standing still, {width} workers (median and worst ms of {count})")
    for kind, moments in told.items():
        goal_s = BACK_GOAL_S if kind == "kill" else PAUSE_GOAL_S
        pauses = [_pause_s(steps, moment, from_order=kind == "kill") - usual_s for moment in moments]
        middle, worst = statistics.median(pauses) * 1e3, max(pauses) * 1e3
        print(f"  {kind:<8} {middle:8.0f} {worst:8.0f}   goal: median at most {goal_s * 1e3:.0f}")
    print()


def beside_ddp(directory: Path) -> None:
    """One worker: blocks of steps in the session, and blocks of the same steps in DDP."""
    torch.set_num_threads(1)
    blocks = int(os.environ["BLOCKS"])
    dataset = _dataset(BATCH * BLOCK * (blocks + 1))
    model, optimizer = _network()
    other, other_optimizer = _network()
    features, labels = dataset.tensors
    note = _notes(directory)
    replica: nn.Module | None = None
    with train.session(model, optimizer, dataset, global_batch=BATCH) as s:
        begun = _clocks()
        for x, y in s.batches(epochs=1):
            s.step(nn.functional.cross_entropy(model(x), y))
            if s.steps % BLOCK:
                continue
            ours = _since(begun)
            if replica is None:
                replica = DistributedDataParallel(other)
            order = torch.randperm(len(labels))
            begun = _clocks()
            for step in range(BLOCK):
                start = step * BATCH + s.rank * BATCH // s.world
                share = order[start : start + BATCH // s.world]
                other_optimizer.zero_grad()
                nn.functional.cross_entropy(replica(features[share]), labels[share]).backward()
                other_optimizer.step()
            ddp = _since(begun)
            if s.steps > BLOCK and s.rank == 0:  # the first block warms up
                note(ours_wall_s=ours[0], ours_cpu_s=ours[1], ddp_wall_s=ddp[0], ddp_cpu_s=ddp[1])
            begun = _clocks()
        del replica  # before the group: DDP's last reference to it would wait for threads that wait for us


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(begun: tuple[float, float], steps: int = BLOCK) -> tuple[float, float]:
    wall_s, cpu_s = _clocks()
    return (wall_s - begun[0]) / steps, (cpu_s - begun[1]) / steps


def timed(directory: Path) -> None:
    """One worker that writes down when each step was over."""
    torch.set_num_threads(1)
    model, optimizer = _network()
    note = _notes(directory)
    with train.session(model, optimizer, _dataset(4096), global_batch=BATCH) as s:
        for x, y in s.batches(epochs=1_000_000):
            before, generation = s.steps, s.generation
            s.step(nn.functional.cross_entropy(model(x), y))
            if s.steps > before and s.rank == 0:
                note(at_s=time.monotonic(), generation=generation)


def _run(script: Callable[[Path], None], width: int, order: Callable[[World], None]) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        world = World(script, directory)
        world.start(width)
        world.until_ready(world.workers)
        world.regroup(world.workers)
        world.until_joined()
        order(world)
        world.until(lambda: all(worker.code is not None for worker in world.workers), "the end", wait_s=300.0)
        return [json.loads(line) for path in directory.glob("*.notes") for line in path.read_text().splitlines()]


def _pause_s(steps: list[tuple[float, int]], moment_s: float, *, from_order: bool) -> float:
    """From the last step of the old group (or the kill) to the first of the next one."""
    generation = max(number for at_s, number in steps if at_s <= moment_s)
    after_s = min(at_s for at_s, number in steps if number > generation)
    last_s = max(at_s for at_s, number in steps if number == generation)
    return after_s - (moment_s if from_order else last_s)


def _network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)),
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _deep_network(hidden: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()) for _ in range(4)]
    model = train.Stages(nn.Linear(FEATURES, hidden), blocks, nn.Linear(hidden, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _dataset(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(samples, FEATURES, generator=generator), torch.randint(10, (samples,), generator=generator)
    )


def _notes(directory: Path) -> Callable[..., None]:
    path = directory / f"{os.environ['SUBLET_WORKER_ID']}.notes"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda **facts: os.write(log, json.dumps(facts).encode() + b"\n") and None


if __name__ == "__main__":
    main()
