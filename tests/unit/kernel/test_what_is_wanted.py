"""What stays wanted when the cloud takes a node, what may be rented, and a job whose GPUs change: by hand."""

from __future__ import annotations

import pytest

from sublet.domain.actions import ReleaseNode, RentNode, ResizeJob
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Grid, Shape
from sublet.kernel.changing import as_ordered, trains_on, with_gpus
from sublet.kernel.cluster import NodePhase
from sublet.kernel.supply import Supply, foresee, let_go
from sublet.kernel.values_json import Unrecorded
from sublet.kernel.waiting import Lines
from sublet.perf.speedup import Table
from sublet.testing.values import a_job, an_offer

SPOT = an_offer("s", gpus=4, pool="p", usd_per_h="1", hazard_per_h=0.1)
SURE = an_offer("d", gpus=4, pool="p", usd_per_h="3", market=Market.ON_DEMAND)
ALONE = an_offer("q", gpus=2, pool="q", usd_per_h="1")


def supply_of(*ready, limits=None, quotas=None, budget=UNLIMITED, **hold):
    """Ready nodes, named by their offers."""
    supply = Supply([SPOT, SURE, ALONE], limits or {}, quotas or {}, budget)
    for name in ready:
        supply.cluster.add(name, supply.offers[name[0]])
        supply.ledger.open(name, name[0], 0.0)
        supply.cluster.ready(supply.cluster.nodes[name])
    supply.hold |= hold
    return supply


def promises_of(supply, gpus, steady=0):
    lines = Lines(supply.pools)
    lines.promise(Shape("p", gpus, steady=steady))
    return lines


# ---------------------------------------------------------------------- a node that the cloud takes


@pytest.mark.parametrize(("gpus", "steady", "hold"), [(8, 0, 1), (9, 0, 2), (8, 4, 1), (8, 5, 2)])
def test_another_is_wanted_where_those_that_stay_are_too_few_for_what_is_promised(gpus, steady, hold):
    """Two of spot and one on demand: when one of spot goes eight GPUs stay, four of them on demand."""
    supply = supply_of("s1", "s2", "d1", s=2, d=1)
    let_go(supply, supply.cluster.nodes["s1"], promises_of(supply, gpus, steady), 0.0)
    assert supply.hold == {"s": hold, "d": 1, "q": 0}


@pytest.mark.parametrize(("steady", "hold"), [(0, 0), (1, 1)])
def test_of_those_on_demand_too(steady, hold):
    supply = supply_of("s1", "s2", "d1", s=2, d=1)
    let_go(supply, supply.cluster.nodes["d1"], promises_of(supply, 8, steady), 0.0)
    assert supply.hold["d"] == hold


def test_what_is_owned_stays_wanted_and_what_was_not_wanted_is_not():
    owned = supply_of("s1", limits={"s": Limit(min_nodes=1)}, s=1)
    let_go(owned, owned.cluster.nodes["s1"], promises_of(owned, 1), 0.0)
    assert owned.hold["s"] == 1
    surplus = supply_of("s1", "s2", s=1)
    let_go(surplus, surplus.cluster.nodes["s1"], promises_of(surplus, 1), 0.0)
    assert surplus.hold["s"] == 1
    noticed = supply_of("s1", "s2", s=2)
    noticed.cluster.withdraw(noticed.cluster.nodes["s1"], NodePhase.NOTICED)
    let_go(noticed, noticed.cluster.nodes["s1"], promises_of(noticed, 1), 0.0)
    assert noticed.hold["s"] == 2
    assert noticed.offering.exposure.seen("s", 0.0)[0] == 1.0  # it was lost all the same


def test_only_of_pools_of_both_markets_a_plan_is_foreseen():
    supply = supply_of()
    foresee(supply, {"s": 2, "d": 1, "q": 3})
    assert supply.hold == {"s": 2, "d": 1, "q": 0}


def test_a_wish_is_within_what_is_owned_and_offered():
    supply = supply_of(limits={"s": Limit(min_nodes=2)})
    supply.wish({"s": 1, "d": 4, "gone": 9})
    assert supply.hold == {"s": 2, "d": 4, "q": 0}
    assert supply.hold_after({"s": 0, "q": 1, "gone": 9}) == {"s": 2, "d": 4, "q": 1}


# ---------------------------------------------------------------------- what is ordered


def ordered(supply):
    return [type(order).__name__[:-4] + " " + getattr(order, "offer_id", order.node_id) for order in supply.adjust(0.0)]


def test_what_is_missing_is_rented_and_what_is_too_much_is_given_back():
    assert ordered(supply_of(s=2)) == ["Rent s", "Rent s"]
    assert ordered(supply_of("s1", "s2", s=1)) == ["Release s2"]  # the last that came
    supply = supply_of("s1", s=1)
    assert supply.adjust(0.0) == []
    supply.hold["s"] = 2
    assert supply.adjust(0.0) == [RentNode("n1", "s")]
    supply.hold["s"] = 1
    assert supply.adjust(0.0) == [ReleaseNode("n1")]  # it was booting, and goes before what is ready


def test_limits_quotas_and_the_rate_of_spending_bound_what_is_rented():
    assert ordered(supply_of(limits={"s": Limit(max_nodes=1)}, s=3)) == ["Rent s"]
    assert ordered(supply_of(quotas={"p": 8}, s=1, d=2)) == ["Rent s", "Rent d"]
    assert ordered(supply_of(quotas={"p:spot": 4}, s=2, d=2)) == ["Rent s", "Rent d", "Rent d"]
    burn = Budget(burn=Price.from_usd_per_h("4"))
    assert ordered(supply_of(budget=burn, s=1, d=2)) == ["Rent s", "Rent d"]
    assert ordered(supply_of(budget=burn, s=5)) == ["Rent s"] * 4
    owned = {"d": Limit(min_nodes=2)}
    assert ordered(supply_of(budget=burn, limits=owned, d=3)) == ["Rent d", "Rent d"]  # what is owned in any case


