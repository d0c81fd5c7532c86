"""The metrics page for Prometheus: base units, bounded labels, read when asked.

A label is a job, a budget, and of GPUs alone a worker: of those that run now, where nodes tell of their GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from sublet.runtime.controller_api.budgets import PurseRow
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.controller_api.views import (
    ENDED,
    BudgetView,
    HistogramView,
    JobView,
    MetricsView,
    NodeView,
    Quantiles,
)

MOST_ENDED = 100  # jobs that have ended and are still told of


async def exposition(api: Api, by: str = "") -> tuple[bytes, str]:
    """The text that Prometheus reads, and its content type; with the budgets that the caller may see."""
    collector = _ControllerMetrics(
        jobs=_leave_out_old(await api.jobs()),
        budget=await api.budget(),
        nodes=await api.nodes(),
        metrics=await api.metrics(),
        purses=api.budgets.rows(by),
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _leave_out_old(jobs: Sequence[JobView]) -> list[JobView]:
    ended = [job["id"] for job in jobs if job["phase"] in ENDED][:-MOST_ENDED]
    return [job for job in jobs if job["id"] not in ended]


def _dollars_by_purpose(job: JobView) -> dict[str, float]:
    return {
        "useful": job["usd_useful"],
        "unknown": job["usd_unknown"],
        "redone": job["usd_redone"],
        "restart": job["usd_restart"],
        "idle": job["usd_idle"],
        "checkpoint": job["usd_checkpoint"],
    }


def _quantiles(found: Quantiles | None) -> dict[str, float]:
    return {} if found is None else {"p10": found["p10"], "p50": found["p50"], "p90": found["p90"]}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ControllerMetrics(Collector):
    jobs: Sequence[JobView]
    budget: BudgetView
    nodes: Sequence[NodeView]
    metrics: MetricsView
    purses: Sequence[PurseRow]

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_jobs()
        yield from self._collect_gpus()
        yield from self._collect_money()
        yield from self._collect_budgets()
        yield from self._collect_controller()

    def _collect_jobs(self) -> Iterator[Metric]:
        cost = _counter("job_cost_dollars", "Dollars by what they bought.", "job", "name", "purpose")
        steps = _counter("job_steps", "Steps made, the redone ones too.", "job", "name")
        preempted = _counter("job_preemptions", "Nodes that the cloud took.", "job", "name", "notice")
        goodput = _gauge("job_goodput_ratio", "Share of the dollars that bought work that counts.", "job", "name")
        wanted = _gauge("job_workers_desired", "Workers in the plan.", "job", "name")
        actual = _gauge("job_workers_actual", "Workers in the group.", "job", "name")
        forecast = _gauge("job_forecast_cost_dollars", "Whole cost at the end.", "job", "name", "quantile")
        finish = _gauge("job_forecast_finish_seconds", "Time left.", "job", "name", "quantile")
        for job in self.jobs:
            who = (job["id"], job["name"])
            for purpose, usd in _dollars_by_purpose(job).items():
                cost.add_metric((*who, purpose), usd)
            steps.add_metric(who, self.metrics["steps"].get(job["id"], job["step"]))
            preempted.add_metric((*who, "noticed"), job["preemptions_noticed"])
            preempted.add_metric((*who, "unnoticed"), job["preemptions_unnoticed"])
            if job["usd_total"] > 0:
                goodput.add_metric(who, job["usd_useful"] / job["usd_total"])
            wanted.add_metric(who, job["workers_wanted"])
            actual.add_metric(who, job["workers"])
            for family, quantiles in ((forecast, job["forecast_usd"]), (finish, job["eta_s"])):
                for name, value in _quantiles(quantiles).items():
                    family.add_metric((*who, name), value)
        yield from (cost, steps, preempted, goodput, wanted, actual, forecast, finish)

    def _collect_gpus(self) -> Iterator[Metric]:
        labels = ("job", "name", "worker", "node")
        busy = _gauge("worker_gpu_busy_ratio", "Of the time, in which its GPUs had something to do.", *labels)
        taken = _gauge("worker_gpu_memory_bytes", "Memory of its GPUs that is taken.", *labels)
        there = _gauge("worker_gpu_memory_total_bytes", "Memory that its GPUs have.", *labels)
        for job in self.jobs:
            for gpu in job["gpus"]:
                who = (job["id"], job["name"], gpu["worker_id"], gpu["node_id"])
                busy.add_metric(who, gpu["busy"])
                taken.add_metric(who, gpu["memory_bytes"])
                there.add_metric(who, gpu["memory_of_bytes"])
        yield from (busy, taken, there)

    def _collect_money(self) -> Iterator[Metric]:
        yield _gauge_of("burn_rate_dollars_per_hour", "Rent of all nodes, now.", self.budget["burn_usd_per_h"])
        yield _gauge_of("budget_spent_dollars", "Spent so far.", self.budget["spent_usd"])
        yield _gauge_of("budget_reserved_dollars", "Kept back to stop safely.", self.budget["reserved_usd"])
        if self.budget["left_usd"] is not None:
            yield _gauge_of("budget_remaining_dollars", "Neither spent nor reserved.", self.budget["left_usd"])

    def _collect_budgets(self) -> Iterator[Metric]:
        """Metrics of the tree: the organisation, all teams and users, and the jobs with a budget."""
        limit = _gauge("purse_limit_dollars", "That may be spent, in all or in this period.", "level", "name")
        spent = _gauge("purse_spent_dollars", "Spent of it, or without one since budgets are counted.", "level", "name")
        kept = _gauge("purse_reserved_dollars", "Kept back to leave in time.", "level", "name")
        for row in self.purses:
            who = (row["level"], row["name"])
            if row["limit_usd"] is not None:
                limit.add_metric(who, row["limit_usd"])
            spent.add_metric(who, row["spent_usd"])
            kept.add_metric(who, row["reserved_usd"])
        yield from (limit, spent, kept)

    def _collect_controller(self) -> Iterator[Metric]:
        found = self.metrics
        held = _gauge("nodes", "Nodes by market and phase.", "market", "phase")
        for market, phase in sorted({(node["market"], node["phase"]) for node in self.nodes}):
            held.add_metric((market, phase), sum((n["market"], n["phase"]) == (market, phase) for n in self.nodes))
        yield held
        resizes = _counter("resizes", "Changes of the worker count.", "reason")
        for reason, count in sorted(found["resizes"].items()):
            resizes.add_metric((reason,), count)
        yield resizes
        calls = _counter("provider_calls", "Calls to the cloud.", "call", "outcome")
        for call, outcomes in sorted(found["provider_calls"].items()):
            for outcome, count in sorted(outcomes.items()):
                calls.add_metric((call, outcome), count)
        yield calls
        orphans = _counter("orphans_found", "Nodes at the cloud without an order.")
        orphans.add_metric((), found["orphans_found"])
        yield orphans
        damaged = _counter("checkpoints_damaged", "Checkpoints that a job passed over when it looked for its newest.")
        damaged.add_metric((), found["checkpoints_damaged"])
        yield damaged
        short = _counter("short_of_memory", "Times that a step did not fit into memory, and was made smaller.")
        short.add_metric((), found["short_of_memory"])
        yield short
        alarms = _counter("alarms", "Things that should not be, each also in the history.", "kind")
        for kind, count in sorted(found["alarms"].items()):
            alarms.add_metric((kind,), count)
        yield alarms
        yield _histogram("notice_to_commit_seconds", "From a notice to the checkpoint.", found["notice_to_commit_s"])
        yield _histogram("recovery_seconds", "From the loss of a node to the next step.", found["recovery_s"])
        yield _histogram("decision_seconds", "How long the policy thought.", found["decision_s"])
        for name, text, value in (
            ("price_age_seconds", "Since the provider's prices were last confirmed.", found["price_age_s"]),
            ("reconcile_duration_seconds", "Of the last comparison with the cloud.", found["reconcile_s"]),
            ("reconcile_last_success_timestamp_seconds", "When it was.", found["reconciled_at"]),
        ):
            if value is not None:
                yield _gauge_of(name, text, value)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"sublet_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sublet_{name}", text, labels=labels)


def _gauge_of(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sublet_{name}", text, value=value)


def _histogram(name: str, text: str, found: HistogramView) -> HistogramMetricFamily:
    bounds: Iterable[str] = (*(f"{bound:g}" for bound in found["bounds"]), "+Inf")
    buckets = list(zip(bounds, accumulate(found["counts"]), strict=True))
    return HistogramMetricFamily(f"sublet_{name}", text, buckets=buckets, sum_value=found["total"])
