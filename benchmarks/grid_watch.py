"""What workers of a grid do, seen from outside: when each came to an agreement and left it, what it sent, and its CPU.

Clocks of one machine are the same in all its processes, so who came last is known only to who sees all of them. Each
worker writes down its own, in memory that it shares with who has forked it.
"""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sublet.train.grid.gloo import GlooMesh
from sublet.train.grid.member import Member
from sublet.train.grid.pipeline import Stepped

__all__ = ["Watch", "cpu_s"]

WORKERS, STEPS = 16, 1 << 14
SENT = 0  # of a worker: bytes; its agreements follow, one after the other
ROW = 2 + 3 * STEPS  # the step, when it came, when it left


class Watch:
    """Of one round; it is made before workers are forked."""

    def __init__(self) -> None:
        self._seen = memoryview(mmap.mmap(-1, 8 * WORKERS * ROW)).cast("d")

    def begin(self, worker: int) -> None:
        """In the worker: its meshes tell from now on."""
        row = self._seen[worker * ROW : (worker + 1) * ROW]
        add_up, send, step = GlooMesh.sum, GlooMesh.send, Member.step
        applied = -1  # steps, while one is made

        def steps(member: Member, *given: Any, **named: Any) -> Stepped:
            nonlocal applied
            applied = member.applied
            try:
                return step(member, *given, **named)
            finally:
                applied = -1

        def sums(mesh: GlooMesh, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
            came_s = time.monotonic()
            add_up(mesh, tensor, ranks)
            if applied >= 0 and tensor.dtype == torch.float64:  # nothing else of a step is
                at = 2 + 3 * (int(row[1]) % STEPS)
                row[at], row[at + 1], row[at + 2] = applied, came_s, time.monotonic()
                row[1] += 1

        def sends(mesh: GlooMesh, tensor: torch.Tensor, to: int, tag: int) -> None:
            row[SENT] += tensor.nbytes
            send(mesh, tensor, to, tag)

        GlooMesh.sum, GlooMesh.send, Member.step = sums, sends, steps  # type: ignore[method-assign]

    def steps(self, worker: int) -> int:
        """That it has agreed on, with others."""
        return int(self._seen[worker * ROW + 1])

    def sent_bytes(self, workers: Sequence[int]) -> int:
        """By these, until now, from one to another; sums are not counted."""
        return int(sum(self._seen[each * ROW + SENT] for each in workers))

    def agreed_s(self, workers: Sequence[int], count: int) -> tuple[float, float]:
        """Of the last `count` agreements of these: from when the last came until half had heard, and until all had.

        Each is the middle one. Who hears first goes on with its work, so that on fewer cores than workers the last
        to hear has waited for a core.
        """
        logs = [self._agreements(each) for each in workers]
        common = sorted(set.intersection(*[set(log) for log in logs]))[-count:]
        steps = [[log[step] for log in logs] for step in common]
        last = [max(came for came, _ in step) for step in steps]
        half = [statistics.median(left for _, left in step) - came for step, came in zip(steps, last, strict=True)]
        whole = [max(left for _, left in step) - came for step, came in zip(steps, last, strict=True)]
        return statistics.median(half), statistics.median(whole)

    def _agreements(self, worker: int) -> dict[int, tuple[float, float]]:
        row: Any = self._seen[worker * ROW : (worker + 1) * ROW]
        return {int(row[at]): (row[at + 1], row[at + 2]) for at in range(2, 2 + 3 * min(int(row[1]), STEPS), 3)}


def cpu_s(pids: Sequence[int]) -> float:
    """That these processes have used until now, all their threads."""
    tasks = [each for pid in pids for each in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9
