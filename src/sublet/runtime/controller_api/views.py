"""Answers of a controller: plain values, ready for JSON, each field with its unit.

Every time that ends in `_s` is cloud time (seconds since the controller's first start, or a duration on that clock),
but for those that start with `wall_` and for `step_s` and `samples_per_s`, which a worker measures on the wall.
None means not known yet.

Between two rows of history what is rented is what it was, so dollars are spread over the time between them: a day
without a row has its part, and so have the hours before midnight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, NotRequired, TypedDict

from sublet.domain.offer import Market
from sublet.runtime.controller.files import LogPart

__all__ = [
    "ENDED",
    "RESTING",
    "AlternativeView",
    "BillView",
    "BudgetView",
    "CostView",
    "DayView",
    "DryRunView",
    "EventView",
    "ExpectedView",
    "ExplainView",
    "GpuView",
    "HealthView",
    "HistogramView",
    "JobLog",
    "JobPhase",
    "JobView",
    "LogPart",
    "MetricsView",
    "NodeStatus",
    "NodeView",
    "Quantiles",
    "SpentAt",
    "days_from",
]


class SpentAt(NamedTuple):
    """A moment, and what was spent in all until then."""

    at: datetime
    usd: float


class DayView(TypedDict):
    """One day, UTC."""

    day: str  # 2026-11-18; "" = before the first row that is not in the archive
    usd: float


def days_from(mark: Callable[[int], SpentAt], first: int, last: int, now: SpentAt) -> list[DayView]:
    """Oldest first. `mark` tells of a row by its number, which are without gaps from `first` to `last`.

    Looked at are the rows around each midnight, which are found by halving: logarithmic in the rows, times days.
    """
    if first > last:
        return _spread(SpentAt(now.at, 0.0), [now])
    began, already_usd = mark(first)
    marks, at = [mark(first)], first
    while (day := mark(at).at.date()) < mark(last).at.date():
        low, high = at, last  # the first row of a later day is above the one and not above the other
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if mark(middle).at.date() <= day else (low, middle)
        marks += [mark(low), mark(high)]
        at = high
    return _spread(SpentAt(began, already_usd if first > 1 else 0.0), [*marks, mark(last), now])


def _spread(begin: SpentAt, marks: list[SpentAt]) -> list[DayView]:
    found: dict[str, float] = {"": begin.usd} if begin.usd else {}
    before, sum_usd = begin
    for then, usd in marks:
        whole_s = (then - before).total_seconds()
        while (midnight := _midnight_after(before)) < then:
            part = (usd - sum_usd) * (midnight - before).total_seconds() / whole_s
            _add(found, before, part)
            before, sum_usd, whole_s = midnight, sum_usd + part, (then - midnight).total_seconds()
        _add(found, min(before, then), usd - sum_usd)
        before, sum_usd = then, usd
    return [{"day": day, "usd": usd} for day, usd in found.items()]


def _add(found: dict[str, float], at: datetime, usd: float) -> None:
    day = at.date().isoformat()
    found[day] = found.get(day, 0.0) + usd


def _midnight_after(at: datetime) -> datetime:
    return datetime.combine(at.date() + timedelta(days=1), datetime.min.time(), UTC)


class JobPhase(StrEnum):
    """Where a job is on its way, as users see it."""

    QUEUED = "queued"  # holds nothing and waits for a plan that gives it workers
    STARTING = "starting"  # nodes or workers are on their way
    RUNNING = "running"
    RESIZING = "resizing"  # between two widths
    RECOVERING = "recovering"  # lost a node and regroups
    STOPPING = "stopping"  # saves and leaves
    PAUSED = "paused"  # by the user; holds nothing, resumable
    OUT_OF_BUDGET = "out-of-budget"  # stopped at the limit; resumable after a top-up
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED})
RESTING: Final = frozenset({JobPhase.PAUSED, JobPhase.OUT_OF_BUDGET})  # nothing goes on until the user does something


class NodeStatus(StrEnum):
    """Where a node is on its way, as users see it."""

    RENTING = "renting"
    READY = "ready"
    NOTICED = "noticed"  # the cloud will take it
    SILENT = "silent"  # it is cut off: nobody is on it, and it is still paid for
    RELEASING = "releasing"
    GONE = "gone"


class Quantiles(TypedDict):
    """A forecast: 10, 50 and 90 of 100 outcomes are below."""

    p10: float
    p50: float
    p90: float


class BillView(TypedDict):
    """Dollars by what they bought; the parts add up to `usd_total`."""

    usd_useful: float  # work that counts
    usd_unknown: float  # training of a script without the SDK that nothing says was kept, so far
    usd_redone: float  # work that was lost: done again, or thrown away with the job
    usd_restart: float  # starts, resizes and recoveries
    usd_idle: float  # paid for and not used
    usd_checkpoint: float  # training that stood still for a checkpoint
    usd_total: float


class PlaceView(TypedDict):
    """Where one worker of a model that is cut sits."""

    worker_id: str
    node_id: str
    copy: int  # -1 = it has no place, and keeps or waits
    part: int
    keeps: list[int]  # parts that it holds besides


class GpuView(TypedDict):
    """The GPUs of one worker, as its node last saw them; what others do on them counts too."""

    worker_id: str
    node_id: str
    rank: int  # -1 = it is in no group
    gpus: int
    busy: float  # of the time lately, 0 to 1; the mean of its GPUs
    memory_bytes: int  # taken
    memory_of_bytes: int  # that there is


class MoveView(TypedDict):
    """Changes of a grid, of one kind."""

    kind: str  # within, between, depth or restored
    count: int
    size_bytes: int  # that all workers received in them
    seconds: float  # without training, wall


class JobView(BillView):
    """One job, now."""

    id: str
    name: str
    phase: JobPhase
    reason: str  # why it is in this phase, or has this width, in a sentence
    submitted_s: float
    started_s: float | None  # first step
    ended_s: float | None
    user: str  # who brought it, and pays
    team: str  # of that user
    workers: int  # in the group now
    workers_wanted: int  # what the plan gives it
    min_workers: int
    max_workers: int
    on_node_loss: str  # continue, replace, restart or fail
    shape: str  # "2 x cpu-spot", or "7 x T4x1, 2 x 3, 1 spare": workers, pool, copies and parts; "" without any
    grid: str  # that its workers sit in now, copies x parts; "" where its model is not cut
    spares: int  # workers that wait, in no place of it
    places: list[PlaceView]
    gpus: list[GpuView]  # of those workers whose nodes tell; [] where there are none
    moves: list[MoveView]
    node_ids: list[str]
    generation: int
    step: int
    epoch: int
    done: float  # samples
    work: float | None  # samples over the whole job
    progress: float | None  # done / work, 0 to 1
    had_h: float | None  # hours of one worker, of a script that does not say how much work it is; None = it says so,
    size_h: float | None  # or no job of its group has finished: in all it is expected to need this, as they did
    loss: float | None
    global_batch: int | None
    step_s: float | None  # mean of one step, wall
    samples_per_s: float | None  # wall
    usd_per_h: float  # rent of its share of nodes, now
    usd_on_demand: float | None  # what the same run would have cost on demand, so far
    purse_usd: float | None  # what it may spend
    deadline_s: float | None
    eta_s: Quantiles | None  # time left
    forecast_usd: Quantiles | None  # whole cost at its end
    preemptions_noticed: int
    preemptions_unnoticed: int
    resizes: int
    steps_lost: int  # steps that were done twice
    checkpoint_step: int | None  # last one committed that outlives the nodes
    checkpoint_newest: int | None  # step of the newest, wherever it is; None of a script, which has no steps
    checkpoint_tier: str  # the farthest that has the newest: disk, anchor or bucket; "" before there is any
    failures_infra: int
    failures_user: int
    exit_code: int | None  # of the first worker that failed, or 0
    error: str  # last lines of a failure, secrets hidden
    warnings: list[str]  # what its owner should do something about
    notes: list[str]  # what its file says and the job has otherwise, or need not have


class NodeView(TypedDict):
    """One node that is rented, was rented, or is on its way."""

    id: str
    offer_id: str
    market: Market
    gpu: str
    phase: NodeStatus
    usd_per_h: float
    since_s: float  # when it was asked for
    until_s: float | None  # when it was gone, or will be taken
    slots: int  # workers that fit
    job_ids: list[str]  # who uses it
    hazard_per_h: float  # how often such a node is believed to be taken, by what is said and what was seen; 0 = never


class EventView(TypedDict):
    """One line of history. `kind` is a kernel event or order, or one of the controller's own."""

    seq: int  # counts from 1 without gaps, over restarts too
    at_s: float
    at: str  # wall clock, ISO 8601, UTC
    kind: str
    job_id: str  # "" = about no job
    node_id: str  # "" = about no node
    text: str  # a sentence for people, with the reason
    by: str  # whose wish it was, by the name of a token; "" = nobody's
    workers: int | None  # of the job, after it
    grid: str  # that these sit in, copies x parts; "" where its model is not cut
    nodes_held: int  # ready nodes, after it
    usd_per_h: float  # burn rate, after it
    usd_total: float  # spent, after it


