"""Many jobs on spot: `price` with the reclaims in its times, beside being blind to them, all spot and all on demand.

Every policy sees the same market, the same offers and the same forecast. Runs are compared at equal dollars: each
policy runs at several budgets, and its time at the dollars of another is read off the line between its own points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np

from sublet.domain.budget import Budget
from sublet.domain.demand import Demand
from sublet.domain.job import Job
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.domain.units import SECONDS_PER_H
from sublet.market.catalogue import CATALOGUES, load_catalogue
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.market.traces import load_trace
from sublet.perf.speedup import Amdahl, PowerLaw
from sublet.policies.price.policy import Price
from sublet.sim.scenario import spot_market, spot_offers
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.studies.fleet.checks import dialled, lent, single
from sublet.studies.study import Check, Findings, Study, StudyTable, Tell, at_most

__all__ = ["STUDY", "Blind", "Case", "case_jobs", "clouds_of", "hours_at", "hurried"]

BOOT_S = 120.0  # clouds take one to five minutes
MEAN_H = 2.0  # of work on one GPU, exponential
KINDS = (  # name, speed, restart in seconds (from a small model's to a large one's), part of the work
    ("small", Amdahl(parallel=0.97), 60.0, 0.6),
    ("large", PowerLaw(exponent=0.8), 150.0, 0.4),
)
HARSH = "harsh"
BELOW, BEYOND = 0.75, 1.5  # budgets of the others, over the least and the most of price
QUICK_BUDGETS = (0.85, 1.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A market and a load. Budgets are in parts of what the load costs on demand, one GPU per job."""

    name: str
    trace: str
    times: float = 1.0  # the record runs so many times as fast, so that nodes are lost as much more often
    notice_s: float = 120.0
    spot_price: float | None = None  # part of on demand; None = the catalogue's
    load: float = 10.0  # GPU-hours of work per hour
    hours: float = 12.0
    budgets: tuple[float, ...] = (0.45, 0.7, 1.1)


CASES = (
    Case(name="bamboo-p3", trace="bamboo-p3"),
    Case(name="bamboo-gcp, no notice", trace="bamboo-gcp", notice_s=0.0, load=20.0, budgets=(0.65, 0.85, 1.2)),
    Case(name="skynomad-h100, no notice", trace="skynomad-h100", notice_s=0.0, load=20.0, budgets=(0.4, 0.65, 1.1)),
    Case(name=HARSH, trace="bamboo-p3", times=4.0, notice_s=0.0, spot_price=0.6, budgets=(0.65, 0.9, 1.2)),
)


@dataclass(frozen=True, slots=True)
class Blind:
    """The same policy, told that no node is ever taken back."""

    of: Policy

    def decide(self, snapshot: Snapshot) -> Plan:
        """Decide as if there were no reclaims."""
        calm = {
            name: replace(state, offer=replace(state.offer, hazard_per_h=0.0))
            for name, state in snapshot.offers.items()
        }
        return self.of.decide(replace(snapshot, offers=calm))


# ---------------------------------------------------------------------- what is run


def hurried(trace: SpotTrace, times: float) -> SpotTrace:
    """The same record, `times` as fast."""
    return replace(
        trace,
        series={zone: Steps(t_s=steps.t_s / times, value=steps.value) for zone, steps in trace.series.items()},
        end_s={zone: end_s / times for zone, end_s in trace.end_s.items()},
        span_s=trace.span_s / times,
    )


def clouds_of(case: Case) -> dict[str, Cloud]:
    """Spot and on demand side by side, and each alone."""
    trace = hurried(load_trace(case.trace, repeat=True), case.times)
    offers, _ = spot_offers(trace)
    like = next(iter(offers.values()))
    usd_per_h = _on_demand_usd_per_h(like)
    if case.spot_price is not None:
        offers, _ = spot_offers(trace, price=Usd.from_usd_per_h(f"{case.spot_price * usd_per_h:.4f}"))
    steady = Offer(
        id="on-demand",
        gpu=like.gpu,
        gpus_per_node=like.gpus_per_node,
        market=Market.ON_DEMAND,
        price=Usd.from_usd_per_h(f"{usd_per_h:.4f}"),
    )
    physics = Physics(provision_s=BOOT_S, notice_s=case.notice_s)
    return {
        "both": spot_market(trace, offers, first_s=0.0, beside=[steady], physics=physics).cloud,
        "spot": spot_market(trace, offers, first_s=0.0, physics=physics).cloud,
        "on demand": Cloud(offers=(replace(steady, boot_s=BOOT_S),), physics=physics),
    }


