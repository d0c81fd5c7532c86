"""A GPT whose batch the plan changes twice, beside one whose batch stays: the loss of the same samples.

The plan is a real one where the controller can run: a policy that wants another batch after each third, a node of the
local provider, a worker. Where packages of the controller are missing, the worker gets the same orders by hand. Both
trainings read the same samples in the same order, in micro-batches of the same samples.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_work import start_work
from sublet.wire.messages import Stepped
from sublet_lab.trainers import World

__all__ = ["FULL", "QUICK", "Change", "compare"]

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.01
PATIENCE_S = 150.0
POINTS = 10  # of the curve; the loss at each is a mean over as many samples


@dataclass(frozen=True, slots=True)
class Change:
    """So many samples in all; each batch lasts for its part of them."""

    samples: int
    micro_batch: int
    batches: tuple[int, ...]

    def batch_at(self, share: float) -> int:
        """After this part of the training."""
        return self.batches[min(int(share * len(self.batches)), len(self.batches) - 1)]


FULL, QUICK = Change(12_288, 8, (16, 32, 64)), Change(2_400, 4, (8, 16, 32))


def compare(change: Change, *, tiny: bool) -> dict[str, Any]:
    """The two curves, and how far apart they are."""
    with tempfile.TemporaryDirectory(prefix="sublet-gpu-") as name:
        folder = Path(name)
        fixed = _trained(Change(change.samples, change.micro_batch, change.batches[:1]), folder / "fixed", tiny=tiny)
        changed = _trained(change, folder / "changed", tiny=tiny)
    assert [row[:2] for row in fixed["rows"]] == [row[:2] for row in changed["rows"]], "they saw other samples"
    curves = {name: _curve(each["rows"], change.samples) for name, each in (("fixed", fixed), ("changed", changed))}
    apart = [there / here - 1.0 for here, there in zip(curves["fixed"], curves["changed"], strict=True)]
    steps = " -> ".join(map(str, change.batches))
    print(f"loss by samples seen: batch {change.batches[0]}, and {steps} by {changed['by']}")
    print("  samples    fixed  changed   apart   batch")
    for at, (here, there, off) in enumerate(zip(curves["fixed"], curves["changed"], apart, strict=True)):
        seen = (at + 1) * change.samples // POINTS
        batch = next(row[2] for row in reversed(changed["rows"]) if row[0] < seen)
        print(f"  {seen:7} {here:8.4f} {there:8.4f} {off:+7.2%}   {batch:5}")
    print(f"  apart at the end {apart[-1]:+.2%}   goal {GOAL:.0%}\n", flush=True)
    return {
        "by": changed["by"],
        "batches": list(change.batches),
        "changed_at_samples": _changes(changed["rows"]),
        "samples": [(at + 1) * change.samples // POINTS for at in range(POINTS)],
        **curves,
        "apart": apart,
        "apart_at_the_end": apart[-1],
        "worst_apart": max(map(abs, apart)),
        "goal": GOAL,
        "reached": abs(apart[-1]) <= GOAL,
        "seconds": {"fixed": fixed["seconds"], "changed": changed["seconds"]},
    }


def _curve(rows: list[list[float]], samples: int) -> list[float]:
    """Mean loss of the samples of each tenth."""
    tenths: list[list[float]] = [[] for _ in range(POINTS)]
    for first, _, _, loss in rows:
        tenths[int(first * POINTS / samples)].append(loss)
    return [statistics.fmean(tenth) for tenth in tenths]


def _changes(rows: list[list[float]]) -> list[tuple[int, int]]:
    """Samples seen, and the batch from then on."""
    found = [(int(rows[0][0]), int(rows[0][2]))]
    for first, _, batch, _ in rows:
        if batch != found[-1][1]:
            found.append((int(first), int(batch)))
    return found


def _trained(change: Change, folder: Path, *, tiny: bool) -> dict[str, Any]:
    folder.mkdir()
    log = folder / "losses.jsonl"
    moves = len(change.batches) > 1
    facts = {"TINY": int(tiny), "SAMPLES": change.samples, "EPOCHS": 1, "BATCH": change.batches[0]}
    facts |= {"MICRO": change.micro_batch, "LOW": change.batches[0], "HIGH": max(change.batches) if moves else 0}
    env = {f"GPT_{name}": str(value) for name, value in facts.items()} | {"GPT_LOG": str(log)}
    began_s = time.monotonic()
    by = "the plan of a controller"
    try:
        from benchmarks.gpu_plan import planned

        argv = (sys.executable, "-m", "benchmarks.gpu_work")
        paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src", ROOT / "lab" / "src")))}
        asyncio.run(planned(change.batch_at, folder / "state", argv, env | paths, ROOT, PATIENCE_S))
    except (ImportError, OSError, RuntimeError) as error:
        by = "orders by hand"
        print(f"  the controller does not run here: {error}\n  so the worker gets its orders by hand", flush=True)
        log.unlink(missing_ok=True)
        _ordered(change, folder, env)
    rows = {int(row[0]): row for row in map(json.loads, log.read_text().splitlines())}  # the last time counts
    seconds = time.monotonic() - began_s
    return {"rows": [rows[first] for first in sorted(rows)], "by": by, "seconds": seconds}


def _ordered(change: Change, folder: Path, env: dict[str, str]) -> None:
    world = World(start_work, folder, **env)
    try:
        members = world.start(1)
        world.until(lambda: members[0].ready or members[0].code is not None, "start", wait_s=PATIENCE_S)

        def wanted() -> int:
            done = [said.done for _, _, said in world.messages if isinstance(said, Stepped)]
            return change.batch_at(max(done, default=0.0) / change.samples)

        while not world.finished:
            world.batch = wanted() if len(change.batches) > 1 else 0
            world.regroup(members)
            batch = world.batch
            world.until(
                lambda b=batch: world.finished or (b and wanted() != b),
                "the next batch",
                wait_s=PATIENCE_S,
                watch=False,
            )
            assert members[0].code in (None, 0), f"the worker has ended: {members[0].code}"
        world.until(lambda: members[0].code is not None, "its end", wait_s=PATIENCE_S, watch=False)
    finally:
        world.end()
