"""How long a job waits with growing onto what flaps: worked out from what a visit costs it and what it brings.

A node of four GPUs that stayed for 30 s three times in a row, a minute apart: it came at 0, 60 and 120 s.
"""

from __future__ import annotations

import math

import pytest

from sublet.domain.actions import RentNode
from sublet.domain.budget import UNLIMITED
from sublet.domain.events import BudgetChanged, NodeNoticed
from sublet.domain.plan import Plan
from sublet.kernel.growing import Growing
from sublet.kernel.supply import Supply
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

NEVER = -math.inf


def supply_of(*offers, held=0):
    """So many nodes are held of the first."""
    supply = Supply(offers, {}, {}, UNLIMITED)
    for number in range(held):
        supply.cluster.add(f"h{number}", offers[0])
    return supply


def visited(supply, visits, *, told=False, offer_id="o"):
    growing, offer = Growing(supply), supply.offers[offer_id]
    for number, (came_s, went_s) in enumerate(visits):
        supply.cluster.add(f"n{number}", offer)
        node = supply.cluster.nodes[f"n{number}"]
        growing.come(node, came_s)
        growing.go(node, went_s, told=told)
        growing.forget(node)
        supply.cluster.remove(node)
    return growing


def until_s(
    job, visits=((0.0, 30.0), (60.0, 90.0), (120.0, 150.0)), *, nodes=0, held=4.0, more=0.0, told=False, **offer
):
    supply = supply_of(an_offer("o", gpus=4, pool="p", **offer), held=nodes)
    return visited(supply, visits, told=told).until_s(job, "o", held, more)


def job(restart_s=10.0, **facts):
    return a_job(work=1e6, gpus=4, max_gpus=99, restart_s=restart_s, **{"survives": True, **facts})


def test_a_window_is_so_long_that_two_restarts_are_a_twenty_fifth_of_it():
    """It holds 4 GPUs and would get 4 more for 30 s, worth 15 s of its time: less than twice the 20 s."""
    assert until_s(job()) == 120.0 + 500.0


def test_who_wins_twice_what_it_costs_does_not_wait():
    assert until_s(job(restart_s=3.75)) == NEVER  # 15 s for 7.5 s
    assert until_s(job(restart_s=3.76)) == pytest.approx(120.0 + 188.0)


def test_what_it_brings_is_its_part_of_the_gpus_that_it_would_have_then():
    """Twelve more beside four bring 22.5 of 30 s, four more beside twelve 7.5; less than a node is a node."""
    assert until_s(job(restart_s=5.62), more=12.0) == NEVER
    assert until_s(job(restart_s=5.63), more=12.0) > 120.0
    assert until_s(job(restart_s=1.87), held=12.0) == NEVER
    assert until_s(job(restart_s=1.88), held=12.0) > 120.0
    assert until_s(job(restart_s=1.88), held=12.0, more=1.0) > 120.0
    assert until_s(job(restart_s=1.87), held=12.0, more=1.0) == NEVER


def test_a_move_from_elsewhere_brings_nothing_that_is_known():
    assert until_s(job(restart_s=0.5), held=math.inf) == NEVER  # its window is 25 s, and three of them are over
    assert until_s(job(restart_s=1.1), held=math.inf) == pytest.approx(120.0 + 55.0)


def test_what_others_hold_of_it_takes_its_share_of_the_losses():
    """Of 32 GPUs it would have 8: every fourth loss is its own, and what it has stays four times as long."""
    assert until_s(job(restart_s=14.9), nodes=8) == NEVER
    assert until_s(job(restart_s=15.1), nodes=8) > 120.0
    assert until_s(job(restart_s=3.76), nodes=1) > 120.0  # who has more than there is of it loses no less often


def test_an_offer_flaps_where_three_visits_fall_into_three_windows():
    """From the first coming to the last going are 150 s: three windows of 50 s."""
    assert until_s(job(restart_s=1.0), held=math.inf) == NEVER
    assert until_s(job(restart_s=1.0001), held=math.inf) > 120.0
    assert until_s(job(), visits=((0.0, 30.0), (60.0, 90.0))) == NEVER  # two are bad luck


def test_only_the_last_three_visits_count():
    long_ago = ((-90000.0, -80000.0), (0.0, 30.0), (60.0, 90.0), (120.0, 150.0))
    assert until_s(job(), visits=long_ago) == 620.0


@pytest.mark.parametrize(
    ("facts", "offer", "redone_s"),
    [
        ({}, {}, 0.0),  # it survives a loss
        ({"survives": False, "checkpoint_every_s": 20.0}, {}, 10.0),  # half of what lies between two checkpoints
        ({"survives": False, "checkpoint_every_s": 900.0}, {}, 15.0),  # no more than half of the stay
        ({"survives": False, "checkpoint_write_s": 5.0}, {"notice_s": 5.0}, 0.0),  # it is told in time to write one
        ({"survives": False, "checkpoint_every_s": 20.0, "checkpoint_write_s": 5.1}, {"notice_s": 5.0}, 10.0),
        ({"survives": False, "checkpoint_every_s": 20.0, "checkpoint_write_s": 0.0}, {}, 10.0),
    ],
)
def test_work_that_is_done_again_is_part_of_the_cost(facts, offer, redone_s):
    assert until_s(job(**facts), **offer) == 120.0 + (20.0 + redone_s) * 25.0


