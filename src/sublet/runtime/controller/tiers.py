"""What each tier of a job's checkpoints has cost it, and what it has saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sublet.runtime.controller.bill import Bill
from sublet.wire import messages as wire
from sublet.wire.saves import ANCHOR, BUCKET, DISK

__all__ = ["OUTWARD", "Tally", "Tiers"]

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
        """What `facts` gave."""
        found = cls()
        found.tallies = {tier: Tally(**tally) for tier, tally in facts.items() if tier in OUTWARD}
        return found
