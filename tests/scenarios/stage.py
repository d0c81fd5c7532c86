"""What scenarios on real processes stand on: a controller on the local provider, and jobs that cost next to nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from sublet.runtime.jobs.spec import Retries
from tests.chaos.rig import Rig

__all__ = ["PATIENT", "Stage", "waited_s"]

RIGS = Path(__file__).parents[1] / "rigs"
TALKER, SCRIPT = RIGS / "talker.py", RIGS / "counting_script.py"
PATIENT = Retries(preemption=None, infra=None, user=None)


class Stage(Rig):
    """Nodes import no torch. Use it as `with rig(Stage, **settings) as stage`."""

    light = True

    def talk(self, *, steps: int = 200, step_ms: float = 20.0, **facts: Any) -> str:
        """A job that says what a session of the SDK says."""
        argv = (sys.executable, str(TALKER), str(steps), str(step_ms))
        return self.submit(**{"argv": argv, "retries": PATIENT, "checkpoint_every_s": 30.0, **facts})

    def count(self, *, steps: int = 50, step_ms: float = 20.0, ends_with: int = 0, **facts: Any) -> str:
        """A script without the SDK."""
        argv = (sys.executable, str(SCRIPT), str(steps), str(step_ms), str(ends_with))
        return self.submit(**{"argv": argv, "sdk": False, "max_workers": 1, "grace_s": 2.0, **facts})

    def until_width(self, job_id: str, workers: int) -> dict[str, Any]:
        """It trains with so many."""

        def may_be_several() -> bool:
            view = self.job(job_id)
            return view.get("phase") == "running" and view["workers"] == workers and view["step"] > 0

        self.until(may_be_several, f"{job_id} trains with {workers}")
        return self.job(job_id)

    def told(self, **query: Any) -> list[dict[str, Any]]:
        """The history."""
        return list((self.ask("events", **query) or {}).get("events", []))

    def saved_step(self, job_id: str) -> int:
        """What its checkpoint on disk says; -1 = there is none."""
        with contextlib.suppress(OSError, ValueError):
            path = self.state.path / "jobs" / job_id / "checkpoints" / "step"
            return int(path.read_text(encoding="ascii"))
        return -1

    def signal(self, pid: int, number: int) -> None:
        """If it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def waited_s(stage: Rig, condition: Any, what: str) -> float:
    """How long it took."""
    began_s = time.monotonic()
    stage.until(condition, what)
    return time.monotonic() - began_s