class TierView(TypedDict):
    """The cost of one tier of checkpoints, and what it saved."""

    tier: str  # peers, disk, anchor or bucket
    commits: int
    size_bytes: int  # of all of them
    blocked_s: float  # of training that stood still for them, in cloud time
    usd_blocked: float
    resumes: int  # after a loss, from there
    steps_kept: int  # that would have been made again without this tier
    usd_kept: float  # what they had cost
    newest: int  # jobs whose newest checkpoint is here, and in no tier that outlives more


class CostView(BillView):
    """The bill of one job (`job_id`), or of all and of what no job used (`job_id` is "")."""

    job_id: str
    name: str
    usd_on_demand: float | None
    usd_per_h: float
    steps_lost: int
    preemptions_noticed: int
    preemptions_unnoticed: int
    forecast_usd: Quantiles | None
    tiers: list[TierView]  # that were used, nearest first
    moves: list[MoveView]  # of jobs that are cut
    jobs: list[CostView]  # of all jobs; [] for one job
    days: list[DayView]  # of all; [] for one job
    usd_besides: float  # of all: what was paid for no node, but for the anchor; a part of usd_idle


class AlternativeView(TypedDict):
    """A shape that a policy weighed. Where time counts for more than any rent, only hours do: dollars are None then."""

    shape: str  # "8 x T4x1, 2 on demand, 4 x 2": workers and pool, of them on demand, copies and parts of each
    workers: int
    workers_on_demand: int
    market: str  # spot, on-demand or both
    grid: str | None  # copies x parts; None = data parallel, or as its script has it
    batch: int | None  # samples in a step; None = as its script has it
    known: str  # whence its speed is known: measured, from an earlier run, predicted; "" = the job measures no profile
    usd_per_h: float
    losses: float  # times that the cloud is expected to take nodes of it until the end
    restarts: float  # of these, times that nobody is left with its state
    samples_per_s: float | None  # wall
    left_s: float | None  # time to the end in this shape
    left_usd: float | None  # rent to the end
    time_usd: float | None  # its hours at what an hour of the job is worth
    scarce_usd: float | None  # the surcharge of a pool that is short
    other_usd: float | None  # nodes that boot meanwhile, doubt in what is believed of speeds
    price_usd: float | None  # the sum: what the policy compared
    chosen: bool
    why: str  # why not, or why


