"""Laws of grids, of purses and of who is stuck: broken one at a time, and not taken for broken where they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import ORG, UNLIMITED, Holder, Level, Period
from sublet.domain.events import BudgetChanged, PurseSet
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Grid, Shape
from sublet.errors import InvariantBroken
from sublet.kernel.cluster import NodePhase
from sublet.kernel.invariants import check
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import EvenPauses, a_job, an_offer

VISION = Holder(Level.TEAM, "vision")
STUCK = "no job is stuck"


def broken(kernel):
    """The law that does not hold; none where all do."""
    try:
        check(kernel)
    except InvariantBroken as error:
        return error.law
    return None


def told_otherwise(kernel, job_id="a", **facts):
    kernel.jobs[job_id] = state = replace(kernel.jobs[job_id], **facts)
    if state.shape is not None:
        kernel.active[job_id] = state


@pytest.fixture
def kernel(town):
    """Job "a" runs on one node, job "b" waits."""
    town.submit(a_job("a", gpus=4, max_gpus=8), a_job("b", gpus=8))
    town.plan(Plan(shapes={"a": Shape("p", 4)}))
    town.answer(town.open[0])
    assert broken(town.kernel) is None
    return town.kernel


# ---------------------------------------------------------------------- who is stuck


def want_more(kernel, gpus=8, steady=0):
    """ "a" is promised more than it has, and nobody does anything about it."""
    told_otherwise(kernel, shape=Shape("p", gpus, steady=steady))
    kernel.tenancy.promises.promised["p"], kernel.tenancy.promises.steady["p"] = gpus, steady


def test_who_was_promised_more_than_it_has_is_stuck_where_nothing_is_under_way(kernel):
    want_more(kernel)
    assert broken(kernel) == STUCK


def test_so_is_who_has_as_many_as_it_was_promised_and_not_those_on_demand(kernel):
    want_more(kernel, gpus=4, steady=1)
    assert broken(kernel) == STUCK


def test_who_was_put_aside_is_not_stuck(kernel):
    want_more(kernel)
    kernel.tenancy.growing.put_aside["a"] = None
    assert broken(kernel) is None


@pytest.mark.parametrize(("others", "block", "law"), [(True, 2, None), (True, 1, STUCK), (False, 2, STUCK)])
def test_who_needs_blocks_of_nodes_that_others_have_parts_of_waits_and_is_not_stuck(kernel, others, block, law):
    """ "b" is promised a node and has nothing, while "a" has one, or nobody has."""
    if not others:
        told_otherwise(kernel, shape=None, runs_in=None, phase=Phase.WAITING, gpus=0)
        kernel.waiting.add(kernel.jobs["a"])
        kernel.cluster.give("a", "n1", 4)
        del kernel.tenancy.placement["a"], kernel.active["a"]
    job = replace(kernel.jobs["b"].job, gpus=4, min_gpus=4, max_gpus=4, block=block)
    kernel.waiting.remove("b")
    told_otherwise(kernel, "b", job=job, shape=Shape("p", 4))
    kernel.tenancy.promises.promised["p"] = 8 if others else 4
    assert broken(kernel) == law


def test_nobody_is_stuck_while_something_is_under_way(kernel):
    want_more(kernel)
    kernel._plans.is_open = True
    assert broken(kernel) is None
    kernel._plans.is_open = False
    assert broken(kernel) == STUCK
    kernel.cluster.withdraw(kernel.cluster.nodes["n2"], NodePhase.NOTICED)
    assert broken(kernel) is None


# ---------------------------------------------------------------------- a notice


NOTICE = "no job outstays a notice"


@pytest.mark.parametrize(("wake_s", "law"), [(None, NOTICE), (93.1, NOTICE), (93.0, None), (50.0, None)])
def test_who_is_on_a_node_that_will_be_taken_is_woken_in_time(kernel, wake_s, law):
    """Taken at 100 s, left in five seconds, and two to spare."""
    told_otherwise(kernel, job=replace(kernel.jobs["a"].job, pauses=EvenPauses(lead_s=5.0), survives=True))
    kernel.cluster.withdraw(kernel.cluster.nodes["n1"], NodePhase.NOTICED)
    kernel.tenancy.departures.announce("n1", 100.0)
    kernel.tenancy.departures._wake_s = wake_s
    assert broken(kernel) == law


def test_or_stands_in_line_or_does_not_run(kernel):
    kernel.cluster.withdraw(kernel.cluster.nodes["n1"], NodePhase.NOTICED)
    assert broken(kernel) == NOTICE
    kernel.tenancy.lines["p"]["a"] = None
    assert broken(kernel) is None
    del kernel.tenancy.lines["p"]["a"]
    told_otherwise(kernel, phase=Phase.BROKEN)
    assert broken(kernel) is None


# ---------------------------------------------------------------------- room by market, and grids


def test_free_gpus_are_counted_by_market(kernel):
    kernel.cluster._free["p", Market.SPOT] += 1
    assert broken(kernel) == "free GPUs add up by market"


@pytest.fixture
def gridded():
    """A job in two copies of two parts: one copy on two nodes on demand, the other on spot."""
    offers = [an_offer("spot", gpus=1, pool="p"), an_offer("sure", gpus=1, pool="p", market=Market.ON_DEMAND)]
    driver = Driver(offers)
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.submit(a_job("a", gpus=4, max_gpus=4))
    shape = Shape("p", 4, steady=2, grid=Grid(2, 2))
    driver.plan(Plan(hold={"spot": 2, "sure": 2}, shapes={"a": shape}))
    while driver.open:
        driver.answer(driver.open[0])
    assert driver.kernel.jobs["a"].runs_in == shape
    return driver.kernel


def seated(kernel, change):
    right = kernel.cluster.seats

    def wrong(placement, grid):
        sure = [node_id for node_id, _ in kernel.cluster.on_market(Market.ON_DEMAND, placement)]
        spot = [node_id for node_id, _ in placement if node_id not in sure]
        return change(right(placement, grid), *sure, *spot)

    kernel.cluster.seats = wrong


def test_a_grid_has_all_its_places_once(gridded):
    told_otherwise(gridded, runs_in=Shape("p", 4, steady=2, grid=Grid(1, 2)))
    assert broken(gridded) is None  # two spares
    told_otherwise(gridded, runs_in=Shape("p", 4, steady=2, grid=Grid(1, 3)))
    assert broken(gridded) is None
    told_otherwise(gridded, runs_in=Shape("p", 4, steady=2, grid=Grid(4, 1)))
    assert broken(gridded) is None
    told_otherwise(gridded, runs_in=Shape("p", 4, steady=2, grid=Grid(2, 2)), phase=Phase.BROKEN)
    gridded._plans.is_open = True  # it would be stuck
    seated(gridded, lambda found, *_: {})
    assert broken(gridded) is None  # it does not run


def test_nobody_sits_where_nobody_is(gridded):
    seated(gridded, lambda found, sure, *_: {**found, sure: (*found[sure], None)})
    assert broken(gridded) == "a GPU is in at most one place of one grid"


def test_no_place_is_empty_or_taken_twice(gridded):
    seated(gridded, lambda found, *nodes: {**found, nodes[-1]: found[nodes[0]]})
    assert broken(gridded) == "every part of a running grid has its copies"


def test_a_steady_part_that_is_a_whole_copy_holds_every_part(gridded):
    """Both nodes on demand have the first part: a copy of the second on spot goes with the spot nodes."""
    seated(
        gridded, lambda _, sure, other, one, two: {sure: ((0, 0),), other: ((1, 0),), one: ((0, 1),), two: ((1, 1),)}
    )
    assert broken(gridded) == "a steady part that is a whole copy holds every part"
    told_otherwise(gridded, runs_in=replace(gridded.jobs["a"].runs_in, steady=1))
    assert broken(gridded) is None  # less than a copy is promised


# ---------------------------------------------------------------------- purses


@pytest.fixture
def paid():
    """A job of a team with a purse for every month, beside one of all that has periods, too."""
    driver = Driver([an_offer("o", usd_per_h="3.6", pool="p", wind_down_s=10.0)])
    for holder in (VISION, ORG):
        driver.tell(PurseSet(0.0, holder, Money.from_usd(100), Period.MONTH, 1_000_000.0))
    driver.submit(a_job("a", work=1e9, gpus=4, user="ann", team="vision"))
    driver.settle(Fifo())
    assert broken(driver.kernel) is None
    return driver.kernel


def test_every_job_pays_for_what_it_holds(paid):
    (share,) = paid.budgets.shares.open["a"].values()
    share.gpus = 3
    assert broken(paid) == "a job pays for what it holds"


def test_whoever_is_paid_from_a_purse_that_is_spent_leaves(paid):
    """Nothing is spent yet."""
    tree = paid.budgets
    tree.allowed[VISION] = replace(tree.allowed[VISION], amount=Money(0))
    assert broken(paid) is None
    tree.allowed[VISION] = replace(tree.allowed[VISION], opening=-1)
    assert broken(paid) == "jobs paid from a spent budget leave"
    paid.jobs["a"] = replace(paid.jobs["a"], phase=Phase.STOPPING)
    assert broken(paid) != "jobs paid from a spent budget leave"


def test_the_purse_of_all_answers_for_itself(paid):
    paid.budgets.allowed[ORG] = replace(paid.budgets.allowed[ORG], opening=-(10**18))
    assert broken(paid) is None


@pytest.mark.parametrize("holder", [VISION, ORG])
def test_a_period_that_is_over_has_ended(paid, holder):
    tree = paid.budgets
    tree.allowed[holder] = replace(tree.allowed[holder], ends=1_000_001)
    assert broken(paid) is None
    tree.allowed[holder] = replace(tree.allowed[holder], ends=1_000_000)
    assert broken(paid) == "a period ends when it does"
