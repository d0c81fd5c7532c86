"""Clouds that bill by the second, with a minimum, or by the hour: the ledger is what their bills will say."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from sublet.domain.actions import RentNode
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import AvailabilityChanged, NodeLost, NodeReleased, PriceChanged, RentRefused
from sublet.domain.money import Money, Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup

H = 3600.0
WEEK_S = 7 * 24 * H
MODELS = {"by the second": (0.0, 0.0), "60 s at least": (60.0, 0.0), "by the hour": (0.0, H), "both": (1.5 * H, H)}


class Cashier:
    """The cloud's own bill: it hears of launches and ends, and of prices, and knows nothing of our ledger."""

    def __init__(self, minimum_s, by_s, price):
        self.minimum_s, self.by_s, self.prices, self.end_s = minimum_s, by_s, [(0.0, price)], 0.0
        self.held, self.leases = {}, []

    def __call__(self, event, orders):
        self.end_s = event.at_s
        if isinstance(event, PriceChanged):
            self.prices.append((event.at_s, event.price.usd_per_h))
        if isinstance(event, NodeLost | NodeReleased) and event.node_id in self.held:
            self.leases.append((self.held.pop(event.node_id), event.at_s))
        if isinstance(event, RentRefused):
            del self.held[event.node_id]
        for order in orders:
            if isinstance(order, RentNode):
                self.held[order.node_id] = event.at_s

    def usd(self):
        open_leases = [(begun_s, self.end_s) for begun_s in self.held.values()]
        return float(sum(self._lease(*lease, ended=True) for lease in self.leases)) + float(
            sum(self._lease(*lease, ended=False) for lease in open_leases)
        )

    def _lease(self, begun_s, ended_s, *, ended):
        total, last = Fraction(0), self.prices[0][1]
        for (since_s, price), (until_s, _) in zip(self.prices, [*self.prices[1:], (math.inf, 0.0)], strict=True):
            if since_s <= ended_s:
                last = price
                total += Fraction(price) * Fraction(max(0.0, min(until_s, ended_s) - max(since_s, begun_s)))
        held_s = ended_s - begun_s
        charged_s = max(self.minimum_s, math.ceil(held_s / self.by_s) * self.by_s if self.by_s else held_s)
        return (total + Fraction(last) * Fraction(max(0.0, charged_s - held_s) if ended else 0.0)) / 3600


def a_week(model, *, budget=UNLIMITED):
    """Short jobs for seven days on spot nodes whose price moves every three hours and that are taken now and then."""
    minimum_s, by_s = MODELS[model]
    offer = an_offer(
        gpus=1, usd_per_h="1", minimum_billing_s=minimum_s, billed_by_s=by_s, hazard_per_h=0.05, wind_down_s=60.0
    )
    moves = [
        PriceChanged(at * 3 * H, "spot", Price.from_usd_per_h(f"{1.0 + 0.1 * (at % 7):.1f}")) for at in range(1, 56)
    ]
    falls = [
        AvailabilityChanged(at * 5 * H + late_s, "spot", nodes)
        for at in range(1, 33)
        for late_s, nodes in ((0.0, 1), (700.0, 6))
    ]
    cloud = Cloud(
        offers=[offer],
        limits={"spot": Limit(max_nodes=6)},
        budget=budget,
        physics=Physics(provision_s=90.0, release_s=30.0, notice_s=30.0),
        market=Changes(sorted([*moves, *falls], key=lambda change: change.at_s)),
    )
    jobs = [
        a_job(f"j{at}", submit_s=at * WEEK_S / 60, work=H / 3 + 97.0 * (at % 11), gpus=1, max_gpus=2, restart_s=20.0)
        for at in range(60)
    ]
    cashier = Cashier(minimum_s, by_s, 1.0)
    found = simulate(jobs, MaxSpeedup(), cloud, checked=True, watch=cashier)
    return found, cashier


@pytest.mark.parametrize("model", MODELS)
def test_over_a_week_the_ledger_is_the_bill_to_a_thousandth(model):
    found, cashier = a_week(model)
    assert found.unfinished == ()
    assert len(cashier.leases) > 30
    assert found.metrics.usd == pytest.approx(cashier.usd(), rel=1e-3)
    assert found.metrics.usd == pytest.approx(cashier.usd(), rel=1e-9)  # in fact to the grain, but for our own floats


def test_what_is_begun_is_paid_for():
    usd = {model: a_week(model)[0].metrics.usd for model in MODELS}
    assert usd["by the second"] <= usd["60 s at least"] < usd["by the hour"] < usd["both"]


@pytest.mark.parametrize("purse", ["4", "9.5", "20"])
@pytest.mark.parametrize("model", MODELS)
def test_a_purse_holds_whatever_is_charged_for_what_is_begun(model, purse):
    found, cashier = a_week(model, budget=Budget(purse=Money.from_usd(purse)))
    assert max(found.metrics.usd, cashier.usd()) <= float(purse) + 1e-9
