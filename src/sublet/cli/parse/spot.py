"""From the options of `sublet spot` to policies, a job, dollars, a deadline and a record of instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sublet.cli.parse.values import parse_dollars, parse_duration_s
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible, InvalidValue, UnknownName

if TYPE_CHECKING:
    from sublet.market.spot import SpotTrace
    from sublet.perf.grids import SpotJob
    from sublet.sim.rides.deadline import Punctual
    from sublet.sim.rides.record import Record

__all__ = [
    "POLICIES",
    "check_hours",
    "deadline_policy",
    "find_job",
    "find_record",
    "parse_policies",
    "parse_usd",
    "refuse_beside_zones",
    "refuse_too_few",
]

POLICIES = ("liveput", "parcae", "greedy-live", "checkpoint-restart", "bamboo", "oracle", "ideal", "parcae-truth")
NUMBERS = ("nan", "inf", "-inf")  # no price: refused as numbers, not as texts


def parse_policies(text: str) -> list[str]:
    """`liveput,oracle`, or `all`."""
    names = list(POLICIES) if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise UnknownName("spot policy", name, POLICIES)
    if len(set(names)) < len(names):
        raise InvalidValue("--policy", text, "without a policy twice")
    return names


def parse_usd(option: str, text: str, *, least: float | None = None) -> float:
    """Dollars of at least `least`; without it, above 0."""
    from sublet.domain.quantity import at_least, positive

    if (word := text.strip().lower()) in NUMBERS:
        usd = float(word)
    else:
        usd = parse_dollars(option, text, allowed="dollars, such as 0.9 or 2e-5")
    if least is None:
        positive(option, usd)
    else:
        at_least(option, usd, least)
    return usd


def find_job(model: str) -> SpotJob:
    """A model that was measured."""
    from sublet.perf.parcae import PARCAE_MODELS, measured_job

    if model not in PARCAE_MODELS:
        raise UnknownName("spot model", model, PARCAE_MODELS)
    return measured_job(model)


def refuse_too_few(job: SpotJob, most: int) -> None:
    """A model that does not fit on as many instances as may be taken would never train."""
    from sublet.domain.quantity import whole

    whole("--most", most, 1)
    if most < job.least:
        hint = f"--most {job.least} or more, or a smaller model (--model)"
        raise Infeasible(f"{job.name} cannot run", binding="--most", needed=job.least, available=most, hint=hint)


def find_record(market: SpotTrace, zone: str | None, *, most: int, hours: float | None) -> tuple[SpotTrace, Record]:
    """The trace, or one zone of it, and its instances at every minute and change, all zones together."""
    from dataclasses import replace

    from sublet.sim.rides.record import record_of

    if zone is not None:
        if zone not in market.zones:
            raise UnknownName("zone", zone, market.zones)
        end_s = market.end_s[zone]
        market = replace(market, series={zone: market.series[zone]}, end_s={zone: end_s}, span_s=end_s)
    if hours is not None:
        check_hours(hours, [market])
    ticks = None if hours is None else max(1, round(hours * 60.0))
    return market, record_of(market, most=most, ticks=ticks)


def check_hours(hours: float, markets: Sequence[SpotTrace]) -> None:
    """Nothing is known of the time after the record, so nothing is said of it."""
    from sublet.domain.quantity import positive

    positive("--hours", hours)
    recorded_h = min(market.span_s for market in markets) / SECONDS_PER_H
    if hours > recorded_h + 0.01:  # the figure is printed with two digits
        shortest = min(markets, key=lambda market: market.span_s).name
        raise InvalidValue("--hours", hours, f"within the record: {shortest} has {recorded_h:.2f} hours")


def deadline_policy(
    deadline: str | None, samples: float | None, *, usd_per_h: float, on_demand_usd_per_h: float
) -> Punctual | None:
    """The work and its deadline, if given."""
    from sublet.domain.quantity import positive
    from sublet.sim.rides.deadline import Punctual

    if deadline is None and samples is None:
        return None
    if deadline is None or samples is None:
        missing = "--deadline" if deadline is None else "--samples"
        raise InvalidValue(missing, None, "given: a deadline is so many --samples within --deadline")
    positive("--samples", samples)
    within_s = parse_duration_s("--deadline", deadline, allowed="a duration above 0, such as 8h, 90m or 1h30m")
    return Punctual(samples=samples, within_s=within_s, usd_per_h=usd_per_h, on_demand_usd_per_h=on_demand_usd_per_h)


def refuse_beside_zones(given: Mapping[str, object]) -> None:
    """Zones go with no other question so far."""
    also = [name for name, value in given.items() if value]
    if also:
        raise InvalidValue("--by-zone", True, f"without {', '.join(also)}")
