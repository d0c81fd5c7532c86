"""A controller in Python, for notebooks and programs: `connect()`, then one method for each question and each wish.

    from sublet.client import connect

    fleet = connect()                            # that of `sublet up`, or of $SUBLET_SERVER and $SUBLET_TOKEN
    job = fleet.submit("train.yaml")["job_id"]
    ended = fleet.wait(job)
    ended["phase"], ended["usd_total"]

Answers are the dictionaries of the HTTP API with the types of `sublet.runtime.controller_api.views`, where every field
has its unit: `pandas.DataFrame(fleet.jobs())` is a table. Refusals are raised as `sublet.errors.SubletError`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sublet.api.client import Client, segment
from sublet.api.client import connect as open_line
from sublet.api.what_if.views import WhatIfView
from sublet.domain.quantity import positive
from sublet.errors import InvalidValue
from sublet.machine.wall import WALL
from sublet.runtime.controller_api.budgets import PurseRow
from sublet.runtime.controller_api.history import PriceView
from sublet.runtime.controller_api.protocol import Submitted
from sublet.runtime.controller_api.views import (
    ENDED,
    RESTING,
    BudgetView,
    CostView,
    DryRunView,
    EventView,
    ExplainView,
    HealthView,
    JobPhase,
    JobView,
    NodeView,
)
from sublet.runtime.controller_host.troubles import is_anchor
from sublet.runtime.jobs.command import with_python
from sublet.runtime.jobs.file import job_from_file
from sublet.runtime.jobs.spec import JobSpec, spec_to_json
from sublet.runtime.settings import default_state_dir

__all__ = ["Fleet", "Purses", "Sent", "connect"]

PACK_S = 60.0  # for an answer to a submission: the controller may have to pack a large directory first
PAGE = 1000  # events that are asked for at once
FUTURES_S = 120.0  # for an answer to "what if": it takes half a minute, and others may have asked before
POLL_S = 0.5  # between two looks while waiting


class Sent(Submitted, total=False):
    """The answer to a submission, and what was sent for it."""

    files_sent_bytes: int  # only where the controller does not see our files


def connect(state_dir: Path | str | None = None) -> Fleet:
    """The controller of `state_dir`, else that of `$SUBLET_SERVER` and `$SUBLET_TOKEN`, else that of `sublet up`."""
    return Fleet(open_line(None if state_dir is None else Path(state_dir)))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The jobs, nodes and dollars of one controller. `line` is the way to it: `line.get("/v1/...")` asks anything."""

    line: Client

    # ------------------------------------------------------------------ jobs come and go

    def submit(self, job: JobSpec | Path | str, *, key: str = "") -> Sent:
        """Hand in a job: the path of a job file, or a `JobSpec`. Again with the same `key`, it is the same job."""
        spec, sent = _spec_of(job, away=self.away), {}
        if self.away:
            from sublet.api.sending import send_files

            spec, sent["files_sent_bytes"] = send_files(self.line, spec, default_state_dir())
        body = {"job": spec_to_json(spec, secrets=True)}
        return cast(Sent, replace(self.line, timeout_s=PACK_S).post("/v1/jobs", body, key=key) | sent)

    def dry_run(self, job: JobSpec | Path | str) -> DryRunView:
        """The plan for it now; nothing is kept."""
        spec = _spec_of(job, away=self.away)
        if self.away:
            from sublet.api.sending import check_files

            spec = check_files(spec, default_state_dir())
        return cast(DryRunView, self.line.post("/v1/dry-run", {"job": spec_to_json(spec, secrets=True)}))

    def cancel(self, job: str, *, now: bool = False) -> JobView:
        """End it: with a last checkpoint, or `now` without."""
        return _tell(self.line, job, "cancel", {"now": now})

    def pause(self, job: str) -> JobView:
        """Save it and take its workers away; it costs nothing until it is resumed."""
        return _tell(self.line, job, "pause", {})

    def resume(self, job: str, *, start_over: bool = False, secrets: Mapping[str, str] | None = None) -> JobView:
        """Let it go on; with `start_over` from step 0 where all its checkpoints are damaged."""
        return _tell(self.line, job, "resume", {"start_over": start_over, "secrets": dict(secrets or {})})

    def scale(self, job: str, low: int, high: int) -> JobView:
        """From now on between `low` and `high` workers."""
        return _tell(self.line, job, "scale", {"low": low, "high": high})

    # ------------------------------------------------------------------ what there is

    def jobs(self) -> Sequence[JobView]:
        """All jobs that are remembered, in order of submission."""
        return cast(Sequence[JobView], self.line.get("/v1/jobs")["jobs"])

    def job(self, job: str) -> JobView:
        """One job, by its id, its name, or the beginning of its id."""
        return cast(JobView, self.line.get(f"/v1/jobs/{segment(job)}"))

    def wait(
        self, job: str, *, until: Collection[JobPhase | str] = ENDED | RESTING, timeout_s: float = math.inf
    ) -> JobView:
        """The job once it is in one of these phases; by default when it has ended or rests. Else TimeoutError."""
        if unknown := {str(phase) for phase in until} - {str(phase) for phase in JobPhase}:
            raise InvalidValue("until", min(unknown), f"of {', '.join(JobPhase)}")
        end_s = WALL.monotonic() + timeout_s
        while (found := self.job(job))["phase"] not in until:
            if WALL.monotonic() >= end_s:
                raise TimeoutError(f"{found['id']} is still {found['phase']} after {timeout_s:g} s: {found['reason']}")
            time.sleep(min(POLL_S, max(0.0, end_s - WALL.monotonic())))
        return found

    def explain(self, job: str) -> ExplainView:
        """Why it has this worker count, and what else was weighed."""
        return cast(ExplainView, self.line.get(f"/v1/jobs/{segment(job)}/explain"))

    def losses(self, job: str) -> list[tuple[int, float]]:
        """(step, loss) since its controller began, some hundred at most."""
        return [(step, loss) for step, loss in self.line.get(f"/v1/jobs/{segment(job)}/losses")["losses"]]

    def log(self, job: str, *, rank: int = 0, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines that rank `rank` printed, through all resizes; with `follow` until the job ends."""
        rest = b""
        for chunk in self.line.stream(f"/v1/jobs/{segment(job)}/log", rank=rank, tail=tail, follow=follow):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", errors="replace") for line in whole)
        if rest:
            yield rest.decode("utf-8", errors="replace")

    def events(self, job: str = "", *, after: int = 0) -> list[EventView]:
        """The history with `seq` above `after`, of one job or of everything, oldest first."""
        found: list[EventView] = []
        while True:
            page: list[EventView] = self.line.get("/v1/events", job=job, after=after, limit=PAGE)["events"]
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1]["seq"]

    def follow(self, job: str = "", *, after: int = 0, every_s: float = POLL_S) -> Iterator[EventView]:
        """Events after `after`, and new ones as they come; without an end."""
        positive("every_s", every_s)
        while True:
            found = self.events(job, after=after)
            yield from found
            after = found[-1]["seq"] if found else after
            time.sleep(every_s)

    def nodes(self) -> Sequence[NodeView]:
        """Every node that is not gone, and those that went lately."""
        return cast(Sequence[NodeView], self.line.get("/v1/nodes")["nodes"])

    # ------------------------------------------------------------------ money

    def cost(self, job: str = "") -> CostView:
        """The bill of one job, or of everything."""
        return cast(CostView, self.line.get("/v1/cost", job=job))

    def prices(self) -> Sequence[PriceView]:
        """Prices of a node of each offer over time."""
        return cast(Sequence[PriceView], self.line.get("/v1/prices")["prices"])

    def budget(self) -> BudgetView:
        """The limit and the spending."""
        return cast(BudgetView, self.line.get("/v1/budget"))

    def set_budget(
        self,
        *,
        burn_limit_usd_per_h: float | None = None,
        average_usd_per_h: float | None = None,
        purse_usd: float | None = None,
    ) -> BudgetView:
        """Change what is given; None leaves a limit as it is."""
        given = {
            "burn_limit_usd_per_h": burn_limit_usd_per_h,
            "average_usd_per_h": average_usd_per_h,
            "purse_usd": purse_usd,
        }
        body = {name: float(value) for name, value in given.items() if value is not None}
        return cast(BudgetView, self.line.post("/v1/budget", body))

    @property
    def budgets(self) -> Purses:
        """Budgets of the organisation, teams, users and jobs: `fleet.budgets.list()`, `fleet.budgets.set(...)`."""
        return Purses(self.line)

    def top_up(self, usd: float, *, job: str = "") -> BudgetView | JobView:
        """Put more into the budget of all, or into that of one job."""
        if job:
            return _tell(self.line, job, "top-up", {"usd": float(usd)})
        return cast(BudgetView, self.line.post("/v1/budget/top-up", {"usd": float(usd)}))

    def what_if(
        self,
        *,
        hours: float = 24.0,
        futures: int = 20,
        more_usd_per_h: float = 0.0,
        more_usd: float = 0.0,
        market: str = "",
        seed: int = 0,
    ) -> WhatIfView:
        """Futures of all that runs, over recorded days of a market: as it is, and with more money."""
        body = {"hours": float(hours), "futures": futures, "market": market, "seed": seed}
        body |= {"more_usd_per_h": float(more_usd_per_h), "more_usd": float(more_usd)}
        return cast(WhatIfView, replace(self.line, timeout_s=FUTURES_S).post("/v1/what-if", body))

    # ------------------------------------------------------------------ the controller itself

    def health(self) -> HealthView:
        """Whether it is alive and well."""
        return cast(HealthView, self.line.get("/v1/health"))

    def shutdown(self, *, end_jobs: bool = False) -> None:
        """Save and stop every job, give everything back, and end it; with `end_jobs`, cancel them too."""
        self.line.post("/v1/shutdown", {"end_jobs": end_jobs})

    @property
    def away(self) -> bool:
        """It does not see our files; a client on the controller host brings files as others do."""
        return self.line.remote or is_anchor(default_state_dir())


@dataclass(frozen=True, slots=True)
class Purses:
    """The tree of budgets of one controller: what each may spend, and has spent."""

    line: Client

    def list(self) -> Sequence[PurseRow]:
        """Each after what it is part of; of a user's token as much as is theirs."""
        return cast(Sequence[PurseRow], self.line.get("/v1/budgets")["purses"])

    def set(
        self, level: str, name: str = "", *, amount_usd: float | None, period: str | None = None
    ) -> Sequence[PurseRow]:
        """Set the limit of an `org`, `team`, `user` or `job`, in all or per `day`, `week`, `month`; None = no limit."""
        amount = None if amount_usd is None else float(amount_usd)
        body = {"level": level, "name": name, "amount_usd": amount, "period": period}
        return cast(Sequence[PurseRow], self.line.post("/v1/budgets", body)["purses"])


def _tell(line: Client, job: str, verb: str, body: Mapping[str, Any]) -> JobView:
    return cast(JobView, line.post(f"/v1/jobs/{segment(job)}/{verb}", body))


def _spec_of(job: JobSpec | Path | str, *, away: bool) -> JobSpec:
    """With the Python that is active here, where its nodes may see it."""
    spec = job if isinstance(job, JobSpec) else job_from_file(Path(job))
    return spec if away else with_python(spec)
