"""`liveput` with a price for samples: what is held is worth its rent, and what is lost is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sublet.domain.events import AvailabilityChanged, NodeLost
from sublet.domain.plan import Phase
from sublet.domain.shape import Grid
from sublet.errors import InvalidValue
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.policies.liveput.policy import Liveput, booted
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
PROFILE = spot_job("toy", {(wide, 2): 10.0 * wide for wide in range(1, 7)}, COSTS)  # 5 samples a second and GPU


def gridded():
    facts = {"speed": Gridded(PROFILE), "pauses": LivePauses(PROFILE), "survives": True}
    return a_job("g", work=math.inf, gpus=2, min_gpus=2, max_gpus=12, **facts)


def driven(policy, supply=9, usd_per_h="1.8", **facts):
    driver = Driver([an_offer("o", gpus=1, usd_per_h=usd_per_h, pool="p", **facts)])
    driver.tell(AvailabilityChanged(0.0, "o", supply))
    driver.submit(gridded())
    driver.settle(policy)
    return driver


@pytest.mark.parametrize(("usd_per_sample", "gpus"), [(0.0, None), (0.9e-4, None), (1.2e-4, 8), (1.0, 8)])
def test_gpus_are_held_where_their_samples_are_worth_their_rent(usd_per_sample, gpus):
    """1.8 USD an hour and GPU are 1e-4 for each of its samples. Nine make four copies of two, and one that is spare."""
    driver = driven(Liveput(usd_per_sample=usd_per_sample))
    shape = driver.kernel.jobs["g"].shape
    assert (None if shape is None else shape.grid.gpus) == gpus


def test_without_a_price_for_samples_all_is_held():
    shape = driven(Liveput()).kernel.jobs["g"].shape
    assert (shape.gpus, shape.grid) == (9, Grid(4, 2))


def test_the_cheapest_offer_sets_the_rent_of_a_gpu_whatever_the_size_of_a_node():
    policy, pool = Liveput(usd_per_sample=1.0), {"gpus": 4, "pool": "p"}
    driver = Driver(
        [an_offer("a", usd_per_h="8", boot_s=30.0, **pool), an_offer("b", usd_per_h="6", boot_s=20.0, **pool)]
    )
    snapshot = driver.kernel.snapshot()
    money = policy._money(snapshot.pools["p"], snapshot)
    assert (money.usd_per_sample, money.usd_per_h, money.boot_s) == (1.0, 1.5, 30.0)
    assert Liveput()._money(snapshot.pools["p"], snapshot) is None


def test_after_a_loss_it_goes_on_with_what_is_there():
    policy = Liveput(usd_per_sample=1.0)
    driver = driven(policy)
    before = driver.kernel.jobs["g"].shape
    driver.now_s = 600.0
    lost = next(node_id for node_id, _ in driver.kernel.tenancy.placement["g"])
    driver.tell(AvailabilityChanged(600.0, "o", 7))
    driver.tell(NodeLost(600.0, lost))
    driver.settle(policy)
    after = driver.kernel.jobs["g"]
    assert after.phase is Phase.RUNNING
    assert after.shape.grid == Grid(3, 2)
    assert before.grid == Grid(4, 2)


def test_what_is_on_its_way_has_not_booted():
    driver = Driver([an_offer("a", gpus=4, pool="p"), an_offer("b", gpus=4, pool="p")])
    snapshot = driver.kernel.snapshot()
    offers = dict(snapshot.offers)
    offers["a"] = replace(offers["a"], held=3, coming=1)
    offers["b"] = replace(offers["b"], held=1)
    assert booted(snapshot.pools["p"], replace(snapshot, offers=offers)) == 12


def test_a_negative_worth_is_refused():
    with pytest.raises(InvalidValue, match="usd_per_sample"):
        Liveput(usd_per_sample=-0.1)


@pytest.mark.parametrize(("boot_s", "gpus", "again_s"), [(0.0, 12, 670.0), (120.0, None, 120.0)])
def test_more_is_rented_at_once_and_trained_on_when_it_has_booted(boot_s, gpus, again_s):
    """While three boot the grid goes on as it is, and it looks again at the next tick; else once it has been calm."""
    policy = Liveput(usd_per_sample=1.0)
    driver = driven(policy, boot_s=boot_s)
    driver.tell(AvailabilityChanged(70.0, "o", 12))
    plan = policy.decide(driver.kernel.snapshot())
    assert {job_id: shape.gpus for job_id, shape in plan.shapes.items()} == ({} if gpus is None else {"g": gpus})
    assert plan.hold == {"o": 12}
    assert plan.ask_again_s == again_s


def test_who_is_cut_down_gives_back_what_makes_no_whole_copy_and_grows_by_what_has_booted():
    """Five leave two copies of two, and the fifth goes back; of twelve that are to be had again all are rented."""
    policy = Liveput(usd_per_sample=1.0)
    driver = driven(policy, boot_s=120.0)
    driver.tell(AvailabilityChanged(100.0, "o", 5))
    plan = policy.decide(driver.kernel.snapshot())
    assert (plan.shapes["g"].grid, plan.hold) == (Grid(2, 2), {"o": 4})
    driver.settle(policy)
    driver.tell(AvailabilityChanged(130.0, "o", 12))
    assert policy.decide(driver.kernel.snapshot()).hold == {"o": 12}
