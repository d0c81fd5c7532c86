"""How much checkpoints slow training at the shortest intervals that the model ever chooses: blocks with and without.

Blocks come in fours, with, without, without, with, and the other way round the next time: a machine that becomes busier
or quieter meanwhile befalls both alike. Beside the time on the wall stands the CPU time of the thread that trains:
others do not lengthen it by taking the processor away, and what training waits for is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from sublet.domain.saving import MOST_SLOWDOWN, least_interval_s
from sublet.train.checkpoint.checkpoints import Checkpoints, Pending
from sublet_lab.tiers.places import state_of

WARM_UP = 5  # writes, to know what one costs
FEWEST = 4  # fours
SIDE = 256  # of the matrices that a step multiplies


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """The slowdown of training with checkpoints beside the same without, in fours of blocks."""

    every_s: float
    write_s: float
    blocked_s: float
    saves: int
    shares: Sequence[float]  # by which a step took longer, four by four
    cpu_shares: Sequence[float]  # the same of the CPU time of training

    @property
    def median(self) -> float:
        """The median of the fours."""
        return statistics.median(self.shares)

    @property
    def of_cpu(self) -> float:
        """The median of its CPU time."""
        return statistics.median(self.cpu_shares)

    @property
    def drag(self) -> float:
        """The loss of training speed while one is written beside it."""
        beside_s = max(self.write_s - self.blocked_s, 1e-9)
        return (self.median * self.every_s - self.blocked_s) / beside_s


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """In nineteen of twenty cases the median is between these: by the order of the values alone.

    >>> median_interval([float(n) for n in range(101)])
    (40.0, 60.0)
    """
    ordered, away = sorted(values), 0.98 * len(values) ** 0.5  # 1.96 standard deviations of a fair coin
    low, high = len(ordered) / 2 - away, len(ordered) / 2 + away
    return ordered[max(0, round(low - 0.5))], ordered[min(len(ordered) - 1, round(high - 0.5))]


def measure_slowdown(folder: Path, size_bytes: int, *, seconds: float) -> Slowdown:
    """Blocks of one interval each, in fours whose order alternates, for about so long."""
    torch.set_num_threads(1)
    state, loop = state_of(size_bytes), _Loop()
    with Checkpoints(folder, writer="study", generation=1) as checkpoints:
        checkpoints.reserve(state)
        first = [_written(checkpoints, state, step) for step in range(1, WARM_UP + 1)]
        write_s = statistics.median(each.seconds for each in first)
        blocked_s = statistics.median(each.blocked_s for each in first)
        every_s = least_interval_s(blocked_s, write_s, MOST_SLOWDOWN)
        shares, cpu_shares, done = list[float](), list[float](), list[Pending]()
        for four in range(max(FEWEST, round(seconds / (4.0 * every_s)))):
            outer = four % 2 == 0
            took: dict[bool, list[Block]] = {True: [], False: []}
            for saving in (outer, not outer, not outer, outer):
                took[saving].append(loop.block(every_s, checkpoints if saving else None, state, done))
            shares.append(longer_by([each.wall_s for each in took[True]], [each.wall_s for each in took[False]]))
            cpu_shares.append(longer_by([each.cpu_s for each in took[True]], [each.cpu_s for each in took[False]]))
    return Slowdown(
        every_s=every_s,
        write_s=statistics.median(each.seconds for each in done),
        blocked_s=statistics.median(each.blocked_s for each in done),
        saves=len(done),
        shares=shares,
        cpu_shares=cpu_shares,
    )


def longer_by(these: Sequence[float], others: Sequence[float]) -> float:
    """The share by which steps of these blocks took longer than those of the others.

    >>> longer_by([1.25, 1.25], [0.5, 1.5])
    0.25
    """
    return sum(these) / sum(others) - 1.0


def _written(checkpoints: Checkpoints, state: dict[str, torch.Tensor], step: int) -> Pending:
    pending = checkpoints.save(step, state, {})
    pending.wait()
    return pending


class Block(NamedTuple):
    """Means of its steps."""

    wall_s: float
    cpu_s: float


class _Loop:
    """Steps of work that is always the same."""

    def __init__(self) -> None:
        self._matrix, self._step = torch.randn(SIDE, SIDE), 1000

    def block(
        self,
        seconds: float,
        checkpoints: Checkpoints | None,
        state: dict[str, torch.Tensor],
        done: list[Pending],
    ) -> Block:
        """With a checkpoint in its middle, until that is written."""
        began_s, cpu_s, steps, pending = time.perf_counter(), time.thread_time(), 0, None
        while (passed_s := time.perf_counter() - began_s) < seconds or not (
            checkpoints is None or (pending is not None and pending.done)
        ):
            self._matrix = torch.tanh(self._matrix @ self._matrix)
            steps, self._step = steps + 1, self._step + 1
            if checkpoints is not None and pending is None and passed_s >= seconds / 2.0:
                pending = checkpoints.save(self._step, state, {})
                done.append(pending)
        return Block((time.perf_counter() - began_s) / steps, (time.thread_time() - cpu_s) / steps)
