"""What a soak is asked to do: small jobs of several kinds, and what must have become of each at the end."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.runtime.jobs.bounds import MarketChoice
from sublet.runtime.jobs.spec import Retries

__all__ = ["Work", "draw_work", "the_long_one"]

RIGS = Path(__file__).parents[1] / "rigs"
TALKER, SCRIPT = str(RIGS / "talker.py"), str(RIGS / "counting_script.py")
POOR_USD, AMPLE_USD = 0.05, 1.0  # budgets of jobs: one pays for a fifth of the work, or less, the other for all of it
PATIENT = Retries(preemption=None, infra=None, user=None)  # whatever is done to it, it comes to its end


@dataclass(slots=True)
class Work:
    """One job. `ends` are the phases that it may end in."""

    key: str
    at_s: float  # wall, from the start
    steps: int
    facts: dict[str, Any]
    ends: tuple[str, ...] = ("finished",)
    job_id: str = ""

    @property
    def is_poor(self) -> bool:
        """Its own budget does not pay for its work: it stops there, and nobody tops it up."""
        return "out-of-budget" in self.ends


def draw_work(rng: random.Random, jobs: int, span_s: float) -> list[Work]:
    """So many over this time, the first at once; one in twelve is of a user's making and fails.

    One in four has a budget of its own that suffices, one in twenty-five one that does not.
    """
    drawn = []
    times_s = sorted([0.0, *(rng.uniform(0.0, span_s) for _ in range(jobs - 1))])
    for number, at_s in enumerate(times_s):
        steps, step_ms = rng.randint(20, 120), rng.uniform(50.0, 200.0)
        facts: dict[str, Any] = {"name": f"job-{number}", "min_workers": 1, "hang_s": 8.0, "retries": PATIENT}
        kind = rng.random()
        if kind < 0.55:
            facts |= {
                "argv": (sys.executable, TALKER, str(steps), f"{step_ms:.0f}"),
                "max_workers": rng.choice((1, 2, 3)),
            }
            facts |= {"checkpoint_every_s": 30.0}
        else:
            facts |= {"argv": (sys.executable, SCRIPT, str(steps), f"{step_ms:.0f}"), "max_workers": 1, "sdk": False}
            facts |= {"grace_s": 2.0}
        work = Work(f"soak-{number}", at_s, steps, facts)
        if kind >= 0.92:
            work.facts |= {"argv": (sys.executable, SCRIPT, "3", "50", "1"), "retries": Retries(infra=None, user=1)}
            work.ends = ("failed",)
        elif kind < 0.04:
            work.steps, work.ends = 2000, ("out-of-budget",)
            work.facts |= {"argv": (sys.executable, TALKER, "2000", "200"), "max_workers": 1, "purse_usd": POOR_USD}
        elif number % 4 == 0:
            work.facts |= {"purse_usd": AMPLE_USD}
        drawn.append(work)
    return drawn


def the_long_one(span_s: float) -> Work:
    """One that is there all the time on a node that nobody takes: its agent is the old one whose memory is watched."""
    steps = int(0.8 * span_s / 0.25)  # a restart of the controller may cost it some
    facts = {
        "name": "long",
        "argv": (sys.executable, TALKER, str(steps), "250"),
        "max_workers": 1,
        "market": MarketChoice.ON_DEMAND,
        "retries": PATIENT,
        "checkpoint_every_s": 60.0,
    }
    return Work("soak-long", 0.0, steps, facts)
