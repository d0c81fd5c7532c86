"""What goes wrong in a soak, and how often: drawn from a seed, done to real processes.

Losses with notice and prices are the market's (controller.py); here is what no cloud tells of.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from tests.soak.world import SoakRig

__all__ = ["EVERY_S", "Faults"]

EVERY_S = {  # wall, on average
    "kill a worker": 12.0,
    "kill a node": 45.0,
    "hang a worker": 60.0,
    "kill the controller": 100.0,
    "stall the controller": 120.0,
    "pause a job": 45.0,
    "cancel a job": 120.0,
}
LONGEST_STALL_S = 4.0


class Faults:
    """Does what is due. `spared` is the node of the long job; `calm_controller` from when on one lives to the end."""

    def __init__(self, world: SoakRig, rng: random.Random, *, calm_controller_s: float) -> None:
        self.done: Counter[str] = Counter()
        self.idle: Counter[str] = Counter()  # nothing was there to be hit
        self._world, self._rng, self._calm_s = world, rng, calm_controller_s
        self._due_s = {kind: rng.expovariate(1.0 / every_s) for kind, every_s in EVERY_S.items()}
        self._later: list[tuple[float, Callable[[], None]]] = []

    def tick(self, now_s: float) -> None:
        """All that is due by now."""
        for at_s, call in [each for each in self._later if each[0] <= now_s]:
            self._later.remove((at_s, call))
            call()
        for kind, at_s in self._due_s.items():
            if at_s <= now_s:
                self._due_s[kind] = now_s + self._rng.expovariate(1.0 / EVERY_S[kind])
                if kind.endswith("the controller") and now_s > self._calm_s:
                    continue
                hit = getattr(self, f"_{kind.replace(' ', '_')}")(now_s)
                (self.done if hit else self.idle)[kind] += 1

    def end(self) -> None:
        """What was stopped goes on."""
        for _, call in self._later:
            call()
        self._later.clear()

    # ------------------------------------------------------------------ to processes

    def _kill_a_worker(self, _now_s: float) -> bool:
        return self._signal(self._world.victims(), signal.SIGKILL)

    def _kill_a_node(self, _now_s: float) -> bool:
        spared = self._world.spared()
        return self._signal([pid for pid in self._world.agents() if pid != spared], signal.SIGKILL)

    def _hang_a_worker(self, _now_s: float) -> bool:
        """For ever: somebody has to notice."""
        return self._signal(self._world.victims(), signal.SIGSTOP)

    def _kill_the_controller(self, _now_s: float) -> bool:
        if self._world.dead or self._world.stalled:
            return False
        self._world.kill()
        return True

    def _stall_the_controller(self, now_s: float) -> bool:
        process = self._world.process
        if self._world.dead or self._world.stalled or process is None:
            return False

        began_s = time.monotonic()

        def goes_on() -> None:
            process.send_signal(signal.SIGCONT)
            self._world.stalled = False
            self._world.was_away(time.monotonic() - began_s)

        process.send_signal(signal.SIGSTOP)
        self._world.stalled = True
        self._later.append((now_s + self._rng.uniform(0.5, LONGEST_STALL_S), goes_on))
        return True

    def _signal(self, pids: list[int], number: int) -> bool:
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._rng.choice(sorted(pids)), number)
        return True

    # ------------------------------------------------------------------ to jobs

    def _pause_a_job(self, now_s: float) -> bool:
        job_id = self._world.draw_job(self._rng)
        if not job_id or not self._world.asked(f"jobs/{job_id}/pause"):
            return False
        self._later.append((now_s + self._rng.uniform(1.0, 10.0), lambda: self._world.wanted_again.add(job_id)))
        return True

    def _cancel_a_job(self, _now_s: float) -> bool:
        job_id = self._world.draw_job(self._rng)
        if not job_id or not self._world.asked(f"jobs/{job_id}/cancel"):
            return False
        self._world.cancelled.add(job_id)
        return True
