"""What could be held, and what to hold: owned first, then held, then the cheapest, while the money lasts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged, NodeReady, PlanMade, PriceChanged, RentRefused
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.kernel.kernel import Kernel
from sublet.planning.terms import (
    _acquire,
    _acquire_together,
    _usd_per_gpu,
    most_gpus,
    nodes_to_hold,
    pool_rows,
)
from sublet.testing.strategies import limits_and_budgets, offers, prices
from sublet.testing.values import an_offer

DEAR = an_offer("dear", gpus=4, usd_per_h="4", pool="p")
CHEAP = an_offer("cheap", gpus=4, usd_per_h="1", pool="p")
OTHER = an_offer("other", gpus=2, usd_per_h="1", pool="q", gpu="A100")


def kernel(*offers, limits=None, quotas=None, usd_per_h=None):
    budget = Budget(burn=None if usd_per_h is None else Price.from_usd_per_h(usd_per_h))
    return Kernel(offers, limits=limits, quotas=quotas, budget=budget)


def holding(hold, *offers, **facts):
    """A kernel that has asked for these nodes."""
    made = kernel(*offers, **facts)
    made.handle(AvailabilityChanged(0.0, offers[0].id, None))
    made.handle(PlanMade(0.0, Plan(hold=hold), made.seen))
    return made


def test_without_limits_there_is_no_end_in_any_pool():
    assert most_gpus(kernel(DEAR, OTHER).snapshot()) == {"p": math.inf, "q": math.inf}


def test_limits_supply_and_quota_bound_a_pool():
    limits = {"dear": Limit(max_nodes=3), "cheap": Limit(max_nodes=2)}
    both = kernel(DEAR, CHEAP, limits=limits)
    assert most_gpus(both.snapshot()) == {"p": 20}
    both.handle(AvailabilityChanged(0.0, "dear", 1))
    assert most_gpus(both.snapshot()) == {"p": 12}
    assert most_gpus(kernel(DEAR, CHEAP, limits=limits, quotas={"p": 11}).snapshot()) == {"p": 8}


def test_the_budget_buys_the_cheapest_gpus_first():
    limits = {"cheap": Limit(max_nodes=1)}
    snapshot = kernel(DEAR, CHEAP, limits=limits, usd_per_h="6").snapshot()
    assert most_gpus(snapshot) == {"p": 8}
    assert nodes_to_hold(snapshot, {"p": 8}) == {"dear": 1, "cheap": 1}
    assert nodes_to_hold(snapshot, {"p": 3}) == {"dear": 0, "cheap": 1}


def test_a_change_of_price_changes_which_is_cheapest():
    both = kernel(DEAR, CHEAP)
    both.handle(PriceChanged(0.0, "cheap", Price.from_usd_per_h("9")))
    assert nodes_to_hold(both.snapshot(), {"p": 4}) == {"dear": 1, "cheap": 0}


def test_what_is_held_is_kept_before_something_cheaper_is_rented():
    both = holding({"dear": 1}, DEAR, CHEAP)
    assert nodes_to_hold(both.snapshot(), {"p": 4}) == {"dear": 1, "cheap": 0}
    assert nodes_to_hold(both.snapshot(), {"p": 5}) == {"dear": 1, "cheap": 1}


def test_owned_nodes_are_held_needed_or_not_and_count_against_the_budget():
    snapshot = kernel(DEAR, OTHER, limits={"dear": Limit(min_nodes=2)}, usd_per_h="9").snapshot()
    assert nodes_to_hold(snapshot, {}) == {"dear": 2, "other": 0}
    assert most_gpus(snapshot) == {"p": 8, "q": 2}


def test_owned_nodes_that_the_cloud_does_not_have_are_not_counted():
    owned = kernel(DEAR, limits={"dear": Limit(min_nodes=2, max_nodes=2)})
    owned.handle(AvailabilityChanged(0.0, "dear", 1))
    assert most_gpus(owned.snapshot()) == {"p": 4}


def test_owned_nodes_that_the_cloud_refused_are_not_counted():
    owned = kernel(DEAR, limits={"dear": Limit(min_nodes=2, max_nodes=2)})
    owned.handle(AvailabilityChanged(0.0, "dear", None))
    owned.handle(NodeReady(1.0, "n1"))
    owned.handle(RentRefused(1.0, "n2"))
    assert most_gpus(owned.snapshot()) == {"p": 4}


def test_owned_nodes_are_counted_as_long_as_the_purse_pays_for_them():
    dear = replace(DEAR, wind_down_s=60.0)
    budget = Budget(purse=Money(dear.reserve.grains * 3 - 1))
    snapshot = Kernel([dear, OTHER], limits={"dear": Limit(min_nodes=3)}, budget=budget).snapshot()
    assert nodes_to_hold(snapshot, {}) == {"dear": 2, "other": 0}


def test_what_is_held_has_its_reserve_and_takes_no_other():
    """The budget pays for three nodes: of those that are held none goes, and there are as many more as are lacking."""
    dear = replace(DEAR, wind_down_s=60.0)
    for held in (0, 1, 2):
        purse = Kernel([dear, OTHER], budget=Budget(purse=Money(dear.reserve.grains * 3)))
        purse.handle(AvailabilityChanged(0.0, "dear", None))
        purse.handle(PlanMade(0.0, Plan(hold={"dear": held}), purse.seen))
        assert purse.snapshot().offers["dear"].held == held
        assert nodes_to_hold(purse.snapshot(), {"p": 16}) == {"dear": 3, "other": 0}


def test_the_money_for_owned_nodes_is_not_given_to_others_while_they_are_held():
    limits = {"cheap": Limit(min_nodes=1, max_nodes=1)}
    owned = kernel(CHEAP, OTHER, limits=limits, usd_per_h="1.5")
    owned.handle(PriceChanged(0.0, "other", OTHER.price))
    owned.handle(NodeReady(1.0, "n1"))
    owned.handle(AvailabilityChanged(2.0, "cheap", 0))  # no more of them, but ours is still there and paid for
    assert owned.ledger.burn() == Price.from_usd_per_h("1")
    assert most_gpus(owned.snapshot())["q"] == 0


def test_a_need_is_rounded_up_to_whole_nodes():
    snapshot = kernel(DEAR).snapshot()
    assert [nodes_to_hold(snapshot, {"p": gpus})["dear"] for gpus in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_a_free_offer_needs_no_budget():
    free = an_offer("free", gpus=4, usd_per_h="0", pool="p")
    assert most_gpus(kernel(free, usd_per_h="0").snapshot()) == {"p": math.inf}
    assert nodes_to_hold(kernel(free, usd_per_h="0").snapshot(), {"p": 9}) == {"free": 3}


@st.composite
def situations(draw):
    """A kernel with prices, supply and nodes that may be anything within the limits."""
    drawn = draw(offers())
    limits, quotas, budget = draw(limits_and_budgets(drawn, owned=False))
    made = Kernel(drawn, limits=limits, quotas=quotas, budget=budget)
    need = {offer.pool: draw(st.integers(0, 20)) for offer in drawn}
    made.handle(PlanMade(0.0, Plan(hold=nodes_to_hold(made.snapshot(), need)), 0))
    for offer in drawn:
        if draw(st.booleans()):
            made.handle(AvailabilityChanged(1.0, offer.id, draw(st.integers(0, 5))))
        if draw(st.booleans()):
            made.handle(PriceChanged(1.0, offer.id, draw(prices)))
    return made.snapshot(), {offer.pool: draw(st.integers(0, 24)) for offer in drawn}


def affordable(snapshot, nodes):
    burn = snapshot.budget.burn
    cost = sum(count * snapshot.offers[offer_id].price.micro_usd_per_h for offer_id, count in nodes.items())
    return burn is None or cost <= burn.micro_usd_per_h


@given(situations())
def test_nodes_to_hold_stay_within_limits_supply_quota_and_budget(case):
    snapshot, need = case
    nodes = nodes_to_hold(snapshot, need)
    assert affordable(snapshot, nodes)
    for offer_id, count in nodes.items():
        assert 0 <= count <= snapshot.offers[offer_id].most
    for name, pool in snapshot.pools.items():
        gpus = sum(nodes[offer_id] for offer_id in pool.offer_ids) * pool.gpus_per_node
        assert pool.max_gpus is None or gpus <= pool.max_gpus
        assert gpus < need[name] + pool.gpus_per_node  # no node too many


@given(situations())
def test_whatever_could_be_held_at_most_is_held_when_it_is_needed(case):
    snapshot, need = case
    most = most_gpus(snapshot)
    wanted = {name: int(min(need[name], most[name])) for name in need}
    nodes = nodes_to_hold(snapshot, wanted)
    for name, pool in snapshot.pools.items():
        assert sum(nodes[offer_id] for offer_id in pool.offer_ids) * pool.gpus_per_node >= wanted[name]


@given(situations())
def test_one_pool_alone_gets_as_many_gpus_as_any_choice_of_nodes_could(case):
    snapshot, _ = case
    if len(snapshot.pools) > 1:
        return
    ((name, pool),) = snapshot.pools.items()
    if any(state.held for state in snapshot.offers.values()):
        return  # what is held is kept first, even where it is dear
    quota = math.inf if pool.max_gpus is None else pool.max_gpus // pool.gpus_per_node
    counts = [range(int(min(state.most, 6)) + 1) for state in snapshot.offers.values()]
    choices = (dict(zip(snapshot.offers, each, strict=True)) for each in product(*counts))
    best = max(sum(nodes.values()) for nodes in choices if sum(nodes.values()) <= quota and affordable(snapshot, nodes))
    assert min(most_gpus(snapshot)[name], 6 * pool.gpus_per_node) >= min(best, 6) * pool.gpus_per_node


few = st.integers(0, 4)
most_few = st.none() | few


@given(st.tuples(few, few), st.tuples(most_few, most_few), st.tuples(most_few, most_few), most_few, few, few)
def test_where_nothing_ties_pools_together_each_is_acquired_by_itself_as_all_together(held, most, told, quota, p, q):
    one, other = DEAR, OTHER
    limits = {
        offer.id: Limit(min_nodes=min(least, top) if top is not None else least, max_nodes=top)
        for offer, least, top in zip((one, other), held, most, strict=True)
    }
    made = kernel(
        one, other, limits=limits, quotas=None if quota is None else {"p": 4 * max(quota, limits[one.id].min_nodes)}
    )
    for offer, nodes in zip((one, other), told, strict=True):
        made.handle(AvailabilityChanged(0.0, offer.id, nodes))
    made.handle(PlanMade(0.0, Plan(hold={one.id: min(p, 1), other.id: min(q, 1)}), made.seen))
    now = made.snapshot()
    for wanted in ((p, q), (math.inf, math.inf), (0, q)):
        need = dict(zip(pool_rows(now), map(float, wanted), strict=True))
        together = _acquire_together(now, sorted(now.offers.values(), key=_usd_per_gpu), need, None, held_first=False)
        found = _acquire(now, need)
        assert found == together
        assert list(found) == list(together)
