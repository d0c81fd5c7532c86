"""Money that nobody asked to be spent is not: spot is taken where it is, left where it goes, and returned to."""

from __future__ import annotations

import math

import pytest

from sublet.domain.actions import RentNode, ResizeJob, StartJob, StopJob
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged, NodeReady
from sublet.domain.money import Money
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer

H = 3600.0
HURRY = math.inf
BOOT_S = 180.0
SPOT = an_offer("s", gpus=1, usd_per_h="0.29", boot_s=BOOT_S, notice_s=120.0, hazard_per_h=0.1)
STEADY = an_offer("d", gpus=1, usd_per_h="1.58", market=Market.ON_DEMAND, boot_s=BOOT_S)
PURSE = Budget(purse=Money.from_usd("20"))


class Seen:
    """Everything that was ordered, and when."""

    def __init__(self):
        self.orders = []
        self.ready = []

    def __call__(self, event, orders):
        self.orders += [(event.at_s, order) for order in orders]
        if isinstance(event, NodeReady):
            self.ready.append((event.at_s, event.node_id))

    def rented(self, offer_id):
        return [at_s for at_s, order in self.orders if isinstance(order, RentNode) and order.offer_id == offer_id]

    def starts(self):
        return [(at_s, order.shape.pool) for at_s, order in self.orders if isinstance(order, StartJob | ResizeJob)]

    def stops(self):
        return [at_s for at_s, order in self.orders if isinstance(order, StopJob)]


def run(workload, *, supply=(), budget=PURSE, policy=None, limits=None, offers=(SPOT, STEADY)):
    """Under this supply of spot: (from when, nodes)."""
    seen = Seen()
    cloud = Cloud(
        offers=list(offers),
        limits=limits or {},
        budget=budget,
        physics=Physics(provision_s=BOOT_S, notice_s=120.0),
        market=Changes(AvailabilityChanged(at_s, "s", nodes) for at_s, nodes in supply),
    )
    found = simulate(workload, policy or Price(), cloud, checked=True, watch=seen)
    assert found.unfinished == ()
    return found, seen


# ---------------------------------------------------------------------- a newcomer's first job


def test_with_a_full_purse_and_spot_there_for_the_taking_nothing_is_rented_on_demand():
    found, seen = run([a_job(work=H, restart_s=30.0)])
    assert not seen.rented("d")
    assert found.metrics.usd < 0.33


def test_who_is_in_a_hurry_pays_for_the_quickest():
    job = a_job(work=H, speed=Amdahl(parallel=0.95), max_gpus=4, restart_s=30.0)
    limits = {"s": Limit(max_nodes=2)}
    saving, _ = run([job], limits=limits)
    hurried, seen = run([job], limits=limits, policy=Price(hour_usd=HURRY))
    assert len(seen.rented("d")) == 4
    assert hurried.metrics.mean_s < saving.metrics.mean_s
    assert saving.metrics.usd < 0.2 * hurried.metrics.usd


def test_an_average_to_spend_is_a_value_of_time_and_rules():
    """USD 10 an hour for one job: to be quick is what they are for."""
    job = a_job(work=H, speed=Amdahl(parallel=0.95), max_gpus=4, restart_s=30.0)
    budget = Budget(average=Usd.from_usd_per_h("10"))
    by_default, _ = run([job], budget=budget, limits={"s": Limit(max_nodes=2)})
    hurried, _ = run([job], budget=budget, limits={"s": Limit(max_nodes=2)}, policy=Price(hour_usd=HURRY))
    assert by_default.metrics == pytest.approx(hurried.metrics) or by_default.metrics.usd == hurried.metrics.usd
    assert by_default.metrics.mean_s == hurried.metrics.mean_s


def test_two_jobs_and_one_spot_node_nobody_waits_for_spot():
    """Waiting is time too: the second pays what the hour is worth, as it is worth it."""
    found, seen = run([a_job("a", work=H), a_job("b", work=H)], supply=[(0.0, 1)])
    assert len(seen.rented("d")) == 1
    assert found.metrics.max_s < 1.3 * H


# ---------------------------------------------------------------------- there and back again


def test_a_job_returns_to_spot_within_one_decision_when_spot_is_back():
    """Spot goes after 10 minutes and is back after 30; an on-demand hour costs 5.4 times as much."""
    back_s = 1800.0
    found, seen = run([a_job(work=2 * H, restart_s=30.0)], supply=[(0.0, 4), (600.0, 0), (back_s, 4)])
    assert [pool for _, pool in seen.starts()] == ["T4x1:spot", "T4x1:on-demand", "T4x1:spot"]
    assert back_s in seen.rented("s")  # in the decision that heard of it
    assert found.metrics.usd < 0.29 * 2.2 + 1.58 * 0.5


def test_it_trains_on_demand_until_its_spot_node_is_there():
    _, seen = run([a_job(work=2 * H, restart_s=30.0)], supply=[(0.0, 4), (600.0, 0), (1800.0, 4)])
    (left_s,) = [at_s for at_s in seen.stops() if at_s > 1000.0]
    assert left_s == pytest.approx(1800.0 + BOOT_S)


@pytest.mark.parametrize(("left_s", "returns"), [(200.0, False), (330.0, True)])
def test_it_returns_only_if_the_rest_saves_more_than_the_move_costs(left_s, returns):
    """The node to go to costs USD 0.29 an hour for 180 s of boot, the pause of 30 s an hour's worth of 1.58 and 0.29;
    an hour less on demand saves 1.29. So the rest must be longer than 180 + (0.29 x 180 + 1.87 x 30) / 1.29 = 264 s.
    """
    job = a_job(work=H, restart_s=30.0)
    gone = [(0.0, 4), (600.0, 0)]
    stayed, _ = run([job], supply=gone)
    _, seen = run([job], supply=[*gone, (stayed.metrics.max_s - left_s, 4)])
    assert (len(seen.starts()) == 3) == returns


def test_a_spot_node_that_is_refused_does_not_stop_a_job_that_trains():
    """The cloud says that there is spot, and has none whenever it is asked: the job is never taken off its node."""
    supply = [(0.0, 4), (600.0, 0)]
    for at in range(1, 12):  # for a moment, again and again: gone before a node has booted
        supply += [(1200.0 + 300.0 * at, 1), (1200.0 + 300.0 * at + 60.0, 0)]
    _, seen = run([a_job(work=2 * H, restart_s=30.0)], supply=supply)
    assert [pool for _, pool in seen.starts()].count("T4x1:on-demand") == 1
    assert len(seen.stops()) <= 2
