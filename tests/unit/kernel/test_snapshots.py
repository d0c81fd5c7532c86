"""Snapshots of a kernel, and lives of kernels that decide otherwise."""

from __future__ import annotations

import json

import pytest

from sublet.domain.actions import StartJob
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import JobFinished, JobSubmitted, NodeLost, OffersChanged, PlanMade, PriceChanged
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.errors import BadInput, InvalidValue, InvariantBroken
from sublet.kernel.cluster import Cluster
from sublet.kernel.following import Follower
from sublet.kernel.invariants import check
from sublet.kernel.journal import kind_from_header, replay, steps_from
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def a_town():
    driver = Driver(
        [an_offer("o", pool="p", gpus=2), an_offer("b", pool="p", gpus=2, usd_per_h="2")],
        limits={"o": Limit(max_nodes=2), "b": Limit(max_nodes=2)},
        budget=Budget(purse=Money.from_usd(9)),
    )
    driver.submit(a_job("a", work=900.0, gpus=3, min_gpus=3), a_job("c", work=900.0, gpus=1))
    driver.settle(Equal())
    return driver


def test_leases_that_are_long_over_are_a_sum_and_the_bill_still_adds_up():
    driver = a_town()
    for round_s in range(60):
        now_s = 10.0 * (round_s + 1)
        driver.tell(PriceChanged(now_s, "o", Price.from_usd_per_h("1" if round_s % 2 else "1.5")))
        held = next(iter(driver.kernel.cluster.nodes))
        driver.tell(NodeLost(now_s, held))
        driver.settle(Equal())
    facts = json.loads(json.dumps(driver.kernel.facts()))
    again = kernel_from_snapshot(facts)
    assert len(driver.kernel.ledger.closed) == 60
    assert len(again.ledger.closed) == 50
    assert len(again.ledger.prices["o"]) < len(driver.kernel.ledger.prices["o"])
    assert again.ledger.spent(again.now_s) == driver.kernel.ledger.spent(again.now_s)
    check(again)


@pytest.mark.parametrize("broken", [{}, {"supply": {}}, {"supply": {"offers": [], "limits": {}, "quotas": {}}}])
def test_what_is_no_snapshot_is_refused_with_the_reason(broken):
    with pytest.raises((BadInput, InvalidValue)):
        kernel_from_snapshot(broken)


def test_a_life_of_a_kernel_that_decides_otherwise_is_followed_as_it_was(monkeypatch):
    """It laid ranks out the other way round; ours would not, and must not say that it did."""
    with monkeypatch.context() as other:
        here = Cluster.rearrange

        def backwards(self, pool, kept, gpus, *others, **wishes):
            placement = here(self, pool, kept, gpus, *others, **wishes)
            return placement if kept or placement is None else tuple(reversed(placement))

        other.setattr(Cluster, "rearrange", backwards)
        driver = a_town()
    with pytest.raises(InvariantBroken):
        replay(driver.journal)
    follower = kind_from_header(json.loads(driver.journal[0]), Follower)
    for step in steps_from(driver.journal[1:]):
        follower.follow(step.event, step.orders)
    follower.arrive()
    ours = kernel_from_snapshot(json.loads(json.dumps(follower.facts())))
    assert ours.tenancy.placement == driver.kernel.tenancy.placement
    assert ours.ledger.spent(99.0) == driver.kernel.ledger.spent(99.0)
    assert {n: node.jobs for n, node in ours.cluster.nodes.items()} == {
        n: node.jobs for n, node in driver.kernel.cluster.nodes.items()
    }
    check(ours)


def test_who_is_listed_first_is_chosen_first_also_after_a_snapshot():
    driver = Driver([an_offer("o", pool="p", gpus=1)], limits={"o": Limit(min_nodes=2, max_nodes=2)})
    driver.submit(a_job("a", gpus=1))
    driver.settle(Equal())
    assert driver.kernel.tenancy.placement["a"] == (("n1", 1),)
    driver.tell(JobFinished(5.0, "a"))  # n1 is listed again, behind n2
    driver.settle(Equal())
    ours = kernel_from_snapshot(json.loads(json.dumps(driver.kernel.facts())))
    plan = Plan(shapes={"b": Shape(pool="p", gpus=1)})
    for kernel in (driver.kernel, ours):
        kernel.handle(JobSubmitted(6.0, a_job("b", gpus=1)))
        (start,) = [o for o in kernel.handle(PlanMade(6.0, plan, kernel.seen)) if isinstance(o, StartJob)]
        assert start.placement == (("n2", 1),)


# ---------------------------------------------------------------------- other offers


def test_a_smaller_limit_gives_nodes_back_though_they_are_in_use():
    driver = a_town()
    assert driver.kernel.cluster.held["o"] + driver.kernel.cluster.held["b"] == 2
    offers = (an_offer("o", pool="p", gpus=2), an_offer("b", pool="p", gpus=2, usd_per_h="2"))
    driver.tell(OffersChanged(5.0, offers, {"o": Limit(max_nodes=1), "b": Limit(max_nodes=0)}))
    driver.settle(Equal())
    assert len(driver.kernel.cluster.nodes) == 1


def test_a_withdrawn_offer_is_kept_as_long_as_it_is_held_and_forgotten_after():
    driver = a_town()
    gone = next(iter(driver.kernel.cluster.nodes.values())).offer.id
    (left,) = {"o", "b"} - {gone}
    driver.tell(OffersChanged(5.0, (an_offer(left, pool="p", gpus=2),)))
    driver.settle(Equal())
    assert gone in driver.kernel.supply.offering.withdrawn
    for node in [node for node in driver.kernel.cluster.nodes.values() if node.offer.id == gone]:
        driver.tell(NodeLost(6.0, node.id))
        driver.settle(Equal())
    assert list(driver.kernel.supply.offers) == [left]
    assert {node.offer.id for node in driver.kernel.cluster.nodes.values()} == {left}
    assert driver.kernel.supply.offering.every.keys() == {"o", "b"}  # what was rented has a bill


def test_other_offers_that_contradict_what_is_held_change_nothing():
    driver = a_town()
    before = json.dumps(driver.kernel.supply.facts())
    node = next(iter(driver.kernel.cluster.nodes.values()))
    other = an_offer(node.offer.id, pool="p", gpus=4)
    with pytest.raises(InvalidValue, match=f"gpus_per_node of offer {node.offer.id}"):
        driver.kernel.supply.offering.listing([other], {}, {})
    assert json.dumps(driver.kernel.supply.facts()) == before
