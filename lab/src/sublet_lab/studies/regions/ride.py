"""One window under one policy, through the kernel: what it paid, for what, and whether it was in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.offer import Offer
from sublet.domain.plan import Policy
from sublet.domain.units import SECONDS_PER_H
from sublet.sim.simulator import simulate
from sublet_lab.studies.regions.itinerary import cheapest_itinerary
from sublet_lab.studies.regions.scene import EGRESS_USD, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Dollars are what the ledger says, and the carriage of state between regions."""

    usd: float
    egress_usd: float
    probes_usd: float  # for nodes that were given back without the job having been on them
    in_time: bool
    starts: int
    places: tuple[str, ...]  # offers, in the order of starts


def best_usd(window: Window) -> float:
    """The least that it could have cost, had all been known."""
    scene, (open_TP, cost_TP, carry_SP) = window.scene, window.places()
    work, pause = round(window.work_s / scene.unit_s), round(scene.restart_s / scene.unit_s)
    return cheapest_itinerary(open_TP, cost_TP, carry_SP, work=work, pause=pause)


def ride(window: Window, policy: Policy, *, pools: tuple[str, ...] = ()) -> Outcome:
    """Simulate it; `pools` is where the job may run, () = anywhere."""
    cloud = window.cloud()
    watch = _Watch({offer.id: offer for offer in cloud.offers})
    run = simulate([window.job_in(pools)], policy, cloud, watch=watch, keep_segments=False, until_s=window.within_s)
    regions = [watch.offers[offer_id].region for offer_id in watch.places]
    egress_usd = EGRESS_USD * sum(was != now for was, now in pairwise(regions))
    return Outcome(
        usd=run.metrics.usd + egress_usd,
        egress_usd=egress_usd,
        probes_usd=watch.probes_usd,
        in_time=not run.unfinished,
        starts=len(watch.places),
        places=tuple(watch.places),
    )


@dataclass(slots=True)
class _Watch:
    """Hears every event and the orders that follow."""

    offers: dict[str, Offer]
    places: list[str] = field(default_factory=list)
    probes_usd: float = 0.0
    _node: dict[str, tuple[str, float]] = field(default_factory=dict)  # node -> offer, since when
    _used: set[str] = field(default_factory=set)

    def __call__(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, news.NodeReleased) and event.node_id not in self._used:
            offer_id, since_s = self._node[event.node_id]
            offer = self.offers[offer_id]
            paid_s = max(event.at_s - since_s, offer.minimum_billing_s)
            self.probes_usd += offer.price.usd_per_h * paid_s / SECONDS_PER_H
        for action in actions:
            if isinstance(action, order.RentNode):
                self._node[action.node_id] = (action.offer_id, event.at_s)
            elif isinstance(action, order.StartJob | order.ResizeJob):
                node_ids = [node_id for node_id, _ in action.placement]
                self._used.update(node_ids)
                self.places.append(self._node[node_ids[0]][0])