def _on_demand_usd_per_h(like: Offer) -> float:
    """The median on-demand price of the type, else of the cloud and GPU, in the newest catalogue that has any."""
    for exact in (True, False):
        for name in CATALOGUES:
            found = [
                offer.price.usd_per_h
                for offer in load_catalogue(name).select(market=Market.ON_DEMAND)
                if (offer.cloud, offer.gpu, offer.gpus_per_node) == (like.cloud, like.gpu, like.gpus_per_node)
                and (offer.instance_type == like.instance_type or not exact)
            ]
            if found:
                return median(found)
    raise LookupError(like.id)


def case_jobs(case: Case, seed: int) -> list[Job]:
    """Two kinds, which come at random; sizes are quantiles of their distribution, so that every seed has as much."""
    rng = np.random.default_rng(seed)
    jobs = []
    for name, speed, restart_s, part in KINDS:
        count = round(case.load * part / MEAN_H * case.hours)
        at_s = rng.random(count) * case.hours * SECONDS_PER_H
        work = -np.log1p(-(rng.permutation(count) + 0.5) / count) * MEAN_H * SECONDS_PER_H
        jobs += [
            Job(
                id=f"{name}-{at}",
                submit_s=float(at_s[at]),
                work=float(work[at]),
                speed=speed,
                max_gpus=16,
                restart_s=restart_s,
                checkpoint_every_s=600.0,
                checkpoint_write_s=10.0,
                model=name,
            )
            for at in range(count)
        ]
    return sorted(jobs, key=lambda job: job.submit_s)


@dataclass(frozen=True, slots=True)
class _Point:
    """Means over seeds."""

    usd: float
    hours: float
    losses: float


def _points(case: Case, policy: Policy, cloud: Cloud, seeds: int, budgets: Sequence[float]) -> list[_Point]:
    """Budgets are in USD per hour."""
    points = []
    for budget in budgets:
        average = Usd.from_usd_per_h(f"{budget:.3f}")
        runs = []
        for seed in range(seeds):
            jobs = case_jobs(case, seed)
            told = Demand.from_jobs(jobs, case.hours)
            within = replace(cloud, budget=Budget(average=average))
            runs.append(simulate(jobs, policy, within, seed=seed, expected=told, keep_segments=False).metrics)
        points.append(
            _Point(
                mean(run.usd for run in runs),
                mean(run.mean_s for run in runs) / SECONDS_PER_H
                if all(run.finished == run.jobs for run in runs)
                else math.inf,
                mean(run.losses for run in runs),
            )
        )
    return points


def hours_at(points: Sequence[tuple[float, float]], usd: float) -> float:
    """The time of a policy for these dollars, by the line through the logarithms of its own points.

    Points that another one beats with less money are left out; more money than the dearest point buys nothing.

    >>> round(hours_at([(10.0, 4.0), (40.0, 1.0), (50.0, 2.0)], 20.0), 6)
    2.0
    >>> hours_at([(10.0, 4.0), (40.0, 1.0)], 9.0), hours_at([(10.0, 4.0), (40.0, 1.0)], 90.0)
    (inf, 1.0)
    """
    line: list[tuple[float, float]] = []
    for point in sorted(points):
        if not line or point[1] < line[-1][1]:
            line.append(point)
    if usd < line[0][0]:
        return math.inf
    return math.exp(np.interp(math.log(usd), np.log([u for u, _ in line]), np.log([t for _, t in line])))


# ---------------------------------------------------------------------- what is shown


