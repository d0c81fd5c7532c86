"""SkyNomad (arXiv 2601.06520), rebuilt from the paper's text: none of its authors' code, and no claim to be as good.

The worth of an hour of progress is the price on demand times (pace that is needed) / (pace so far). A place is worth
that for the part of its expected life that is left after the cold start, less its price, less the carriage over that
life. How long a place lives is read from a virtual instance: every two hours a node of each place is asked for and
given back, which costs a minute of its price where it comes. It remembers what it saw, as its authors' scheduler does.

In one thing it departs from the text: it does not stop a node that trains once an hour is worth less than it costs.
With that rule it stopped and started again every few minutes, and cost up to 1.35 of the best on the tuning windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from sublet.domain.offer import Market
from sublet.domain.plan import Plan, Snapshot
from sublet.domain.units import SECONDS_PER_H
from sublet.policies.regions.places import Place
from sublet.policies.regions.policy import serve_by_place
from sublet.policies.regions.worth import Clock, last_call
from sublet_lab.studies.regions.scene import EGRESS_USD

PROBE_EVERY_S = 7200.0  # its default
STEP_S = 600.0  # between two of its decisions, where nothing happens
GIVEN_BACK_S = 1.0  # after a probe; a minute is paid


@dataclass(slots=True)
class VirtualInstance:
    """A place, as if a node of it had been held throughout."""

    since_s: float | None = None  # it was there at every look from then on; None = not at the last
    lives_h: list[float] = field(default_factory=list)

    def look(self, *, there: bool, now_s: float) -> None:
        """A node could be had, or not."""
        if there and self.since_s is None:
            self.since_s = now_s
        elif not there and self.since_s is not None:
            self.lives_h.append((now_s - self.since_s) / SECONDS_PER_H)
            self.since_s = None

    def expected_h(self, now_s: float, ahead_h: float) -> float:
        """How long it will live, of the hours ahead: Nelson-Aalen, given its age, and worse in a volatile time."""
        age_h = 0.0 if self.since_s is None else (now_s - self.since_s) / SECONDS_PER_H
        ages_h = sorted({life for life in self.lives_h if life > age_h})
        edges_h = [0.0, *(min(life - age_h, ahead_h) for life in ages_h), ahead_h]
        factor = self._volatility()
        steps = [math.exp(-factor * self._hazard(life)) for life in ages_h]
        survival = accumulate(steps, lambda alive, step: alive * step, initial=1.0)
        return sum(alive * (to - since) for alive, (since, to) in zip(survival, pairwise(edges_h), strict=True))

    def _hazard(self, life_h: float) -> float:
        """The share of those that lived so long that ended then."""
        at_risk = sum(life >= life_h for life in self.lives_h) + (self.since_s is not None)
        return self.lives_h.count(life_h) / at_risk

    def _volatility(self) -> float:
        """How many more ended of late than should have, over the span in which it is worst."""
        expected = [sum(self._hazard(knot) for knot in {*self.lives_h} if knot <= life) for life in self.lives_h[::-1]]
        return max((count / total for count, total in enumerate(accumulate(expected), 1) if total > 0), default=1.0)


@dataclass(slots=True)
class SkyNomad:
    """One of them for one job: it remembers."""

    probes: bool = True
    _seen: dict[str, VirtualInstance] = field(default_factory=dict)
    _refused: dict[str, int] = field(default_factory=dict)
    _next_probe_s: float = 0.0
    _now_s: float = 0.0

    def decide(self, snapshot: Snapshot) -> Plan:
        """A step of its Algorithm 1."""
        self._now_s = now_s = snapshot.now_s
        self._look(snapshot)
        plan = serve_by_place(snapshot, self._choose)
        again_s = min(now_s + STEP_S, math.inf if plan.ask_again_s is None else plan.ask_again_s)
        if not self.probes or now_s < self._next_probe_s:
            return replace(plan, ask_again_s=again_s)
        self._next_probe_s = now_s + PROBE_EVERY_S
        probed = {
            o: max(1, plan.hold.get(o, 0)) for o, s in snapshot.offers.items() if _is_spot(s.offer.market) and s.most
        }
        return replace(plan, hold={**plan.hold, **probed}, ask_again_s=now_s + GIVEN_BACK_S)

    def _look(self, snapshot: Snapshot) -> None:
        """Results of asking since the last look."""
        for offer_id, state in snapshot.offers.items():
            if not _is_spot(state.offer.market):
                continue
            virtual = self._seen.setdefault(state.offer.pool, VirtualInstance())
            if state.held > state.coming:
                virtual.look(there=True, now_s=self._now_s)
            elif state.refused != self._refused.get(offer_id, 0) and state.refused:
                virtual.look(there=False, now_s=self._now_s)
            self._refused[offer_id] = state.refused

    def _choose(self, places: Sequence[Place], here: Place | None, region: str, clock: Clock) -> Sequence[Place]:
        last = last_call(places, here, region, clock, EGRESS_USD)
        if last is not None:
            return [last]
        ahead_h = clock.left_h + clock.slack_h
        needed = clock.left_h / ahead_h
        begun_h = max(clock.pause_h, STEP_S / SECONDS_PER_H)  # more of each, so that it is a number at the start
        so_far = (clock.done_h + begun_h) / (clock.passed_h + begun_h)
        worth = min(place.usd_per_h for place in places if place.steady) * needed / so_far

        def utility(place: Place) -> float:
            if place is here or place.steady:
                return worth - place.usd_per_h
            lives_h = self._seen[place.shape.pool].expected_h(self._now_s, ahead_h)
            carriage = EGRESS_USD if region and place.region != region else 0.0
            return worth * max(0.0, lives_h - place.pause_h) / lives_h - place.usd_per_h - carriage / lives_h

        least = 0.0 if here is None else max(0.0, utility(here))
        better = sorted((p for p in places if p is not here and p.has_room and utility(p) > least), key=utility)[::-1]
        return better if here is None else [*better, here]


def _is_spot(market: Market) -> bool:
    return market is Market.SPOT
