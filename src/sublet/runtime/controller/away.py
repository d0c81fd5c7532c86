"""Back after longer than a lease: what was rented then has ended, and is charged no further than it can have lived.

An agent that hears nothing of its controller for a lease ends itself and its node. So nodes whose agents do not come
back have been gone since then at the latest, whatever the clocks say; where the provider has a record of its own, that
is what counts. The kernel hears of these ends at their own time and before anything else: had it first heard of today,
all the time in between would look like rent. So with prices: each counts from when it began, not from when somebody was
there again to hear of it.

After a boot of this machine the time away was read from a wall clock. Then an agent that does come back proves that no
lease has passed, and that the clock is wrong; one that comes for the first time proves nothing, nor does one that was
there in time and whose provider took long to answer. So does a provider's record of an end that comes after all that
was leased has ended: by the same clock it has everything too late, and by as much. A time that was measured is believed
whoever comes: agents stay longer than their lease where they slept themselves, or where controllers came and went
without leaving a mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Iterable
from dataclasses import replace

from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.kernel.cluster import NodePhase
from sublet.runtime.clock import Clock
from sublet.runtime.controller.besides import nothing_wanted
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.leases import Leases
from sublet.runtime.controller.pump import Pump
from sublet.runtime.controller.table import JobTable
from sublet.runtime.controller.timekeeping import MARK_EVERY_S

__all__ = ["Absence", "latest_end_s", "old_prices_first"]

CONFIRMED_WITHIN_S = 30.0  # wall, for the provider to say that they are gone; what takes longer is charged until then
LEASED = (NodePhase.READY, NodePhase.NOTICED)  # its agent has heard of the lease; one that boots has time of its own

End = news.NodeLost | news.NodeReleased | news.RentRefused


class Absence:
    """What is left of what an earlier controller held; its nodes have ended themselves at `latest_s` at the latest."""

    def __init__(
        self,
        pump: Pump,
        *,
        table: JobTable,
        leases: Leases,
        agents: Collection[str],
        clock: Clock,
        latest_s: float,
        agents_come_back_s: float,
    ) -> None:
        self._pump, self._table, self._leases, self._agents = pump, table, leases, agents
        self._clock, self._latest_s, self._agents_come_back_s = clock, latest_s, agents_come_back_s
        self._came_s = clock.now_s()  # agents may speak from now on

    @property
    def was_too_long(self) -> bool:
        """Something was rented, and cannot have lived until now."""
        return bool(self._pump.kernel.cluster.nodes) and self._clock.now_s() > self._latest_s

    async def settle(self, before: list[Event], first: list[Event]) -> None:
        """Find out what is left; the kernel hears nothing till then: then `before`, of every end, and `first`."""
        await self.wait_for_agents()
        kernel = self._pump.kernel
        nodes = kernel.cluster.nodes
        survivors = any(node_id in self._agents for node_id in nodes)
        leased = any(node.id in self._agents for node in nodes.values() if node.phase in LEASED)
        if leased and not self._clock.certain and self._came_s > self._latest_s:
            self._set_back(self._came_s - self._latest_s, "agents are back that end with their lease")
        gone = [node_id for node_id in nodes if node_id not in self._agents]
        leased_gone = [node_id for node_id in gone if nodes[node_id].phase in LEASED]
        if gone:
            ending = [asyncio.ensure_future(self._leases.release_lost(node_id)) for node_id in gone]
            await asyncio.wait(ending, timeout=CONFIRMED_WITHIN_S)
        ahead_s = 0.0 if self._clock.certain else self._ahead_s(leased_gone)
        if ahead_s > 0.0:
            self._set_back(ahead_s, "nodes that end with their lease ended later, on record")
        now_s = self._pump.now_s()
        jobs = {job_id for node_id in gone for job_id in nodes[node_id].jobs}
        # Nobody was there to want another node in place of one that ended; what is wanted today, a plan will say.
        before = [*([] if survivors else [nothing_wanted(kernel, kernel.now_s)]), *before]
        offers = kernel.supply.offers
        self._pump.hear_first(lambda told: [*before, *_ends_first(told, first, now_s, self._latest_s, offers)])
        for job_id in jobs & kernel.jobs.keys():  # nobody is left who trains it
            state, placement = kernel.jobs[job_id], kernel.tenancy.placement.get(job_id, ())
            if not any(node_id in self._agents for node_id, _ in placement):
                group = self._table.records[job_id].group
                group.adopt(state.generation, placement, state.batch, trains=False, wall_s=self._clock.wall.monotonic())

    def _ahead_s(self, leased: Container[str]) -> float:
        """By how much the clock is ahead, as records of these nodes show: at least so that all ended with their lease.

        At most so that none began before its order: an agent that slept may have outlived its lease.
        """
        lived = [
            (event.node_id, event.billed_from_s, event.billed_to_s)
            for event in self._pump.waiting
            if isinstance(event, news.NodeLost | news.NodeReleased) and event.node_id in leased
        ]
        late_s = [to_s - self._latest_s for _, _, to_s in lived if to_s is not None]
        ordered_s = self._pump.kernel.ledger.ordered_s
        most_s = [from_s - (ordered_s(node_id) or 0.0) for node_id, from_s, _ in lived if from_s is not None]
        return min(max(late_s, default=0.0), min(most_s, default=0.0))

    def _set_back(self, by_s: float, why: str) -> None:
        """What took us time did pass; what was told meanwhile is as much too late as the clock was."""
        self._clock.set_back(self._clock.now_s() - by_s)
        self._pump.set_back(by_s)
        self._pump.note(HistoryRow(kind="Alarm", text=f"{why}: the clock was set forward, and is not believed"))

    async def wait_for_agents(self) -> None:
        """Until all have come, or long enough."""
        deadline = self._clock.wall.monotonic() + self._agents_come_back_s
        while self._clock.wall.monotonic() < deadline and self.silent():  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(0.05)

    def silent(self) -> list[str]:
        """Nodes that are in use as far as the kernel knows, and whose agents have not come."""
        nodes = self._pump.kernel.cluster.nodes
        return [node.id for node in nodes.values() if node.phase in LEASED and node.id not in self._agents]


def latest_end_s(last_sign_s: float, lease_s: float, speedup: float) -> float:
    """The cloud time at which nodes of a controller that was last seen then have ended themselves."""
    return last_sign_s + (MARK_EVERY_S + lease_s) * speedup


def old_prices_first(told: Iterable[Event], first: Iterable[Event], known: Container[str]) -> list[Event]:
    """What was told until now: prices, each at the time from which it counts, then `first`, then all the rest."""
    told = list(told)
    prices = [event for event in told if isinstance(event, news.PriceChanged) and event.offer_id in known]
    rest = [event for event in told if event not in prices]
    return [*sorted(prices, key=lambda event: event.at_s), *first, *rest]


def _ends_first(
    told: list[Event], first: list[Event], now_s: float, latest_s: float, known: Container[str]
) -> list[Event]:
    """What was told until now, prices and the ends of nodes at the time when they were, in front of all the rest."""
    ends: dict[str, End] = {}
    prices: list[Event] = []
    rest: list[Event] = [*first]
    for event in told:
        if isinstance(event, news.PriceChanged) and event.offer_id in known:
            prices.append(replace(event, at_s=min(event.at_s, now_s)))
        elif not isinstance(event, End):
            rest.append(replace(event, at_s=min(event.at_s, now_s)))
        elif event.node_id not in ends or getattr(event, "billed_to_s", None) is not None:
            recorded_s = getattr(event, "billed_to_s", None)
            at_s = latest_s if recorded_s is None else recorded_s
            ends[event.node_id] = replace(event, at_s=min(at_s, now_s))
    return [*sorted([*prices, *ends.values()], key=lambda event: event.at_s), *rest]
