"""The rig of a soak: a real controller on the local provider, and all that is known about it from outside."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sublet.errors import SubletError
from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from tests.chaos.rig import ENDED, Rig
from tests.soak.machine import Life, Sample, lives_from, sample
from tests.soak.work import Work

__all__ = ["MARKET_ENDS", "SoakRig"]

MARKET_ENDS = "market-ends-s"  # a file: when the market (cloud seconds) takes nothing more, and sells what is asked for


class SoakRig(Rig):
    """Watched every second; asked without patience, because it may be dead."""

    program = "tests.soak.controller"

    def __init__(self, folder: Path, *, market_s: float = 0.0, **settings: Any) -> None:
        super().__init__(folder, **settings)
        (self.state.path / MARKET_ENDS).write_text(f"{market_s}", encoding="ascii")
        self.lives: dict[str, Life] = {}  # every node that was ever seen
        self.controllers: list[list[Sample]] = []  # of each, one after the other
        self.cancelled: set[str] = set()
        self.wanted_again: set[str] = set()  # paused, and their owner wants them back
        self.long_id = ""
        self.stalled = False  # it would not answer, and asking waits
        self.store_sizes: list[tuple[float, int]] = []  # (wall s, bytes)
        self.longest_wal = 0  # bytes of SQLite's own log, as seen
        self.longest_away_s = 0.0  # wall, without a controller that could do anything
        self._died_s: float | None = None
        self._nodes: list[dict[str, Any]] = []

    # ------------------------------------------------------------------ asking

    def ask(self, what: str, **query: Any) -> dict[str, Any] | None:
        """None while nobody answers."""
        return None if self.stalled else super().ask(what, **query)

    def asked(self, path: str, body: dict[str, Any] | None = None, key: str = "") -> dict[str, Any] | None:
        """One try; None where nobody answers, or it is refused."""
        if self.dead or self.stalled:
            return None
        try:
            return self._client().post(f"/v1/{path}", body, key=key or path)
        except SubletError:
            return None

    def bring(self, work: Work) -> bool:
        """Whether it was taken; under its key it is one job, however often it is brought."""
        spec = JobSpec(**{"cwd": str(self.state.path), **work.facts})
        answer = self.asked("jobs", {"job": spec_to_json(spec, secrets=True)}, work.key)
        work.job_id = "" if answer is None else str(answer["job_id"])
        return answer is not None

    def bring_back(self) -> None:
        """Resume what was paused; a refusal means that it was not, or has ended."""
        for job_id in sorted(self.wanted_again):
            phase = self.job(job_id).get("phase")
            if phase in ("paused", "out-of-budget") and self.asked(
                f"jobs/{job_id}/resume", key=f"{job_id}{self.deaths}"
            ):
                continue
            if phase is not None and phase != "pausing":
                self.wanted_again.discard(job_id)

    def draw_job(self, rng: random.Random) -> str:
        """One that has not ended; never the long one. "" = none."""
        views = (self.ask("jobs") or {}).get("jobs", [])
        open_ = [view["id"] for view in views if view["phase"] not in ENDED and view["id"] != self.long_id]
        return rng.choice(open_) if open_ else ""

    # ------------------------------------------------------------------ watching

    def spared(self) -> int:
        """The agent of the long job's node; 0 = it has none."""
        self._nodes = (self.ask("nodes") or {}).get("nodes", self._nodes)
        for node in self._nodes:
            if self.long_id in node["job_ids"] and node["id"] in self.lives:
                return self.lives[node["id"]].pid
        return 0

    def victims(self) -> list[int]:
        """Workers of all jobs but the long one."""
        spared = self.spared()
        return [pid for pid in self.workers() if not spared or _parent_of(pid) != spared]

    def look(self, *, closely: bool) -> int:
        """See which nodes live, and `closely` how large everybody is; how many nodes there are."""
        alive = lives_from(self.state.path / "nodes", self.lives)
        if closely:
            for life in alive:
                if (seen := sample(life.pid)) is not None:
                    life.samples.append(seen)
            if not self.dead and self.process is not None and (seen := sample(self.process.pid)) is not None:
                self.controllers[-1].append(seen)
        return len(alive)

    def start(self, point: str = "none") -> None:
        """As above, with a list of its own."""
        self.controllers.append([])
        super().start(point)
        if self._died_s is not None:
            self.was_away(time.monotonic() - self._died_s)

    def kill(self) -> None:
        """As above; from now on nobody is there."""
        self._died_s = time.monotonic()
        super().kill()

    def was_away(self, away_s: float) -> None:
        """No controller could do anything for so long."""
        self.longest_away_s = max(self.longest_away_s, away_s)

    def store_bytes(self) -> int:
        """Of the database itself: its pages in use, wherever SQLite has them just now."""
        wal = self.state.path / "log.sqlite-wal"
        self.longest_wal = max(self.longest_wal, wal.stat().st_size if wal.exists() else 0)
        with closing(sqlite3.connect(f"file:{self.state.path / 'log.sqlite'}?mode=ro", uri=True)) as store:
            size, pages, free = (
                store.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
            )
        return int(size * (pages - free))


def _parent_of(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0
