"""The tiers of a job's checkpoints: what each has cost and saved, and how often each is written.

Workers write to their node's disk and agents carry every commit to the controller, or they write where all see it:
either way one interval, that of the worker, is for both. What the controller copies to a bucket no GPU waits for.
Survivors of an elastic job hold its state at every step, for nothing: it needs a checkpoint only where all nodes go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sublet.domain.offer import Market
from sublet.domain.plan import OfferState
from sublet.domain.saving import MOST_SLOWDOWN, cost_of_write
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import expected_hits_per_h
from sublet.perf.preemption.reclaims import USUAL_PER_H
from sublet.perf.preemption.tiers import Ladder, best_tiering
from sublet.runtime.controller.money import Bill
from sublet.wire import messages as wire
from sublet.wire.files import ANCHOR, BUCKET, DISK

OUTWARD = ("peers", DISK, ANCHOR, BUCKET)  # each outlives more than the one before it
LIES = {
    DISK: "lies on its node's own disk (disk), and is lost with it",
    ANCHOR: "lies where the controller is, or where all nodes see it (anchor), and outlives the nodes",
    BUCKET: "lies in a bucket (bucket), and outlives the controller's machine",
}


@dataclass(slots=True)
class Tally:
    """One tier."""

    commits: int = 0
    size_bytes: int = 0  # of all of them
    blocked_s: float = 0.0  # of training, in cloud time
    grains: int = 0  # for that
    step: int = -1  # of the last
    seconds: float = 0.0  # that one took, wall: to be written, carried or copied
    last_blocked_s: float = 0.0  # wall
    resumes: int = 0
    kept_steps: int = 0  # that would have been made again without this tier
    kept_grains: int = 0


class Tiers:
    """Of one job."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}

    def of(self, tier: str) -> Tally:
        """One that was not used yet has only noughts."""
        return self.tallies.get(tier) or Tally()

    @property
    def newest(self) -> str:
        """The farthest tier that has the highest step (of a script without any, the last); "" before there is any."""
        step = max((tally.step for tally in self.tallies.values()), default=-1)
        has = ((tier, self.tallies[tier]) for tier in reversed(OUTWARD[1:]) if tier in self.tallies)
        return next((tier for tier, tally in has if tally.step == step and (step >= 0 or tally.commits)), "")

    @property
    def newest_step(self) -> int | None:
        """Of that; None of a script without any."""
        step = self.of(self.newest).step
        return step if step >= 0 else None

    def describe(self) -> str:
        """Where the newest is, in a sentence; "" before there is any."""
        if not (tier := self.newest):
            return ""
        of_step = "" if (step := self.newest_step) is None else f", of step {step},"
        return f"its newest checkpoint{of_step} {LIES[tier]}"

    def saved(self, job_id: str, message: wire.Saved, bill: Bill, speedup: float) -> None:
        """A checkpoint is committed there."""
        tally = self.tallies.setdefault(message.tier if message.tier in OUTWARD else ANCHOR, Tally())
        tally.commits += 1
        tally.size_bytes += message.size_bytes
        tally.blocked_s += message.blocked_s * speedup
        tally.grains += bill.book_checkpoint(job_id, message.blocked_s * speedup)
        tally.step, tally.seconds, tally.last_blocked_s = message.step, message.seconds, message.blocked_s

    def found(self, step: int) -> None:
        """It is in a bucket of before, and was brought from there."""
        for tier in (ANCHOR, BUCKET):
            self.tallies.setdefault(tier, Tally()).step = step

    def resumed(self, job_id: str, step: int, source: str, bill: Bill, steps_made: int) -> None:
        """It has lost workers, and goes on at this step: without the tier that had it, it would from the next."""
        had = "peers" if source == "peer" else self._of_step(step)
        if had is not None:
            self._keep(had, job_id, step, bill, steps_made)
        for tally in self.tallies.values():
            if tally.step > step:  # it went with its nodes, or is of no use
                tally.step = -1

    def _keep(self, had: str, job_id: str, step: int, bill: Bill, steps_made: int) -> None:
        beyond = max((self.of(tier).step for tier in OUTWARD[OUTWARD.index(had) + 1 :]), default=0)
        kept = max(0, step - max(0, beyond))
        tally = self.tallies.setdefault(had, Tally())
        tally.resumes += 1
        tally.kept_steps += kept
        tally.kept_grains += bill.jobs[job_id].useful * kept // max(steps_made, kept, 1)

    def _of_step(self, step: int) -> str | None:
        """The farthest that had it: a nearer one may have been lost."""
        return next((tier for tier in reversed(OUTWARD) if self.of(tier).step >= step > 0), None)

    def facts(self) -> dict[str, Any]:
        """For the store."""
        return {tier: asdict(tally) for tier, tally in self.tallies.items()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Mapping[str, Any]]) -> Tiers:
        """From what `facts` gave."""
        found = cls()
        found.tallies = {tier: Tally(**tally) for tier, tally in facts.items() if tier in OUTWARD}
        return found