def test_who_goes_with_a_wave_that_was_told_is_of_that_wave():
    """Told at 30 s, to be gone by 41 s: who came at 35 s and goes at 41 s makes it a stay of 41 s, from 0 s on.

    Half of the average is what it brings, and half of that again what two restarts may cost.
    """
    facts = {"told": True, "notice_s": 10.0}
    alike = ((0.0, 30.0), (35.0, 41.0), (60.0, 100.0))  # stays of 41 and of 40 s: (41 + 40) / 2 / 2 / 4 = 5.0625
    assert until_s(job(restart_s=5.06), alike, **facts) == NEVER
    assert until_s(job(restart_s=5.07), alike, **facts) > 60.0
    late = ((0.0, 30.0), (35.0, 41.1), (60.0, 100.0))  # after its notice has ended: a visit of its own, of 6.1 s
    assert until_s(job(restart_s=3.17), late, **facts) == NEVER  # (30 + 6.1 + 40) / 3 / 2 / 4
    assert until_s(job(restart_s=3.18), late, **facts) > 60.0
    unannounced = {"told": False, "notice_s": 10.0}  # nobody has told: the wave is over at once
    assert until_s(job(restart_s=3.16), alike, **unannounced) == NEVER  # (30 + 6 + 40) / 3 / 2 / 4
    assert until_s(job(restart_s=3.17), alike, **unannounced) > 60.0


def test_what_goes_after_another_without_a_coming_between_is_the_same_visit():
    supply = supply_of(an_offer("o", gpus=4, pool="p"))
    growing = visited(supply, ((0.0, 30.0), (60.0, 90.0), (120.0, 150.0)))
    supply.cluster.add("late", supply.offers["o"])
    node = supply.cluster.nodes["late"]
    growing.go(node, 160.0, told=False)  # it never came
    growing.come(node, 170.0)
    growing.forget(node)
    growing.go(node, 180.0, told=False)  # nobody knows when it came
    assert growing.until_s(job(), "o", 4.0) == 620.0


def test_of_an_offer_that_is_gone_or_was_never_seen_nobody_waits():
    supply = supply_of(an_offer("o", gpus=4, pool="p"), an_offer("other", gpus=4, pool="p"))
    growing = visited(supply, ((0.0, 30.0), (60.0, 90.0), (120.0, 150.0)))
    assert growing.until_s(job(), "other", 4.0) == NEVER
    assert growing.until_s(job(), "o", 4.0) == 620.0
    del supply.offers["o"]
    assert growing.until_s(job(), "o", 4.0) == NEVER


def test_who_was_put_aside_stands_in_line_again_when_a_node_of_a_calm_offer_comes():
    supply = supply_of(an_offer("o", gpus=4, pool="p"), an_offer("calm", gpus=4, pool="p"))
    growing = visited(supply, ((0.0, 30.0), (60.0, 90.0), (120.0, 150.0)))
    for node_id, offer_id in (("new", "o"), ("other", "calm")):
        supply.cluster.add(node_id, supply.offers[offer_id])
    growing.put_aside["a"] = None
    assert growing.come(supply.cluster.nodes["new"], 170.0) == []
    assert growing.come(supply.cluster.nodes["other"], 170.0) == ["a"]
    assert not growing.put_aside


def test_what_came_and_went_goes_on_from_a_snapshot():
    supply = supply_of(an_offer("o", gpus=4, pool="p", notice_s=10.0))
    growing = visited(supply, ((0.0, 30.0), (60.0, 90.0), (120.0, 150.0)), told=True)
    growing.put_aside["a"] = None
    twin = Growing(supply)
    twin.restore(growing.facts())
    assert twin.facts() == growing.facts()
    assert twin.until_s(job(), "o", 4.0) == growing.until_s(job(), "o", 4.0) == 620.0


@pytest.mark.parametrize(("notice_s", "waves"), [(10.0, 1), (0.0, 2)])
def test_a_kernel_tells_a_notice_from_a_loss(notice_s, waves):
    """One that comes after a notice and is noticed before that has ended is of its wave."""
    driver = Driver([an_offer("o", gpus=4, pool="p", notice_s=notice_s)])
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.plan(Plan(hold={"o": 1}))
    driver.answer(driver.open[0])
    driver.tell(NodeNoticed(30.0, "n1", 30.0 + notice_s))
    driver.plan(Plan(hold={"o": 1}))
    driver.now_s = 35.0
    driver.answer(next(order for order in driver.open if isinstance(order, RentNode)))
    driver.tell(NodeNoticed(38.0, "n2", 38.0 + notice_s))
    visits = driver.kernel.tenancy.growing.facts()["visits"]["o"]
    assert len(visits) == 2
    assert len({wave_s for _, _, wave_s in visits}) == waves
