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
    from sublet_lab.rides.deadline import Punctual
    from sublet_lab.rides.many_zones import ZonedRunResult, ZoneRuns
    from sublet_lab.rides.record import Record
    from sublet_lab.rides.ride import RideResult, Supply

VALUES = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)  # of a sample, as multiples of what it costs at the least
BOUNDS = frozenset({"oracle", "ideal", "parcae-truth"})  # they know the future, and need no notice of it
OFTEN_S = 300.0  # between decisions where zones are chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    """Supply, price, and notice of a spot market.

    `record` has all zones together, for policies with foresight; `supply` has each.
    """

    record: Record
    supply: Supply
    usd_per_h: float
    notice_s: float = 0.0
    seed: int = 0


def market_of(trace: SpotTrace, record: Record, *, most: int, usd_per_h: float, notice_s: float) -> SpotMarket:
    """Zones are offers of one pool, of which at most so many are held."""
    from sublet.domain.quantity import at_least
    from sublet_lab.rides.ride import Supply

    at_least("--notice", notice_s, 0.0)
    supply = Supply.of_trace(trace, most=most, ends_s=record.span_s)
    return SpotMarket(record=record, supply=supply, usd_per_h=usd_per_h, notice_s=notice_s)


def run_policies(
    job: SpotJob,
    names: Sequence[str],
    market: SpotMarket,
    *,
    usd_per_sample: float | None,
    begin: Callable[[str], None],
) -> dict[str, RideResult]:
    """Each policy over the record; with the value of a sample, liveput weighs it against the rent."""
    from sublet_lab.rides.bamboo import replay_bamboo
    from sublet_lab.rides.ride import ride
    from sublet_lab.rides.ways import way_of

    runs = {}
    for name in names:
        begin(name)
        if name == "bamboo":
            runs[name] = replay_bamboo(job, market.record, usd_per_h=market.usd_per_h)
        elif name == "liveput" and usd_per_sample is not None:
            runs[name] = _ride_for_money(job, market, usd_per_sample)
        else:
            way = way_of(name, job, market.record)
            usd_per_h, notice_s = market.usd_per_h, 0.0 if name in BOUNDS else market.notice_s
            runs[name] = ride(job, way, market.supply, notice_s=notice_s, usd_per_h=usd_per_h, seed=market.seed)
    return runs


def _ride_for_money(job: SpotJob, market: SpotMarket, usd_per_sample: float) -> RideResult:
    """Instances that were given back take their time to boot again."""
    from sublet.policies.liveput.policy import Liveput
    from sublet_lab.rides.ride import BOOT_S, Way, ride

    way, usd_per_h, notice_s = Way(Liveput(usd_per_sample)), market.usd_per_h, market.notice_s
    return ride(job, way, market.supply, notice_s=notice_s, usd_per_h=usd_per_h, boot_s=BOOT_S, seed=market.seed)


def run_deadline(job: SpotJob, plan: Punctual, market: SpotMarket) -> RideResult:
    """So many samples in time, on demand where spot is too slow."""
    from sublet_lab.rides.deadline import replay_punctual

    return replay_punctual(job, plan, market.record)


def run_frontier(job: SpotJob, market: SpotMarket) -> dict[str, RideResult]:
    """Liveput from the cheapest to the fastest, by the value of a sample in dollars."""
    from sublet.perf.parcae import least_usd_per_sample

    least, runs = least_usd_per_sample(job, market.usd_per_h), {}
    for times in VALUES:
        runs[f"liveput, value {times * least:.3g}"] = _ride_for_money(job, market, times * least)
    return runs


# ---------------------------------------------------------------------- zones


def run_zones(markets: Sequence[SpotTrace], model: str, *, usd_per_h: float, hours: float | None) -> ZoneRuns:
    """Zones are chosen together with the grid."""
    from sublet_lab.rides.many_zones import CHOICES, ZoneRuns, have_of, measured_zoned_job, run_in_zones
    from sublet_lab.rides.zones import Links

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
