"""Everything that can be asked of a controller, as a protocol. HTTP is one way to reach it, a test another.

All calls run on the controller's own event loop, return at once what is known, and change nothing unless they say so.
`by` is the name of the user, for the history. `job_id` is always a whole id; `directory` resolves names and prefixes
before. What cannot be done is raised as an error of the tree: InvalidValue, Infeasible, OutOfBudget, NotNow (a verb
that does not fit the job's phase), NoSuchJob.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict

from sublet.errors import BadInput
from sublet.runtime.controller_api.budgets import Budgets
from sublet.runtime.controller_api.directory import Directory
from sublet.runtime.controller_api.history import Curves, Prices
from sublet.runtime.controller_api.tokens import Tokens
from sublet.runtime.controller_api.trials import Trials
from sublet.runtime.controller_api.views import (
    BudgetView,
    CostView,
    DryRunView,
    EventView,
    ExpectedView,
    ExplainView,
    HealthView,
    JobLog,
    JobView,
    MetricsView,
    NodeView,
)
from sublet.runtime.file_sync.content import Content, Fetch
from sublet.runtime.jobs.spec import JobSpec


class Parts:
    """Over the store from which nodes get theirs. Both wait for the disk, in a thread."""

    def __init__(self, content: Content) -> None:
        self._content = content

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        """Those that are not here."""
        return await asyncio.to_thread(self._content.lacks, digests)

    async def whole(self, root: str) -> bool:
        """Whether all that a job is made of is here: its manifest, and every part that is named there."""
        return await asyncio.to_thread(lambda: Fetch(self._content, root).here)

    async def take(self, parts: Mapping[str, bytes]) -> None:
        """Kept when it returns; BadInput for one that is not what its name says."""
        for digest, packed in parts.items():
            try:
                if not await asyncio.to_thread(self._content.take, digest, packed):
                    raise BadInput(f"part {digest}", "is something else than its name says", hint="send it again")
            except OSError as error:
                raise BadInput(
                    self._content.folder, f"cannot be written ({error.strerror})", hint="make room"
                ) from error


class Submitted(TypedDict):
    """The answer to a submission."""

    job_id: str
    name: str
    expected: NotRequired[ExpectedView | None]  # None = the policy weighs no money
    notes: NotRequired[list[str]]  # what its file says and the job has otherwise, or need not have
    warning: NotRequired[str]  # what nobody can know of it now, such as whether its deadline can be met


class Api(Protocol):
    """The interface that `sublet.api` serves: `controller_api.api.ControllerApi`, or a stand-in of a test."""

    directory: Directory  # which jobs there are, and which one is meant
    prices: Prices  # of what is on offer, over time
    tokens: Tokens  # keys for others
    curves: Curves  # of losses
    trials: Trials  # what would be, were something otherwise
    budgets: Budgets  # of teams, users and jobs
    parts: Parts  # of files that their submitter has, and the controller does not

    async def submit(self, spec: JobSpec, *, key: str = "", by: str = "") -> Submitted:
        """Take a job; durable when it returns. The same `key` again gives the same job, after a restart too."""
        ...

    async def dry_run(self, spec: JobSpec) -> DryRunView:
        """The outcome if it were submitted now; nothing is kept."""
        ...

    async def jobs(self) -> Sequence[JobView]:
        """All jobs that are remembered, in order of submission."""
        ...

    async def job(self, job_id: str) -> JobView:
        """One job."""
        ...

    async def cancel(self, job_id: str, *, now: bool = False, by: str = "") -> JobView:
        """End it: with a last checkpoint, or `now` without. A job that has ended stays as it is."""
        ...

    async def pause(self, job_id: str, *, by: str = "") -> JobView:
        """Save it and take its workers away until `resume`; costs nothing meanwhile."""
        ...

    async def resume(
        self, job_id: str, *, start_over: bool = False, secrets: Mapping[str, str] | None = None, by: str = ""
    ) -> JobView:
        """Let a job go on that was paused, stopped at the limit of the budget, or failed by its retry limit.

        One that is held because all its checkpoints are damaged looks again; with `start_over` it begins at step 0.
        One that lacks its secrets is given them by name.
        """
        ...

    async def top_up_job(self, job_id: str, usd: float, *, by: str = "") -> JobView:
        """Let a job with a budget of its own spend so much more; one that was held for want of money goes on."""
        ...

    async def scale(self, job_id: str, *, low: int, high: int, by: str = "") -> JobView:
        """From now on between `low` and `high` workers."""
        ...

    async def events(
        self, job_id: str | None = None, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> Sequence[EventView]:
        """History with `seq` above `after`, oldest first; of more than `limit` the first, or the `newest`."""
        ...

    async def log_parts(self, job_id: str, *, rank: int | None = 0, worker_id: str = "") -> JobLog:
        """The output of a rank, or of one worker, or (rank None) of all, as parts of files that may not exist yet."""
        ...

    async def cost(self, job_id: str | None = None) -> CostView:
        """The bill of one job, or of everything."""
        ...

    async def explain(self, job_id: str) -> ExplainView:
        """Why it has this worker count, and what else was weighed."""
        ...

    async def budget(self) -> BudgetView:
        """The limits, and what is spent."""
        ...

    async def set_budget(
        self,
        *,
        burn_limit_usd_per_h: float | None = None,
        average_usd_per_h: float | None = None,
        purse_usd: float | None = None,
        by: str = "",
    ) -> BudgetView:
        """Change what is given; None leaves a limit as it is."""
        ...

    async def top_up(self, usd: float, *, by: str = "") -> BudgetView:
        """Put more into the budget."""
        ...

    async def nodes(self) -> Sequence[NodeView]:
        """Every node that is not gone, and those that went in the last cloud minutes."""
        ...

    async def health(self) -> HealthView:
        """Alive, and ready or not."""
        ...

    async def metrics(self) -> MetricsView:
        """Counters for Prometheus."""
        ...

    async def shutdown(self, *, end_jobs: bool = False, by: str = "") -> None:
        """Save and stop every job, give everything back, then let `run` return; with `end_jobs`, cancel them too."""
        ...
