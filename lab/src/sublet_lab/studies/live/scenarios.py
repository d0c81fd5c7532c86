"""The predicted cases: jobs of one script, their arrivals, and the market meanwhile.

All of it is known to both worlds beforehand: it is the question. Times are cloud time from the first submission.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sublet
from sublet.errors import MissingData
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings

SPEEDUP = 30.0  # cloud seconds in one of the wall
NODES = 4
BATCH = 16
BURN_USD_PER_H = 0.70  # four spot nodes
NAME = "paced"  # of every job: a profile is found by name and script
SCRIPT = "train_paced.py"
BOOT_S = 15.0  # that a node takes here, beside what starting a process really takes
CHECKPOINT_S = 30.0  # between two of a job
LONG_S = 100_000.0  # a trace must have an end


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job: when it comes, how many samples it has, and how many workers it may have."""

    at_s: float
    samples: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A question: how long will it take, and what will it cost?"""

    name: str
    arrivals: tuple[Arrival, ...]
    supply: tuple[tuple[float, int], ...] = ((0.0, NODES),)  # (from when on, spot nodes that can be had)
    notice_s: float = 0.0

    def shorter(self, part: float) -> Scenario:
        """The same with less work, sooner."""
        return Scenario(
            name=self.name,
            arrivals=tuple(Arrival(a.at_s * part, max(16, round(a.samples * part)), a.most) for a in self.arrivals),
            supply=tuple((at_s * part, nodes) for at_s, nodes in self.supply),
            notice_s=self.notice_s,
        )

    def settings(self, state_dir: Path) -> Settings:
        """A box for it; its market is a file in the state directory."""
        state_dir.mkdir(parents=True, exist_ok=True)
        market = []
        if len(self.supply) > 1:
            rows = [*self.supply, (LONG_S, self.supply[-1][1])]
            market = [state_dir / "market.csv"]
            market[0].write_text("t_s,zone,available\n" + "".join(f"{at_s:g},box,{nodes}\n" for at_s, nodes in rows))
        return Settings(
            state_dir=str(state_dir),
            hurry=True,
            burn_usd_per_h=BURN_USD_PER_H,
            speedup=SPEEDUP,
            market=tuple(map(str, market)),
            polarity="availability",
            notice_s=self.notice_s,
            most_nodes=NODES,
            boot_s=BOOT_S,
            lease_s=15.0,
        )

    def jobs(self, restart_s: float) -> list[tuple[float, JobSpec]]:
        """As they are submitted; `restart_s` is the pause at a change as it was measured beforehand."""
        return [(each.at_s, paced_job(each.samples, each.most, restart_s)) for each in self.arrivals]


def paced_job(samples: int, most: int, restart_s: float = 1.0) -> JobSpec:
    """A job of the paced script."""
    folder = Path(sublet.__file__).parents[2] / "examples"
    if not (folder / SCRIPT).exists():
        raise MissingData(folder / SCRIPT, hint="run the study from a clone of the repository")
    return JobSpec(
        name=NAME,
        argv=(sys.executable, str(folder / SCRIPT), "--samples", str(samples), "--batch", str(BATCH)),
        cwd=str(folder),
        max_workers=most,
        work=float(samples),
        restart_s=restart_s,
        checkpoint_every_s=CHECKPOINT_S,
    )


def _burst() -> tuple[Arrival, ...]:
    return (Arrival(0.0, 1_600, 4), *(Arrival(120.0, 320, 2) for _ in range(4)))


_TWO = (Arrival(0.0, 1_600, 4), Arrival(0.0, 960, 2))
_FALL = ((0.0, NODES), (180.0, 2), (420.0, NODES))

SCENARIOS: Sequence[Scenario] = (
    Scenario(name="steady", arrivals=_TWO),
    Scenario(name="losses with notice", arrivals=_TWO, supply=_FALL, notice_s=60.0),
    Scenario(name="losses without notice", arrivals=_TWO, supply=_FALL),
    Scenario(name="burst of jobs", arrivals=_burst()),
)
