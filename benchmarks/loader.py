"""What a session costs where a DataLoader's workers load: beside DDP with the same loader, and with torchdata's.

    DDP + DataLoader        what everybody has (of one process: the plain loop)
    session + DataLoader    the same loader handed to a session
    session alone           the dataset handed to a session: it loads in the training process
    DDP + torchdata         its StatefulDataLoader: `make loader` installs it, and runs this

Each is W processes of its own, one thread each; they take turns in blocks of steps, so that a busy machine disturbs all
alike, and those who wait do nothing. The first steps of a block, whose samples were loaded while others trained, do not
count. CPU time of a process and its loader's workers is shown beside wall time, because a busy machine changes it less.
All are started several times: whether the C library gives memory back after a step, and asks for it again in the next,
goes by where things lie, and stays as it is for the life of a process (none to 500 page faults a step).
`make loader`, or `python -m benchmarks.loader`; with `quick` fewer blocks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

GOAL = 0.03
KINDS = ("DDP + DataLoader", "session + DataLoader", "session alone", "DDP + torchdata")
TORCHDATA = "'torchdata>=0.11'"  # as the extra `integrations` of pyproject.toml has it
FEATURES, HIDDEN, BATCH, LOADER_WORKERS = 256, 512, 64, 2
SLOW_S = 0.005  # an item
BLOCKS = {"slow": 8, "fast": 20}
STEPS = {"slow": 8, "fast": 60}  # a block
STARTS = 3  # of all processes
WARM = 2 * LOADER_WORKERS + 1  # before them: what a loader has ready


class Items(Dataset[tuple[torch.Tensor, int]]):
    """Each a row that follows from its index, after a while."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._rows = torch.randn(1024, FEATURES)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._pause_s:
            time.sleep(self._pause_s)
        return self._rows[index % len(self._rows)], index % 10


def main() -> None:
    """Print the table."""
    quick = "quick" in sys.argv[1:]
    kinds = list(KINDS)
    if find_spec("torchdata") is None:
        kinds.remove(KINDS[-1])
        print(f"left out: {KINDS[-1]}, which is not installed; next: make loader, or pip install {TORCHDATA}\n")
    print(f"ms a step of {BATCH} samples, {LOADER_WORKERS} loader workers a process: wall (median; over DDP's) and CPU")
    for items in ("slow", "fast"):
        for width in (1, 2):
            took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for _ in range(STARTS):
                found = measured(kinds, items, width, blocks=max(2, BLOCKS[items] // (4 if quick else 1) // STARTS))
                took = {kind: [*took[kind], *found[kind]] for kind in kinds}
            print(f"\n{items} items, {width} process{'es' if width > 1 else ''}")
            for kind in kinds:
                (wall, cpu), (ddp_wall, ddp_cpu) = (list(zip(*took[each], strict=True)) for each in (kind, KINDS[0]))
                low, middle, high = statistics.quantiles([a / b for a, b in zip(wall, ddp_wall, strict=True)], n=4)
                goal = f"   at most {1 + GOAL:.2f}" if kind == KINDS[1] else ""
                print(
                    f"  {kind:<22} {statistics.median(wall) * 1e3:8.2f}   {middle:5.3f} (quartiles {low:.3f} and "
                    f"{high:.3f})   CPU {statistics.mean(cpu) * 1e3:7.2f}   {sum(cpu) / sum(ddp_cpu):5.3f}{goal}",
                    flush=True,
                )


def measured(kinds: list[str], items: str, width: int, blocks: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds a step by the wall and of CPU, block by block, of each kind."""
    groups = {kind: [_start(kind, items, rank, width, port) for rank in range(width)] for kind, port in _ports(kinds)}
    took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    try:
        for block in range(blocks + 1):
            for kind in kinds if block % 2 else reversed(kinds):
                for process in groups[kind]:
                    _write(process, "go")
                rows = [_read(process) for process in groups[kind]]
                if block:  # the first warms up
                    wall_s, cpu_s = (max(row[0] for row in rows), sum(row[1] for row in rows))
                    took[kind].append((wall_s / STEPS[items], cpu_s / STEPS[items]))
    finally:
        for process in (each for group in groups.values() for each in group):
            process.kill()
            process.wait()
    return took


def _ports(kinds: list[str]) -> Iterator[tuple[str, int]]:
    for kind in kinds:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        yield kind, port


def _start(kind: str, items: str, rank: int, width: int, port: int) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("SUBLET_")}
    env |= {"PYTHONWARNINGS": "ignore:'set_vital'"}  # of torchdata, once for each process
    env |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "RANK": str(rank), "WORLD_SIZE": str(width)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "benchmarks.loader", "--worker", kind, items]
    return subprocess.Popen(  # noqa: S603 - ourselves
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _write(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def _read(process: subprocess.Popen[str]) -> tuple[float, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a worker has ended: see its error above")
    wall_s, cpu_s = json.loads(line)
    return wall_s, cpu_s


# ------------------------------------------------------------------------------------------- one process of a group


class Blocks:
    """When this process may train, and how long it took."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._begun = (0.0, 0.0)

    def begin(self) -> None:
        """Before the first step."""
        self._wait()

    def step_over(self) -> None:
        """After each."""
        self._done += 1
        if self._done == WARM:
            self._begun = _clocks()
        if self._done == WARM + self._steps:
            print(json.dumps([now - then for now, then in zip(_clocks(), self._begun, strict=True)]), flush=True)
            self._wait()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)
        self._done = 0


def _clocks() -> tuple[float, float]:
    """By the wall, and CPU of this process and of its loader's workers."""
    cpu_s = time.process_time()
    for child in multiprocessing.active_children():
        cpu_s += int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9
    return time.perf_counter(), cpu_s


def work(kind: str, items: str) -> None:
    """As one process of the group, until nobody asks any more."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    model.append(nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, blocks = Items(SLOW_S if items == "slow" else 0.0), Blocks(STEPS[items])
    if kind.startswith("session"):
        _in_session(model, optimizer, data if kind.endswith("alone") else _loader(DataLoader, data, BATCH), blocks)
    elif kind.endswith("torchdata"):
        from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]  # it has none

        _in_ddp(model, optimizer, data, StatefulDataLoader, blocks)
    else:
        _in_ddp(model, optimizer, data, DataLoader, blocks)


def _loader(kind: Callable[..., Any], data: Items, batch: int, **more: Any) -> Any:
    more = more or {"shuffle": True}
    return kind(data, batch_size=batch, num_workers=LOADER_WORKERS, persistent_workers=True, **more)


def _in_session(model: nn.Module, optimizer: torch.optim.Optimizer, data: Any, blocks: Blocks) -> None:
    from sublet import train

    with train.session(model, optimizer, data, global_batch=BATCH, epochs=1) as s:
        blocks.begin()
        for x, y in s:
            s.step(nn.functional.cross_entropy(model(x), y))
            blocks.step_over()


def _in_ddp(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Items, kind: Callable[..., Any], blocks: Blocks
) -> None:
    width, replica = int(os.environ["WORLD_SIZE"]), model
    sampler: dict[str, Any] = {}
    if width > 1:
        torch.distributed.init_process_group("gloo")
        replica, sampler = DistributedDataParallel(model), {"sampler": DistributedSampler(data)}
    blocks.begin()
    for x, y in _loader(kind, data, BATCH // width, **sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(replica(x), y).backward()  # type: ignore[no-untyped-call]  # torch gives it no type
        optimizer.step()
        blocks.step_over()


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(*sys.argv[2:])
    else:
        main()
