"""Futures of a kernel that is under way: it goes on as if nobody had looked, and takes more money where it is given."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sublet import plugins
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged, BudgetChanged, PriceChanged
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.kernel.cluster import NodePhase
from sublet.kernel.kernel import Kernel
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.market.prices import load_prices
from sublet.market.traces import load_trace
from sublet.perf.speedup import PowerLaw
from sublet.sim.agenda import Tie
from sublet.sim.forward import MarketDays, Moment, go_forward
from sublet.sim.record import Recorder
from sublet.sim.simulator import Driver
from sublet.sim.world import Physics, World

PHYSICS = Physics(provision_s=120.0, release_s=30.0, notice_s=120.0)
H = 3600.0
SPEED = PowerLaw(exponent=0.8)


def an_offer(name, market, usd):
    return Offer(
        id=name, gpu="T4", gpus_per_node=1, market=market, price=Price.from_usd_per_h(usd), boot_s=120.0, pool="t4"
    )


OFFERS = (an_offer("spot", Market.SPOT, 0.4), an_offer("on-demand", Market.ON_DEMAND, 1.0))
LIMITS = {"spot": Limit(max_nodes=6), "on-demand": Limit(max_nodes=2)}
BUDGET = Budget(burn=Price.from_usd_per_h(2.0), purse=Money.from_usd(100))


def jobs(count=3):
    return [
        Job(
            id=f"j{n}",
            submit_s=600.0 * n,
            work=3 * H,
            speed=SPEED,
            gpus=1,
            min_gpus=1,
            max_gpus=4,
            restart_s=60.0,
        )
        for n in range(count)
    ]


def market():
    """Supply that falls and rises, with notices."""
    for at_s, nodes in ((0.0, 6), (2.0 * H, 2), (2.5 * H, 5), (4.0 * H, 1), (6.0 * H, 6)):
        yield AvailabilityChanged(at_s, "spot", nodes)


class Life:
    """A simulation that can be stopped anywhere."""

    def __init__(self, policy):
        self.kernel = Kernel(OFFERS, limits=LIMITS, budget=BUDGET)
        self.world = World(OFFERS, PHYSICS, np.random.default_rng(0), market())
        self.policy = plugins.load("sublet.policies", policy)()
        self.recorder = Recorder()
        self.world.agenda.put(0.0, Tie.MARKET, BudgetChanged(0.0, BUDGET))
        for job in jobs():
            self.world.submit(job)
        self.driver = Driver(self.kernel, self.world, self.policy, self.recorder, 0.0, checked=True, watch=None)

    def live(self, until_s):
        self.driver.run(len(jobs()), until_s, None)
        return {job_id: row.finish_s for job_id, row in self.recorder.jobs.items() if row.finish_s is not None}

    def copied(self):
        return kernel_from_snapshot(json.loads(json.dumps(self.kernel.facts())), speed_of=lambda _: SPEED)


def later(now_s):
    """The market from now on, beginning with what can be had now."""
    before = [change.nodes for change in market() if change.at_s <= now_s]
    return [AvailabilityChanged(now_s, "spot", before[-1]), *(change for change in market() if change.at_s > now_s)]


@pytest.mark.parametrize("policy", ["price", "equal", "max-speedup"])
@pytest.mark.parametrize("stop_s", [1300.0, 1.05 * H, 2.2 * H])
def test_a_future_is_what_happens_when_nobody_looks(policy, stop_s):
    whole = Life(policy).live(30 * H)
    part = Life(policy)
    ended = part.live(stop_s)
    moment = Moment(
        now_s=stop_s, timers=part.world._timers, doomed_s={n: lost for n, (_, lost) in part.world._doomed.items()}
    )
    future = go_forward(part.copied(), part.policy, later(stop_s), moment, physics=PHYSICS, until_s=30 * H, every_s=H)
    assert set(whole) == {"j0", "j1", "j2"}
    found = ended | {job_id: stop_s + at_s for job_id, at_s in future.finish_s.items()}
    assert found == pytest.approx(whole, abs=1.0)
    assert future.looks[-1][2] == 1.0
    assert [at_s for at_s, _, _ in future.looks] == sorted(at_s for at_s, _, _ in future.looks)
    assert [usd for _, usd, _ in future.looks] == sorted(usd for _, usd, _ in future.looks)


def test_what_is_on_its_way_in_and_out_goes_on():
    """Stopped while nodes boot, and while noticed ones wait for their end."""
    booting = Life("max-speedup")
    booting.live(30.0)
    assert {node.phase for node in booting.kernel.cluster.nodes.values()} == {NodePhase.REQUESTED}
    future = go_forward(
        booting.copied(), booting.policy, later(30.0), Moment(now_s=30.0), physics=PHYSICS, until_s=30 * H
    )
    assert set(future.finish_s) == {"j0"}  # the others had not come


def test_more_money_is_not_slower_and_a_purse_is_a_limit():
    part = Life("price")
    part.live(1300.0)
    moment = Moment(now_s=1300.0, timers=part.world._timers)

    def lived(budget):
        return go_forward(
            part.copied(), part.policy, [], moment, physics=PHYSICS, until_s=50 * H, budget=budget, every_s=H
        )

    as_is, more = lived(None), lived(Budget(burn=Price.from_usd_per_h(4.0), purse=Money.from_usd(100)))
    assert max(more.finish_s.values()) <= max(as_is.finish_s.values())
    poor = lived(Budget(burn=Price.from_usd_per_h(2.0), purse=Money.from_usd(1.0)))
    assert poor.looks[-1][1] + part.kernel.ledger.spent(1300.0).usd <= 1.0
    assert len(poor.finish_s) < 3


def days(held):
    offers = [*OFFERS, an_offer("spot-2", Market.SPOT, 0.5)]
    return MarketDays(load_trace("skynomad-h100"), offers, held, {offer.id: offer.price for offer in offers})


def test_recorded_days_begin_with_what_is_held_and_are_the_same_for_a_seed():
    found = days({"spot": 3, "spot-2": 40})
    for seed in range(20):
        changes = list(found.changes(np.random.default_rng(seed), 500.0, 500.0 + 24 * H))
        assert changes == list(found.changes(np.random.default_rng(seed), 500.0, 500.0 + 24 * H))
        first = {change.offer_id: change.nodes for change in changes if change.at_s == 500.0}
        assert first["spot"] >= 3
        assert first["spot-2"] >= 40
        assert {change.offer_id for change in changes} == {"spot", "spot-2"}
        assert [change.at_s for change in changes] == sorted(change.at_s for change in changes)
        assert changes[-1].at_s < 500.0 + 24 * H
    assert any("40 nodes of spot-2" in note for note in found.notes)  # of at most 16


def test_prices_move_by_as_much_as_recorded():
    book = load_prices(instance_type="g4dn.xlarge", region="us-east-1")
    known = next(key for key in book.series if key.endswith(":spot"))
    facts = {"cloud": "aws", "region": "us-east-1", "zone": "us-east-1a", "instance_type": "g4dn.xlarge"}
    offer = replace(OFFERS[0], id=known, **facts)
    found = MarketDays(load_trace("bamboo-p3"), [offer], {}, {known: Price.from_usd_per_h(100.0)})
    assert known in found.notes[-1]
    changes = [
        change
        for seed in range(5)
        for change in found.changes(np.random.default_rng(seed), 0.0, 240 * H)
        if isinstance(change, PriceChanged)
    ]
    recorded = book.series[known].value
    assert changes
    assert all(
        100 * recorded.min() / recorded.max() <= each.price.usd_per_h <= 100 * recorded.max() / recorded.min()
        for each in changes
    )