def test_whoever_is_in_the_way_of_others_is_cleared():
    supply = supply_of("s1", "d1", quotas={"p": 8}, s=2, d=0)
    for name in ("s1", "d1"):
        supply.cluster.take("a", name, 1)
    assert supply.adjust(0.0) == []  # the quota is full
    assert [node.id for node in supply.to_clear] == ["d1"]
    calm = supply_of("s1", "d1", s=1, d=0)
    calm.cluster.take("a", "d1", 1)
    assert calm.adjust(0.0) == []
    assert calm.to_clear == []  # nothing is kept from anybody
    dear = supply_of("d1", budget=Budget(burn=Price.from_usd_per_h("2.9")), d=0)
    dear.cluster.take("a", "d1", 1)
    dear.adjust(0.0)
    assert [node.id for node in dear.to_clear] == ["d1"]


@pytest.mark.parametrize(
    ("limits", "quotas", "over"),
    [
        ({"s": Limit(max_nodes=2)}, {}, False),
        ({"s": Limit(max_nodes=1)}, {}, True),
        ({}, {"p": 8}, False),
        ({}, {"p": 7}, True),
    ],
)
def test_tightened_limits_are_seen_until_less_is_held(limits, quotas, over):
    supply = supply_of("s1", "s2", s=2)
    supply.reoffer([SPOT, SURE, ALONE], limits, quotas, 0.0)
    assert supply._over_limits() is over


# ---------------------------------------------------------------------- lines, and a job whose GPUs change


def test_promises_are_counted_by_pool_and_forgotten_with_it():
    lines = Lines(["p", "q"])
    first = JobState(job=a_job("a"), seq=0, shape=Shape("p", 4, steady=1))
    lines.promise(first.shape)
    lines.promise(Shape("p", 2))
    lines.stand(first)
    lines.stand(JobState(job=a_job("b"), seq=1))  # it was promised nothing
    assert (lines.promised, lines.steady, list(lines.of["p"])) == ({"p": 6, "q": 0}, {"p": 1, "q": 0}, ["a"])
    lines.take_back(first)
    assert (lines.promised["p"], lines.steady["p"], list(lines.of["p"])) == (2, 0, [])
    lines.take_back(JobState(job=a_job("b"), seq=1))
    lines.keep_to(["p", "new"])
    assert (lines.promised, lines.of) == ({"p": 2, "new": 0}, {"p": {}, "new": {}})


def test_work_service_and_stays_are_brought_up_to_now():
    """Two GPUs since 100 s, at two a second; 30 were done by 110 s."""
    state = JobState(
        job=a_job("a", work=1000.0, gpus=2, max_gpus=4),
        seq=3,
        phase=Phase.RUNNING,
        shape=Shape("p", 4),
        runs_in=Shape("p", 2),
        gpu="T4",
        gpus=2,
        spread=(2,),
        done=30.0,
        as_of_s=110.0,
        gpu_s=50.0,
        held_since_s=100.0,
        stints=((0.0, 50.0, 1),),
        generation=7,
    )
    wider = with_gpus(state, (("n1", 2), ("n2", 2)), Phase.RESIZING, 120.0, generation=8, into=(Shape("p", 4), "T4"))
    assert (wider.done, wider.as_of_s, wider.gpu_s, wider.held_since_s) == (50.0, 120.0, 90.0, 120.0)
    assert (wider.gpus, wider.spread, wider.runs_in, wider.generation) == (4, (2, 2), Shape("p", 4), 8)
    assert wider.stints == ((0.0, 50.0, 1), (100.0, 120.0, 2))
    assert (wider.seq, wider.shape, wider.lies_in) == (3, Shape("p", 4), "p")
    again = with_gpus(wider, (), Phase.WAITING, 120.0)
    assert (again.gpus, again.runs_in, again.generation, again.left_s, again.lies_in) == (0, None, 8, 0.0, "p")
    assert again.stints == wider.stints  # it has held these for no time at all


def test_an_order_is_needed_for_another_shape_and_for_seats_in_a_grid():
    assert as_ordered(Shape("p", 4, steady=1), Shape("p", 4, steady=2))
    assert not as_ordered(Shape("p", 4), Shape("p", 3))
    grid = Grid(2, 2)
    assert as_ordered(Shape("p", 4, steady=2, grid=grid), Shape("p", 4, steady=2, grid=grid))
    assert not as_ordered(Shape("p", 4, steady=1, grid=grid), Shape("p", 4, steady=2, grid=grid))


def test_it_trains_on_where_it_makes_progress_or_where_the_record_says_so():
    narrow = JobState(job=a_job("a", speed=Table(rates={"T4": {2: 1.0}})), seq=0, gpu="T4")
    assert trains_on(narrow, Shape("p", 2), (("n1", 2),), ())
    assert not trains_on(narrow, Shape("p", 3), (("n1", 3),), ())
    unknown = JobState(job=a_job("a", speed=Unrecorded()), seq=0)
    order = ResizeJob("a", 1, Shape("p", 2), (("n1", 2),))
    assert trains_on(unknown, Shape("p", 2), (("n1", 2),), [order])
    assert not trains_on(unknown, Shape("p", 2), (("n2", 2),), [order])
    assert not trains_on(unknown, Shape("p", 2), (("n1", 2),), [])
