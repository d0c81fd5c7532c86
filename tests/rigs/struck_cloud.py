"""A controller over a cloud that does what it is told at once: `python -m tests.rigs.struck_cloud STATE_DIR POINT`.

A line in the file `strike` of the state directory, and SIGUSR1: `notice:NODE`, `kill:NODE`, or `supply:COUNT` of spot;
several nodes behind commas. An end that was announced comes by a `kill`.
With the policy `by-the-book` a job that may be cut as it likes gets the grid that BOOK names for its GPUs.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass

from sublet.domain.events import AvailabilityChanged
from sublet.domain.shape import Grid, Shape
from sublet.planning.turns import serve_in_turn
from sublet.runtime.controller_api import assemble
from sublet.runtime.providers.local import build as local_build
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.providers.local.provider import LocalProvider
from tests.chaos import controller
from tests.chaos.rig import Rig

BOOK = {1: Grid(1), 2: Grid(1, 2), 3: Grid(1, 3), 4: Grid(2, 2), 5: Grid(2, 2), 6: Grid(2, 3)}
SPOT = "local:spot"


class StruckCloud(LocalProvider):
    async def open(self, tell):
        await super().open(tell)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._obey)

    def _obey(self):
        order = self._state_dir / "strike"
        verb, _, what = order.read_text(encoding="ascii").partition(":")
        if verb == "supply":
            self._resupply(AvailabilityChanged(self._clock.now_s(), SPOT, int(what)))
        else:
            self._strike(Strike(at_s=0.0, verb=verb, nodes=tuple(what.split(","))))
        order.unlink()


@dataclass(frozen=True, slots=True)
class ByTheBook:
    def decide(self, snapshot):
        return serve_in_turn(snapshot, lambda state, pool, gpus: Shape(pool.name, gpus, grid=BOOK[gpus])).plan()


class Struck(Rig):
    """Use it as `with rig(Struck, **settings) as world`."""

    program = "tests.rigs.struck_cloud"

    def strike(self, what):
        order = self.state.path / "strike"
        order.write_text(what, encoding="ascii")
        os.kill(self.process.pid, signal.SIGUSR1)
        self.until(lambda: not order.exists(), f"the cloud obeys: {what}")

    def events(self, job_id, kind):
        return [
            each["text"]
            for each in (self.ask("events", job=job_id) or {"events": ()})["events"]
            if each["kind"] == kind
        ]

    def until_grid(self, job_id, copies, parts, spares=0):
        """It trains in this grid, and makes steps."""

        def so():
            view = self.job(job_id)
            before = seen.setdefault(view.get("generation"), view.get("step"))
            return (
                view.get("phase") == "running"
                and view.get("grid") == f"{copies} x {parts}"
                and view.get("spares") == spares
                and view["step"] > before + 1
            )

        seen = {}
        self.until(so, f"{job_id} trains as {copies} x {parts} with {spares} spare", 200.0)


def main():
    local_build.LocalProvider = StruckCloud
    named = assemble.policy_from
    assemble.policy_from = lambda settings: ByTheBook() if settings.policy == "by-the-book" else named(settings)
    controller.main()


if __name__ == "__main__":
    main()
