"""Ways to keep checkpoints of nodes on spot, each through the same losses of all nodes, with processes and bytes.

    tiering          spot nodes alone train; a machine without GPUs, on demand, keeps the checkpoints
    single anchor    one of the nodes that train is on demand, and keeps them
    bucket           spot nodes alone; checkpoints go straight to a bucket
    on demand        no node is lost, and nothing is kept

All outlive the loss of all spot nodes: the risk is the same, and only time and rent differ. Prices are DeepVM's (eight
g4dn.xlarge, c5.xlarge). One process stands for the nodes, its folder for their disks: a loss kills it and removes that.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from sublet.domain.saving import MOST_SLOWDOWN, cost_of_write
from sublet.perf.preemption.tiers import Ladder, best_tiering
from sublet_lab.studies.deepvm.facts import ANCHORS, AWS
from sublet_lab.tiers.places import Took
from sublet_lab.tiers.worker import Facts

NODES = 8
ARMS = ("tiering", "single anchor", "bucket", "on demand")
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One of them."""

    name: str
    far: str  # a directory, or the URI of a bucket
    direct: bool
    usd_per_h: float
    every_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The outcome."""

    seconds: float
    steps_redone: int
    losses: int
    resumes_s: Sequence[float]  # from the loss to the next step
    usd: float  # of an hour of work, at its rent


def rents() -> Mapping[str, float]:
    """USD per hour of each way."""
    node = next(each for each in AWS if each.name.startswith("g4dn"))
    anchor = next(each for each in ANCHORS if each.name == "c5.xlarge")
    spot, steady = node.spot_usd_per_h, node.on_demand_usd_per_h
    return {
        "tiering": NODES * spot + anchor.usd_per_h,
        "single anchor": (NODES - 1) * spot + steady,
        "bucket": NODES * spot,
        "on demand": NODES * steady,
    }


def interval_s(took: Took, far_s: float, losses_per_s: float) -> float:
    """The model's, for losses of all nodes: what is written and what is carried cost as live jobs count them."""
    cost_s = cost_of_write(took.blocked_s, took.write_s) + cost_of_write(0.0, far_s)
    ladder = Ladder(
        hits_per_s=np.array([[losses_per_s]]),
        cost_s=cost_s,
        lag_s=took.write_s + far_s,
        least_s=took.write_s + far_s,
    )
    return float(best_tiering(ladder, most_slowdown=MOST_SLOWDOWN).every_s_KC[0, 0])


def expected_s(work_s: float, every_s: float, *, cost_s: float, lag_s: float, resume_s: float, losses: int) -> float:
    """By the model: work, copies, and for each loss what no copy had and what it takes to go on."""
    return work_s * (1.0 + cost_s / every_s) + losses * (every_s / 2.0 + lag_s + resume_s)


def live(
    arm: Arm,
    folder: Path,
    *,
    steps: int,
    step_s: float,
    size_bytes: int,
    losses_s: Sequence[float],
    env: Mapping[str, str],
) -> Life:
    """Train all steps; at each of these seconds since the first step could be made all nodes are lost."""
    shutil.rmtree(folder, ignore_errors=True)
    node = folder / "node"
    began_s, left, trains_s = time.perf_counter(), list(losses_s), math.inf
    redone, resumes, generation, reached, lost_at_s = 0, list[float](), 1, 0, None
    while True:
        facts = Facts(
            node=str(node),
            far=arm.far,
            direct=arm.direct,
            steps=steps,
            step_s=step_s,
            size_bytes=size_bytes,
            every_s=arm.every_s,
            generation=generation,
        )
        with _Worker(facts, env) as worker:
            while not worker.finished:
                now_s = time.perf_counter() - began_s
                if now_s > PATIENCE_S:
                    raise TimeoutError(f"{arm.name}: {worker.step} steps of {steps} after {now_s:.0f} s")
                if worker.resumed is not None and lost_at_s is not None:
                    redone += max(0, reached - worker.resumed)
                    resumes.append(time.perf_counter() - lost_at_s)
                    lost_at_s = None
                if worker.resumed is not None and trains_s == math.inf:
                    trains_s = now_s
                if left and now_s >= trains_s + left[0] and worker.resumed is not None:
                    left.pop(0)
                    break
                time.sleep(0.005)
            if worker.finished:
                break
            reached = worker.step
        lost_at_s, generation = time.perf_counter(), generation + 1
        shutil.rmtree(node, ignore_errors=True)
    seconds = time.perf_counter() - began_s
    usd = arm.usd_per_h * seconds / (steps * step_s)
    return Life(seconds=seconds, steps_redone=redone, losses=len(losses_s) - len(left), resumes_s=resumes, usd=usd)


class _Worker:
    """A process; what it says is read beside."""

    def __init__(self, facts: Facts, env: Mapping[str, str]) -> None:
        self.resumed: int | None = None
        self.step, self.finished = 0, False
        command = [sys.executable, "-m", "sublet_lab.tiers.worker", json.dumps(asdict(facts))]
        self._process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self.step = told.get("step", told.get("resumed", self.step))
            self.resumed = told.get("resumed", self.resumed)
            self.finished |= "finished" in told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.finished:
            self._process.kill()
        self._process.wait()
        self._reader.join()
