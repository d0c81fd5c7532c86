"""One job over a recorded spot market: under several policies, from the cheapest to the fastest, or zone by zone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible

if TYPE_CHECKING:
    from sublet.market.spot import SpotTrace
    from sublet.perf.grids import SpotJob
    from sublet.sim.many_zones import ZonedRunResult
    from sublet.sim.one_job import RunResult
    from sublet.sim.report.spot import ZoneRuns
    from sublet.spot.deadline import Punctual
    from sublet.spot.record import Record

__all__ = ["OFTEN_S", "SpotMarket", "run_deadline", "run_frontier", "run_policies", "run_zones"]

VALUES = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)  # of a sample, as multiples of what it costs at the least
OFTEN_S = 300.0  # between decisions where zones are chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    """What there was to be had, for how much, and how long before a loss it is announced."""

    record: Record
    usd_per_h: float
    notice_s: float = 0.0


def run_policies(
    job: SpotJob,
    names: Sequence[str],
    market: SpotMarket,
    *,
    usd_per_sample: float | None,
    begin: Callable[[str], None],
) -> dict[str, RunResult]:
    """Each policy over the record; with the value of a sample, liveput weighs it against the rent."""
    from sublet.planning.objective import SpotPrices
    from sublet.sim.one_job import run_on_market
    from sublet.spot.liveput import Liveput
    from sublet.spot.registry import policies_by_name

    known = policies_by_name(job, market.record, notice_s=market.notice_s)
    by_name = {name.replace(", ", "-"): policy for name, policy in known.items()}  # commas separate names
    if usd_per_sample is not None:
        by_name["liveput"] = Liveput(money=SpotPrices(usd_per_sample=usd_per_sample, usd_per_h=market.usd_per_h))
    runs = {}
    for name in names:
        begin(name)
        runs[name] = run_on_market(
            job, by_name[name], market.record, notice_s=market.notice_s, usd_per_h=market.usd_per_h
        )
    return runs


def run_deadline(job: SpotJob, policy: Punctual, market: SpotMarket) -> RunResult:
    """So many samples in time, on demand where spot is too slow."""
    from sublet.sim.one_job import run_on_market

    on_demand_usd_per_h = policy.on_demand_usd_per_h
    return run_on_market(
        job, policy, market.record, usd_per_h=market.usd_per_h, on_demand_usd_per_h=on_demand_usd_per_h
    )


def run_frontier(job: SpotJob, market: SpotMarket) -> dict[str, RunResult]:
    """Liveput from the cheapest to the fastest, by the value of a sample in dollars."""
    from sublet.planning.objective import SpotPrices
    from sublet.sim.one_job import run_on_market
    from sublet.spot.liveput import Liveput
    from sublet.spot.measured import least_usd_per_sample

    least, runs = least_usd_per_sample(job, market.usd_per_h), {}
    for times in VALUES:
        money = SpotPrices(usd_per_sample=times * least, usd_per_h=market.usd_per_h)
        runs[f"liveput, value {times * least:.3g}"] = run_on_market(
            job, Liveput(money=money), market.record, notice_s=market.notice_s, usd_per_h=market.usd_per_h
        )
    return runs


# ---------------------------------------------------------------------- zones


def run_zones(markets: Sequence[SpotTrace], model: str, *, usd_per_h: float, hours: float | None) -> ZoneRuns:
    """Zones are chosen together with the grid."""
    from sublet.sim.many_zones import CHOICES, have_of, run_in_zones
    from sublet.sim.report.spot import ZoneRuns
    from sublet.spot.measured import measured_zoned_job
    from sublet.spot.zones import Links

    span_s = None if hours is None else hours * SECONDS_PER_H
    zones, have_T = have_of(markets, step_s=OFTEN_S, span_s=span_s)
    job = measured_zoned_job(model, zones, have_T, step_s=OFTEN_S, links=Links())
    most = {zone: max(have[place] for have in have_T) for place, zone in enumerate(zones)}
    least = job.job.least
    if max(most.values()) < least:
        raise _fits_nowhere(model, least, largest=max(most.values()), together=max(map(sum, have_T)))
    runs: dict[tuple[str, str], ZonedRunResult] = {
        ("all", name): run_in_zones(job, name, have_T, usd_per_h=usd_per_h) for name in CHOICES
    }
    for place, zone in enumerate(zones):
        only_T = [(have[place],) for have in have_T]
        here = measured_zoned_job(model, [zone], only_T, step_s=OFTEN_S, links=Links())
        runs[zone, "liveput"] = run_in_zones(here, "liveput", only_T, usd_per_h=usd_per_h)
    span_h = len(have_T) * OFTEN_S / SECONDS_PER_H
    return ZoneRuns(model=model, zones=zones, span_h=span_h, runs=runs, least=least, most=most)


def _fits_nowhere(model: str, least: int, *, largest: int, together: int) -> Infeasible:
    hint = "take a smaller model, or other traces ('sublet traces')"
    if together >= least:
        hint = f"leave --by-zone out: all zones together have up to {together}; or take a smaller model"
    what = f"{model} fits in no zone (a pipeline lies in one)"
    return Infeasible(what, binding="instances in the largest zone", needed=least, available=largest, hint=hint)
