"""The ledger of leases: every held node, at every price, to the grain.

Each offer has a meter: what one node would have cost since the meter began. A lease costs the difference of two
readings, so a price change is one update however many nodes are held, and the bill so far is a sum over offers. A price
that is heard late counts from when it began: what was opened or closed since is billed anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.domain.budget import Budget
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.offer import Offer
from sublet.kernel.values_json import from_plain, to_plain

REMEMBERED = 50  # leases that have ended, in a snapshot: what is shown of nodes that went lately


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One node from order to end; `end_us` is None while it is held."""

    node_id: str
    offer_id: str
    start_us: int
    end_us: int | None = None
    cost: Money = Money()  # final once it has ended
    last_price: Price = Price(0)  # in force when it ended: what the rest of a minimum is charged at
    minimum_us: int = 0  # shorter is charged as this, by the minimum or by begun intervals; of a lease that has ended
    void: bool = False  # the cloud refused it: never ours, never paid


class _Meter:
    """The cost of one node of one offer since the beginning, and the readings at which open leases began."""

    __slots__ = ("by_us", "minimum_us", "open_count", "open_readings", "price", "read_us", "reading", "touched_us")

    def __init__(self, price: Price, minimum_us: int, by_us: int = 0) -> None:
        self.price, self.minimum_us, self.by_us = price, minimum_us, by_us
        self.reading = 0  # grains, as of read_us
        self.read_us = 0
        self.open_count = 0
        self.open_readings = 0  # sum over open leases
        self.touched_us = 0  # when the last lease was opened, or ended

    def charged_us(self, held_us: int) -> int:
        """The billed time of a lease of this length, at the least."""
        begun_us = -(-held_us // self.by_us) * self.by_us if self.by_us else 0
        return max(self.minimum_us, begun_us)

    def at(self, now_us: int) -> int:
        return self.reading + self.price.micro_usd_per_h * (now_us - self.read_us)


class Ledger:
    """Opens and closes leases; never forgets one."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self.prices: dict[str, list[tuple[int, Price]]] = {o.id: [(0, o.price)] for o in offers}  # (from when, price)
        self._meters = {
            o.id: _Meter(o.price, microseconds(o.minimum_billing_s), microseconds(o.billed_by_s)) for o in offers
        }
        self._believed: dict[str, Price] = {}  # where another price is charged than the one that is believed
        self._open: dict[str, tuple[str, int, int]] = {}  # node -> offer, start, meter reading at start
        self._closed_grains = 0
        self.forgotten_grains = 0  # of leases that ended before the snapshot which this ledger began with
        self._aim, self._aim_since_us, self._allowed_grains = 0, 0, 0
        self._besides, self._besides_since_us, self._besides_grains = 0, 0, 0
        self.closed: list[Lease] = []
        self.billed_anew = 0  # leases that had ended
        self._final_us = 0  # no lease that ended until then is billed anew

    def open(self, node_id: str, offer_id: str, at_s: float) -> None:
        """A node is paid for from now on: a cloud charges for boot time too."""
        meter, now_us = self._meters[offer_id], microseconds(at_s)
        reading = meter.at(now_us)
        self._open[node_id] = (offer_id, now_us, reading)
        meter.open_count += 1
        meter.open_readings += reading
        meter.touched_us = max(meter.touched_us, now_us)

    def close(
        self, node_id: str, at_s: float, *, billed_from_s: float | None = None, billed_to_s: float | None = None
    ) -> Money:
        """The node is no longer paid for; the rest of a minimum or of a begun interval is charged at the last price.

        If the cloud says what it charges for, that is what counts, within the time from our order to now.
        """
        offer_id, start_us, begun = self._open.pop(node_id)
        meter, now_us = self._meters[offer_id], microseconds(at_s)
        cost, price, end_us = meter.at(now_us) - begun, meter.price, now_us
        if billed_from_s is not None or billed_to_s is not None:
            if billed_from_s is not None:
                start_us = min(max(start_us, microseconds(billed_from_s)), now_us)
            if billed_to_s is not None:
                end_us = min(max(start_us, microseconds(billed_to_s)), now_us)
            cost, price = self.between(offer_id, start_us, end_us)
        charged_us = meter.charged_us(end_us - start_us)
        cost += price.micro_usd_per_h * max(0, charged_us - (end_us - start_us))
        lease = Lease(
            node_id=node_id,
            offer_id=offer_id,
            start_us=start_us,
            end_us=end_us,
            cost=Money(cost),
            last_price=price,
            minimum_us=charged_us,
        )
        return self._settle(meter, begun, lease)

    def between(self, offer_id: str, start_us: int, end_us: int) -> tuple[int, Price]:
        """Grains of one node for a time that is over, and the price at its end. O(changes of the price since)."""
        grains, until_us, last = 0, end_us, None
        for since_us, price in reversed(self.prices[offer_id]):
            if since_us <= end_us and last is None:
                last = price
            grains += price.micro_usd_per_h * max(0, until_us - max(since_us, start_us))
            until_us = min(until_us, since_us)
            if since_us <= start_us:
                break
        return grains, last or self.prices[offer_id][0][1]

    def void(self, node_id: str, at_s: float) -> None:
        """The node was never ours: nothing is paid."""
        offer_id, start_us, begun = self._open.pop(node_id)
        end_us = microseconds(at_s)
        lease = Lease(node_id=node_id, offer_id=offer_id, start_us=start_us, end_us=end_us, void=True)
        self._settle(self._meters[offer_id], begun, lease)

    def reprice(self, offer_id: str, price: Price, at_s: float) -> None:
        """From then on nodes of this offer cost `price`, beyond doubt; but not from before the price of until now."""
        self._believed.pop(offer_id, None)
        self._charge(offer_id, price, at_s)

    def doubt(self, offer_id: str, price: Price, at_s: float) -> None:
        """From now on nodes of this offer may cost `price`: the worse of it and of what is believed is charged."""
        believed = self._believed.setdefault(offer_id, self.price(offer_id))
        self._charge(offer_id, max(believed, price), at_s)

    def _charge(self, offer_id: str, price: Price, at_s: float) -> None:
        meter = self._meters[offer_id]
        since_us = max(microseconds(at_s), meter.read_us, self._final_us)
        more = price.micro_usd_per_h - meter.price.micro_usd_per_h
        meter.reading, meter.read_us, meter.price = meter.at(since_us), since_us, price
        self.prices[offer_id].append((since_us, price))
        if meter.touched_us > since_us:
            self._bill_anew(offer_id, meter, since_us, more)

    def _bill_anew(self, offer_id: str, meter: _Meter, since_us: int, more: int) -> None:
        """Bill anew all that was opened or has ended since then, at a price that is `more` than was believed.

        O(nodes held).
        """
        for node_id, (offer, start_us, begun) in self._open.items():
            if offer == offer_id and start_us > since_us:
                late = more * (start_us - since_us)
                self._open[node_id] = (offer, start_us, begun + late)
                meter.open_readings += late
        for index in range(max(0, len(self.closed) - REMEMBERED), len(self.closed)):
            lease = self.closed[index]
            if lease.offer_id == offer_id and not lease.void and (lease.end_us or 0) > since_us:
                self.closed[index] = self._at_other_prices(lease)
                self._closed_grains += self.closed[index].cost.grains - lease.cost.grains
                self.billed_anew += 1

    def _at_other_prices(self, lease: Lease) -> Lease:
        end_us = lease.end_us or 0
        cost, price = self.between(lease.offer_id, lease.start_us, end_us)
        cost += price.micro_usd_per_h * max(0, lease.minimum_us - (end_us - lease.start_us))
        return replace(lease, cost=Money(cost), last_price=price)

    def offer(self, offer: Offer, at_s: float) -> None:
        """From now on this offer is known, or its bill has another minimum."""
        now_us = microseconds(at_s)
        minimum_us, by_us = microseconds(offer.minimum_billing_s), microseconds(offer.billed_by_s)
        if offer.id in self._meters:
            self._meters[offer.id].minimum_us, self._meters[offer.id].by_us = minimum_us, by_us
            return
        self.prices[offer.id] = [(now_us, offer.price)]
        meter = self._meters[offer.id] = _Meter(offer.price, minimum_us, by_us)
        meter.read_us = now_us

    def price(self, offer_id: str) -> Price:
        """The price that is charged today."""
        return self._meters[offer_id].price

    def believed(self, offer_id: str) -> Price:
        """Today's price for planning: a price that is doubted is charged, and not believed."""
        return self._believed.get(offer_id, self._meters[offer_id].price)

    def spent(self, at_s: float) -> Money:
        """The bill so far, open leases up to now."""
        now_us = microseconds(at_s)
        running = sum(m.open_count * m.at(now_us) - m.open_readings for m in self._meters.values() if m.open_count)
        return Money(self._closed_grains + running + self.besides(at_s).grains)

    def follow(self, budget: Budget, at_s: float) -> None:
        """From now on this much is to be spent per hour, and so much is paid whether nodes are held or not."""
        now_us, aim = microseconds(at_s), budget.average
        self._allowed_grains += self._aim * (now_us - self._aim_since_us)
        self._aim, self._aim_since_us = 0 if aim is None else aim.micro_usd_per_h, now_us
        self._besides_grains = self.besides(at_s).grains
        self._besides, self._besides_since_us = budget.besides.micro_usd_per_h, now_us

    def besides(self, at_s: float) -> Money:
        """Money paid for no node, as for a controller host."""
        return Money(self._besides_grains + self._besides * (microseconds(at_s) - self._besides_since_us))

    def allowed(self, at_s: float) -> Money:
        """The sum of the aims so far."""
        return Money(self._allowed_grains + self._aim * (microseconds(at_s) - self._aim_since_us))

    def burn(self) -> Price:
        """The cost of an hour at today's prices with what is held now."""
        return Price(sum(m.open_count * m.price.micro_usd_per_h for m in self._meters.values()))

    def outflow(self) -> Price:
        """The same with what is paid besides nodes: how fast the budget empties."""
        return Price(self._besides + self.burn().micro_usd_per_h)

    def ordered_s(self, node_id: str) -> float | None:
        """Since when a node is being paid for, as far as we know; None if it is not."""
        return self._open[node_id][1] / 1e6 if node_id in self._open else None

    def open_leases(self) -> list[Lease]:
        """Leases that are being paid for now."""
        return [Lease(node_id=n, offer_id=o, start_us=s) for n, (o, s, _) in self._open.items()]

    def _settle(self, meter: _Meter, begun: int, lease: Lease) -> Money:
        meter.open_count -= 1
        meter.open_readings -= begun
        meter.touched_us = max(meter.touched_us, lease.end_us or 0)
        self._closed_grains += lease.cost.grains
        self.closed.append(lease)
        if len(self.closed) > REMEMBERED:
            self._final_us = max(self._final_us, self.closed[-REMEMBERED - 1].end_us or 0)
        return lease.cost

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """All that a later ledger needs; of what is long over, the sum."""
        kept = self.closed[-REMEMBERED:]
        starts_us = [lease.start_us for lease in kept] + [start_us for _, start_us, _ in self._open.values()]
        earliest_us = min(starts_us, default=None)
        return {
            "prices": {
                offer_id: to_plain(changes[_first_needed(changes, earliest_us) :])
                for offer_id, changes in self.prices.items()
            },
            "meters": {
                offer_id: [m.price.micro_usd_per_h, m.minimum_us, m.reading, m.read_us, m.by_us]
                for offer_id, m in self._meters.items()
            },
            "believed": to_plain(self._believed),
            "open": to_plain(self._open),
            "closed": to_plain(kept),
            "closed_grains": self._closed_grains,
            "final_us": self._final_us,
            "aim": [self._aim, self._aim_since_us, self._allowed_grains],
            "besides": [self._besides, self._besides_since_us, self._besides_grains],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.prices = {
            offer_id: [(since_us, from_plain(Price, price)) for since_us, price in changes]
            for offer_id, changes in facts["prices"].items()
        }
        believed = facts.get("believed", {})  # not in older snapshots
        self._believed = {offer_id: from_plain(Price, price) for offer_id, price in believed.items()}
        self._meters = {}
        for offer_id, (micro_usd_per_h, minimum_us, reading, read_us, *by_us) in facts["meters"].items():
            by = by_us[0] if by_us else 0  # not in snapshots before version 5
            meter = self._meters[offer_id] = _Meter(Price(micro_usd_per_h), minimum_us, by)
            meter.reading, meter.read_us = reading, read_us
        self._open = {}
        for node_id, (offer_id, start_us, begun) in facts["open"].items():
            self._open[node_id] = (offer_id, start_us, begun)
            self._meters[offer_id].open_count += 1
            self._meters[offer_id].open_readings += begun
        self.closed = [from_plain(Lease, lease) for lease in facts["closed"]]
        for lease in [*self.closed, *self.open_leases()]:
            meter = self._meters[lease.offer_id]
            meter.touched_us = max(meter.touched_us, lease.start_us, lease.end_us or 0)
        self._closed_grains = facts["closed_grains"]
        self._final_us = facts.get("final_us", max((lease.end_us or 0 for lease in self.closed), default=0))
        self.forgotten_grains = self._closed_grains - sum(lease.cost.grains for lease in self.closed)
        self._aim, self._aim_since_us, self._allowed_grains = facts["aim"]
        self._besides, self._besides_since_us, self._besides_grains = facts.get("besides", (0, 0, 0))


def _first_needed(changes: Sequence[tuple[int, Price]], earliest_us: int | None) -> int:
    """The index of the first price that leases from `earliest_us` on may still be billed at."""
    if earliest_us is None:
        return len(changes) - 1
    return max(0, bisect_right(changes, earliest_us, key=lambda change: change[0]) - 1)
