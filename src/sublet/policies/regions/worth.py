"""The price of an hour of waiting, the place for the least money, and when nothing but a node on demand will do.

A job has slack: the time to its deadline less the work that is left. Training uses none of it up, in whatever place;
only waiting and pauses do. With much slack an hour of it is worth next to nothing, and with little more than on demand
costs over spot: in between its price falls by e with every so many hours. A job that could be somewhere now may know
better places where nothing is to be had. It waits for those as long as the slack that this is likely to take is worth
less than it saves. The longer they have had nothing, the longer that is likely to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sublet.domain.plan import JobState
from sublet.domain.units import SECONDS_PER_H
from sublet.policies.regions.places import Place

# Chosen on the tuning windows of `sublet study regions`.
SLACK_H = 4.0  # of slack, by which the price of an hour of it falls by e
PAUSES = 5.0  # of slack, that are the last: for going on demand, and for coming back
LAST = 2.0  # worth of an hour of that, as a share of the extra cost of on demand
CARE_H = 1.0 / 3600.0  # by which a decision may come late


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How a job stands with its deadline; infinite where it has none."""

    slack_h: float  # on the place on demand that is done first: the time to the deadline less the work that is left
    left_h: float = 0.0  # of work, there
    done_h: float = 0.0  # of work, as it would have taken there
    passed_h: float = 0.0  # since the job came
    at_risk_h: float = 0.0  # of work that may be lost with a node, now or later
    pause_h: float = 0.0  # before it trains there

    @property
    def is_last_call(self) -> bool:
        """Whether a job that waits now, or starts on spot and loses it, may be late."""
        return self.slack_h <= 2.0 * self.pause_h + self.at_risk_h + CARE_H

    @property
    def must_be_steady(self) -> bool:
        """Whether a job that trains on spot now, and loses it, may be late."""
        return self.slack_h <= self.pause_h + self.at_risk_h + CARE_H

    @property
    def waits_h(self) -> float:
        """Until the last call."""
        return max(0.0, self.slack_h - 2.0 * self.pause_h - self.at_risk_h)


def clock_of(state: JobState, places: Sequence[Place], now_s: float) -> Clock:
    """By the place on demand that is done first; by any, where there is none."""
    job = state.job
    if job.deadline_s is None or not places:
        return Clock(slack_h=math.inf)
    safe = min(places, key=lambda place: (not (place.steady and place.has_room), place.left_h + place.pause_h))
    done = state.done_at(now_s)
    done_h = safe.left_h * done / (job.work - done) if done < job.work < math.inf else 0.0
    return Clock(
        slack_h=(job.deadline_s - now_s) / SECONDS_PER_H - safe.left_h,
        left_h=safe.left_h,
        done_h=done_h,
        passed_h=(now_s - job.submit_s) / SECONDS_PER_H,
        at_risk_h=min(job.checkpoint_every_s / SECONDS_PER_H, done_h + safe.left_h),
        pause_h=safe.pause_h,
    )


def choose(places: Sequence[Place], here: Place | None, region: str, clock: Clock, egress_usd: float) -> list[Place]:
    """Where to be, the best first, up to where it is: those before are to be asked for a node. None at all = wait.

    `region` is where the state of the job lies, "" as long as there is none.
    """
    last = last_call(places, here, region, clock, egress_usd)
    if last is not None:
        return [last]
    hours = _Hours(places, clock, region, egress_usd)
    order = sorted((place for place in places if place is not here), key=hours.start_usd)
    if here is not None:
        return [*(place for place in order if place.has_room and hours.start_usd(place) < hours.stay_usd(here)), here]
    return [place for at, place in enumerate(order) if place.has_room and hours.is_worth(place, order[:at])]


def last_call(
    places: Sequence[Place], here: Place | None, region: str, clock: Clock, egress_usd: float
) -> Place | None:
    """Where it has to be, so that it is in time whatever is lost; None = there is time for a choice."""
    if not clock.is_last_call:
        return None
    if here is not None and (here.steady or not clock.must_be_steady or clock.slack_h < clock.pause_h):
        return here  # it trains; there is no time for another pause but the last, or not even for that
    steady = [place for place in places if place.steady and place.has_room]
    cost = _Hours(places, clock, region, egress_usd).to_the_end_usd
    return min(steady, key=cost, default=None)


class _Hours:
    """The cost of an hour of work in each place: of an hour of the place where it goes fastest."""

    def __init__(self, places: Sequence[Place], clock: Clock, region: str, egress_usd: float) -> None:
        self._places, self._clock, self._region, self._egress_usd = places, clock, region, egress_usd
        self._least_h = min((place.left_h for place in places), default=0.0)
        self._slack_usd = self._price_of_slack()

    def rent_usd(self, place: Place) -> float:
        """While it trains."""
        return place.usd_per_h * self._pace(place)

    def stay_usd(self, place: Place) -> float:
        """With what follows losses: a pause, and a move out of the region where none of its neighbours is there."""
        if not place.lost_per_h:
            return self.rent_usd(place)
        neighbours = (p for p in self._places if p.region == place.region and not p.steady and p is not place)
        alone = math.prod(1.0 - each.up for each in neighbours)
        loss_usd = place.pause_h * (place.usd_per_h + self._slack_usd) + alone * self._egress_usd
        return (place.usd_per_h + place.lost_per_h * loss_usd) * self._pace(place)

    def start_usd(self, place: Place) -> float:
        """With what it takes to get there, over the hours that it is likely to last."""
        stays_h = place.left_h if not place.lost_per_h else min(place.left_h, 1.0 / place.lost_per_h)
        return self.stay_usd(place) + self._once_usd(place) / max(stays_h, CARE_H) * self._pace(place)

    def is_worth(self, place: Place, better: Sequence[Place]) -> bool:
        """Whether to be there until a better one comes costs less than the slack that waiting for it would take."""
        if not better or math.isinf(self._clock.slack_h):
            return True
        best, waits_h = better[0], 1.0 / sum(1.0 / each.back_h for each in better)
        dearer_usd = (self.stay_usd(place) - self.stay_usd(best)) * min(waits_h, place.left_h)
        return dearer_usd + self._once_usd(place) - self._once_usd(best) <= self._slack_usd * waits_h

    def to_the_end_usd(self, place: Place) -> float:
        """All of it, in a place that lasts."""
        return place.usd_per_h * (place.left_h + place.pause_h) + self._egress(place)

    def _price_of_slack(self) -> float:
        """Of an hour of it."""
        steady = min((self.rent_usd(place) for place in self._places if place.steady), default=0.0)
        spot = min((self.rent_usd(place) for place in self._places if not place.steady), default=steady)
        over_h = self._clock.slack_h - PAUSES * self._clock.pause_h
        return LAST * max(0.0, steady - spot) * math.exp(-max(0.0, over_h) / SLACK_H)

    def _once_usd(self, place: Place) -> float:
        return place.pause_h * (place.usd_per_h + self._slack_usd) + self._egress(place)

    def _pace(self, place: Place) -> float:
        return place.left_h / self._least_h if self._least_h else 1.0

    def _egress(self, place: Place) -> float:
        return self._egress_usd if self._region and place.region != self._region else 0.0