class ExplainView(TypedDict):
    """Why a job has what it has."""

    job_id: str
    at_s: float  # of the plan in which its shapes were weighed
    policy: str
    shape: str
    reason: str
    value_of_time_usd_per_h: float | None
    congestion_usd_per_gpu_h: dict[str, float]
    alternatives: list[AlternativeView]
    notes: list[str]


class BudgetView(TypedDict):
    """The limits, and what is spent."""

    burn_limit_usd_per_h: float | None  # never above, at any moment
    average_usd_per_h: float | None  # aim in the long run
    purse_usd: float | None  # in all
    spent_usd: float
    reserved_usd: float  # kept back to give every node up safely
    left_usd: float | None  # purse - spent - reserved
    burn_usd_per_h: float  # now
    exhausted: bool  # nothing more may be rented until a top-up
    unattended_usd: (
        float  # beyond the budget, at most, if no controller were there from now on: nodes end with their lease
    )


class ExpectedView(TypedDict):
    """The shape and the cost of a new job beside the jobs that are there; the quickest way and on demand to compare.

    None where the amount of work is unknown, or where there is nothing on demand.
    """

    shape: str
    waits: bool  # others have all that it could have now: this is what it would take alone
    usd_per_h: float
    usd_per_h_in_a_hurry: float
    usd_per_h_on_demand: float | None
    seconds: float | None
    seconds_in_a_hurry: float | None
    usd: float | None
    usd_in_a_hurry: float | None
    usd_on_demand: float | None