FIRST_WRITE_S = 0.05  # until one was measured
FAILS_PER_H = 0.005  # all processes of a job die while their nodes live: about once a week
TOGETHER = 0.1  # of the losses of spot nodes take all of a job's: in records of them many go at once
BUSY = 0.1  # of the time, at most, the controller copies to a bucket
LONGEST_S = 600.0  # wall, between two checkpoints, if they cost next to nothing
DIGITS = 3  # of what is measured: nothing is computed anew for less


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of the last copies, wall; 0 = nothing was measured yet."""

    blocked_s: float = 0.0  # of training
    write_s: float = 0.0  # where the worker writes
    carry_s: float = 0.0  # from there to the controller
    copy_s: float = 0.0  # from the controller to a bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """How often per hour of the cloud a job loses what."""

    some_per_h: float  # nodes, of which others are left
    all_per_h: float  # nodes
    fails_per_h: float = FAILS_PER_H  # processes
    anchor_per_h: float = USUAL_PER_H[Market.ON_DEMAND]


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Wall seconds between two copies, and what of all time they cost training by the model."""

    worker_s: float  # disk and anchor
    bucket_s: float  # from the anchor; infinite = never
    slower: float


def losses_of(held: Sequence[tuple[OfferState, int]], *, survives: bool) -> Losses:
    """Of a job on so many nodes of each offer. `survives`: those that are left hold its state."""
    hits_per_h = sum(expected_hits_per_h(state, nodes) for state, nodes in held)
    if not survives or sum(nodes for _, nodes in held) <= 1:
        return Losses(some_per_h=0.0, all_per_h=hits_per_h)
    if any(state.offer.market is Market.ON_DEMAND for state, _ in held):
        return Losses(some_per_h=hits_per_h, all_per_h=USUAL_PER_H[Market.ON_DEMAND])
    together = [TOGETHER]
    if len(held) == 1:
        ((state, nodes),) = held
        together.append(state.offer.reclaim_share ** (nodes - 1))  # given that it takes one
    all_per_h = max(together) * hits_per_h
    return Losses(some_per_h=hits_per_h - all_per_h, all_per_h=all_per_h)


def intervals(pace: Pace, losses: Losses, *, speedup: float = 1.0, copies: bool = False) -> Every:
    """Wall seconds between two copies in each tier that slow training by at most 2 % and lose the least.

    `copies`: the controller copies to a bucket what it has. Cost: a few hundred small steps, once for equal questions.
    """
    rounded = Pace(**{name: _rounded(value) for name, value in asdict(pace).items()})
    return _intervals(rounded, losses, speedup, copies=copies)


@lru_cache(maxsize=1024)
def _intervals(pace: Pace, losses: Losses, speedup: float, *, copies: bool) -> Every:
    write_s = max(pace.write_s, FIRST_WRITE_S)
    near_s = cost_of_write(pace.blocked_s, write_s) + cost_of_write(0.0, pace.carry_s)
    near_per_h = losses.all_per_h + losses.fails_per_h
    ladder = Ladder(
        hits_per_s=np.array([[losses.some_per_h], [near_per_h], [losses.anchor_per_h if copies else 0.0]])
        * (speedup / SECONDS_PER_H),
        cost_s=np.array([[0.0], [near_s], [0.0]]),
        lag_s=np.array([[0.0], [write_s + pace.carry_s], [pace.copy_s]]),
        least_s=np.array([[0.0], [max(write_s, pace.carry_s)], [max(pace.copy_s, FIRST_WRITE_S) / BUSY]]),
    )
    found = best_tiering(ladder, most_slowdown=MOST_SLOWDOWN, skips=False)
    _, worker_s, bucket_s = found.every_s_KC[:, 0].tolist()
    worker_s = max(min(worker_s, LONGEST_S), near_s / MOST_SLOWDOWN)
    if math.isfinite(bucket_s):  # a multiple of what it is made of
        bucket_s = worker_s * max(1, round(bucket_s / worker_s))
    return Every(worker_s=worker_s, bucket_s=bucket_s, slower=near_s / worker_s)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
