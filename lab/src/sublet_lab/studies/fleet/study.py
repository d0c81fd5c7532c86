"""Many jobs on spot: `price` with the reclaims in its times, beside being blind to them, all spot and all on demand.

Every policy sees the same market, the same offers and the same forecast. Runs are compared at equal dollars: each
policy runs at several budgets, and its time at the dollars of another is read off the line between its own points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import NamedTuple

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
from sublet_lab.studies.fleet.checks import dialled, lent, single
from sublet_lab.studies.ratio import Ratio
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_most

BOOT_S = 120.0  # clouds take one to five minutes
MEAN_H = 2.0  # of work on one GPU, exponential
KINDS = (  # name, speed, restart in seconds (from a small model's to a large one's), part of the work
    ("small", Amdahl(parallel=0.97), 60.0, 0.6),
    ("large", PowerLaw(exponent=0.8), 150.0, 0.4),
)
PRICE, BLIND, HARSH = "price", "blind to reclaims", "harsh"
SEEDS = 5  # draws of jobs
BELOW, BEYOND = 0.75, 1.5  # budgets of the others, over the least and the most of price
QUICK_BUDGETS = (0.85, 1.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
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
    FleetCase(name="bamboo-p3", trace="bamboo-p3"),
    FleetCase(name="bamboo-gcp, no notice", trace="bamboo-gcp", notice_s=0.0, load=20.0, budgets=(0.65, 0.85, 1.2)),
    FleetCase(
        name="skynomad-h100, no notice", trace="skynomad-h100", notice_s=0.0, load=20.0, budgets=(0.4, 0.65, 1.1)
    ),
    FleetCase(name=HARSH, trace="bamboo-p3", times=4.0, notice_s=0.0, spot_price=0.6, budgets=(0.65, 0.9, 1.2)),
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


def clouds_of(case: FleetCase) -> dict[str, Cloud]:
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


def case_jobs(case: FleetCase, seed: int) -> list[Job]:
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


class Point(NamedTuple):
    """One run: what it cost, the mean time of its jobs (endless where some never ended), and nodes that it lost."""

    usd: float
    hours: float
    losses: int


def _points(case: FleetCase, policy: Policy, cloud: Cloud, seed: int, budgets: Sequence[float]) -> list[Point]:
    """Points of one draw of jobs; budgets are in USD per hour."""
    jobs = case_jobs(case, seed)
    told, points = Demand.from_jobs(jobs, case.hours), []
    for budget in budgets:
        within = replace(cloud, budget=Budget(average=Usd.from_usd_per_h(f"{budget:.3f}")))
        run = simulate(jobs, policy, within, seed=seed, expected=told, keep_segments=False).metrics
        hours = run.mean_s / SECONDS_PER_H if run.finished == run.jobs else math.inf
        points.append(Point(run.usd, hours, run.losses))
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


Lines = Mapping[str, Sequence[Sequence[Point]]]  # policy -> draw of jobs -> budget


def _compared(case: FleetCase, seeds: int, tell: Tell) -> tuple[list[Check], list[list[str]]]:
    """One market: four lines for each draw of jobs, and `price` held to the others at its own dollars."""
    clouds = clouds_of(case)
    unit = next(o.price.usd_per_h for o in clouds["on demand"].offers)
    rivals: dict[str, tuple[Policy, str]] = {
        PRICE: (Price(), "both"),
        BLIND: (Blind(Price()), "both"),
        "all spot": (Price(), "spot"),
        "all on demand": (Price(), "on demand"),
    }
    lines: dict[str, list[list[Point]]] = {}
    for name, (policy, cloud) in rivals.items():
        tell(f"{case.name}: {name}")
        # the others are asked beyond the budgets of price too, so that their lines cover its dollars
        parts = case.budgets
        if name != PRICE:
            parts = (BELOW * case.budgets[0], *case.budgets, BEYOND * case.budgets[-1])
        budgets = [part * unit * case.load for part in parts]
        lines[name] = [_points(case, policy, clouds[cloud], seed, budgets) for seed in range(seeds)]
    found = [held(lines, at) for at in range(len(case.budgets))]
    rows = [[case.name, f"{each.usd / case.hours:.2f}", f"{each.hours:.3f}", *each.cells] for each in found]
    return _checks(case, found, 0.08 if seeds == 1 else 0.05), rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """`price` at one of its budgets beside the others at its dollars.

    None: with so little money no other policy can.
    """

    usd: float
    hours: float
    cells: Sequence[str]
    pure: Ratio | None  # over the better of all spot and all on demand
    blind: Ratio | None


def held(lines: Lines, at: int) -> Held:
    """Draw by draw: those in which a rival cannot do with so little are no part of the ratio to it."""
    ours = [line[at] for line in lines[PRICE]]
    theirs = {
        name: [hours_at([point[:2] for point in line], one.usd) for one, line in zip(ours, of_seeds, strict=True)]
        for name, of_seeds in lines.items()
        if name != PRICE
    }
    pure = _over(ours, [min(each) for each in zip(theirs["all spot"], theirs["all on demand"], strict=True)])
    blind = _over(ours, theirs[BLIND])
    times = [f"{mean(hours):.3f}" if all(map(math.isfinite, hours)) else "-" for hours in theirs.values()]
    lost = f"{mean(one.losses for one in ours):.0f} / {mean(line[at + 1].losses for line in lines[BLIND]):.0f}"
    over = ["-" if ratio is None else str(ratio) for ratio in (pure, blind)]
    usd, hours = mean(one.usd for one in ours), mean(one.hours for one in ours)
    return Held(usd=usd, hours=hours, cells=[*times, *over, lost], pure=pure, blind=blind)


def _over(ours: Sequence[Point], theirs: Sequence[float]) -> Ratio | None:
    can = [(one.hours, other) for one, other in zip(ours, theirs, strict=True) if math.isfinite(other)]
    return Ratio.over([one for one, _ in can], [other for _, other in can]) if can else None


def _checks(case: FleetCase, found: Sequence[Held], noise: float) -> list[Check]:
    checks = []
    blind = [each.blind for each in found if each.blind is not None]
    for whom, ratios in (
        ("the better pure choice", [each.pure for each in found if each.pure is not None]),
        ("being blind", blind),
    ):
        worst = max(ratios, key=lambda ratio: ratio.mean)
        label = f"{case.name}: time over {whom}, equal dollars, worst budget"
        checks.append(at_most(label, worst.mean, 1 + noise, off=worst.off))
    if case.name == HARSH:
        best = min(blind, key=lambda ratio: ratio.mean)
        label = f"{case.name}: time over being blind, equal dollars, best budget"
        checks.append(at_most(label, best.mean, 0.85, off=best.off))
    return checks


def _run(quick: bool, tell: Tell) -> Findings:
    """Formula, hazard dial, equal dollars, and what is lent."""
    seeds = 1 if quick else SEEDS
    checks, rows = [], []
    for case in CASES:
        if quick and case.name != HARSH:
            continue
        found, lines = _compared(replace(case, budgets=QUICK_BUDGETS) if quick else case, seeds, tell)
        checks += found
        rows += lines
    columns = ["market", "USD/h", "price, h", "blind, h", "all spot, h", "all on demand, h"]
    columns += ["over the better pure", "over blind", "lost: price / blind"]
    title = f"Mean completion time at equal dollars, {seeds} draws of jobs, 95 % intervals"
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
            "a dash: it cannot do with so little money, in one draw at least; ratios are of draws in which it can",
            "intervals are over draws of jobs, on one record of the market; the worst of several budgets has its own",
            "no interval: speed lost has a tolerance for chance in its goal, the dial is one draw, spares are exact",
        ],
    )


def _dial(harsh: FleetCase, times: float) -> tuple[list[Job], Cloud, Demand]:
    case = replace(harsh, times=times, spot_price=0.7)
    cloud, jobs = clouds_of(case)["both"], case_jobs(case, 0)
    unit = next(o.price.usd_per_h for o in cloud.offers if o.market is Market.ON_DEMAND)
    budget = Budget(average=Usd.from_usd_per_h(f"{1.05 * unit * case.load:.3f}"))
    return jobs, replace(cloud, budget=budget), Demand.from_jobs(jobs, case.hours)


STUDY = Study(name="fleet", title="Many jobs on spot: reclaims in the price of time, and spares lent", run=_run)