class DryRunView(TypedDict):
    """The outcome of a job that is not submitted."""

    name: str
    feasible: bool
    shape: str
    workers: int
    usd_per_h: float
    starts_s: float | None  # from now
    finish_s: Quantiles | None  # from now
    cost_usd: Quantiles | None
    usd_on_demand: float | None
    expected: NotRequired[ExpectedView | None]  # None = the policy weighs no money
    reason: str
    alternatives: list[AlternativeView]
    notes: list[str]  # of its file, and what was assumed: speeds not measured yet, work not known


class HealthView(TypedDict):
    """Whether the controller is alive and well."""

    ready: bool  # the store answers, the last reconcile is fresh and no plan is overdue
    started: bool  # it answers and takes jobs, ready or not
    why: str  # what is wrong; "" if nothing
    version: str
    provider: str
    engine: str
    policy: str
    now_s: float
    speedup: float  # cloud seconds per wall second
    wall_up_s: float
    last_reconcile_wall_s: float | None  # ago
    stopping: bool
    earlier_jobs: int  # that ended long ago, and are shown only to whoever asks for one by its id


class HistogramView(TypedDict):
    """Observations of one quantity, in buckets: `counts[i]` were at most `bounds[i]`, the last is above all."""

    bounds: list[float]
    counts: list[int]  # one more than bounds, not cumulative
    total: float  # sum of all observations


class MetricsView(TypedDict):
    """Counters since the controller's first start that jobs, budget and nodes do not show."""

    notice_to_commit_s: HistogramView  # wall
    recovery_s: HistogramView  # wall, from the loss of a node to the next step
    decision_s: HistogramView  # wall, of the policy
    resizes: dict[str, int]  # by reason: grow, shrink, notice, loss, user
    provider_calls: dict[str, dict[str, int]]  # call -> outcome -> count
    orphans_found: int
    short_of_memory: int  # times that a step did not fit, and workers took fewer samples at a time from then on
    checkpoints_damaged: int  # passed over when a job looked for its newest
    alarms: dict[str, int]  # by kind: anchor, policy, refused, impostor, history, copy, address, throttled
    reconcile_s: float | None  # wall, how long the last one took
    reconciled_at: float | None  # wall, seconds since 1970
    price_age_s: float | None  # wall
    steps: dict[str, int]  # job id -> steps made, the redone ones too


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """The output of a job, as it was asked for. `hide` are its secrets: masked wherever the text goes."""

    parts: tuple[LogPart, ...]
    hide: tuple[str, ...] = field(default=(), repr=False)