def _compared(case: Case, seeds: int, tell: Tell) -> tuple[list[Check], list[list[str]]]:
    """One market: four lines, and `price` held to the others at its own dollars."""
    clouds = clouds_of(case)
    unit = next(o.price.usd_per_h for o in clouds["on demand"].offers)
    rivals: dict[str, tuple[Policy, str]] = {
        "price": (Price(), "both"),
        "blind to reclaims": (Blind(Price()), "both"),
        "all spot": (Price(), "spot"),
        "all on demand": (Price(), "on demand"),
    }
    lines = {}
    for name, (policy, cloud) in rivals.items():
        tell(f"{case.name}: {name}")
        # the others are asked beyond the budgets of price too, so that their lines cover its dollars
        parts = case.budgets
        if name != "price":
            parts = (BELOW * case.budgets[0], *case.budgets, BEYOND * case.budgets[-1])
        lines[name] = _points(case, policy, clouds[cloud], seeds, [part * unit * case.load for part in parts])
    curves = {name: [(point.usd, point.hours) for point in line] for name, line in lines.items()}
    rows, pure, blind = [], [], []
    for at, point in enumerate(lines["price"]):
        others = {name: hours_at(curves[name], point.usd) for name in curves if name != "price"}
        pure.append(point.hours / min(others["all spot"], others["all on demand"]))
        blind.append(point.hours / others["blind to reclaims"])
        cells = [f"{others[name]:.3f}" if math.isfinite(others[name]) else "-" for name in others]
        losses = f"{point.losses:.0f} / {lines['blind to reclaims'][at + 1].losses:.0f}"
        rows.append([case.name, f"{point.usd / case.hours:.2f}", f"{point.hours:.3f}", *cells, losses])
    noise = 0.08 if seeds == 1 else 0.05
    checks = [
        at_most(f"{case.name}: time over the better pure choice, equal dollars, worst budget", max(pure), 1 + noise),
        at_most(f"{case.name}: time over being blind, equal dollars, worst budget", max(blind), 1 + noise),
    ]
    if case.name == HARSH:
        best = min((ratio for ratio in blind if ratio), default=math.inf)
        checks.append(at_most(f"{case.name}: time over being blind, equal dollars, best budget", best, 0.85))
    return checks, rows


def _run(quick: bool, tell: Tell) -> Findings:
    """Formula, hazard dial, equal dollars, and what is lent."""
    seeds = 1 if quick else 2
    checks, rows = [], []
    for case in CASES:
        if quick and case.name != HARSH:
            continue
        found, lines = _compared(replace(case, budgets=QUICK_BUDGETS) if quick else case, seeds, tell)
        checks += found
        rows += lines
    columns = ["market", "USD/h", "price, h", "blind, h", "all spot, h", "all on demand, h", "lost: price / blind"]
    title = "Mean completion time at equal dollars"
    harsh = CASES[-1]
    parts = [single(quick, tell), dialled(quick, tell, lambda times: _dial(harsh, times)), lent(tell)]
    return Findings(
        checks=[*checks, *(check for part in parts for check in part.checks)],
        tables=[
            StudyTable(title=title, columns=columns, rows=rows),
            *(table for part in parts for table in part.tables),
        ],
        notes=[
            f"jobs are made up: two kinds with {MEAN_H:g} h of work on one GPU each, up to 16 GPUs wide",
            f"{HARSH}: the record of bamboo-p3, {harsh.times:g} times as fast, without notice, at 0.6 of on demand",
            "a dash: the policy cannot do with so little money",
        ],
    )


def _dial(harsh: Case, times: float) -> tuple[list[Job], Cloud, Demand]:
    case = replace(harsh, times=times, spot_price=0.7)
    cloud, jobs = clouds_of(case)["both"], case_jobs(case, 0)
    unit = next(o.price.usd_per_h for o in cloud.offers if o.market is Market.ON_DEMAND)
    budget = Budget(average=Usd.from_usd_per_h(f"{1.05 * unit * case.load:.3f}"))
    return jobs, replace(cloud, budget=budget), Demand.from_jobs(jobs, case.hours)


STUDY = Study(name="fleet", title="Many jobs on spot: reclaims in the price of time, and spares lent", run=_run)
