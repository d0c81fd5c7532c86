"""Who leaves nodes on demand, how many of its GPUs, and from which node: pools of both markets, in small towns."""

from __future__ import annotations

from sublet.domain.actions import ResizeJob
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase, Plan
from sublet.domain.shape import Grid, Shape
from sublet.kernel.changing import shape_of_survivors
from sublet.perf.speedup import Linear
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


class InAnyGrid(Linear):
    """Data parallel is one grid of many."""

    def bound_to(self, shape):
        return self


SPOT = an_offer("s", gpus=2, pool="p", usd_per_h="1")
DEMAND = an_offer("d", gpus=2, pool="p", market=Market.ON_DEMAND, usd_per_h="3")


def p(gpus, steady=0, grid=None):
    return Shape("p", gpus, steady=steady, grid=None if grid is None else Grid(*grid))


def settled(driver):
    while driver.open:
        driver.answer(driver.open[0])
    return driver


def town(hold, shapes):
    driver = Driver([SPOT, DEMAND])
    driver.submit(*(a_job(job_id, gpus=4, min_gpus=1, max_gpus=9) for job_id in shapes))
    driver.plan(Plan(hold=hold, shapes=shapes))
    return settled(driver)


def joined(driver, **shapes):
    driver.submit(*(a_job(job_id, gpus=4, min_gpus=1, max_gpus=9) for job_id in shapes))
    return shapes


def gpus_by_market(driver, job_id="a"):
    nodes, found = driver.kernel.cluster.nodes, {"s": 0, "d": 0}
    for node_id, gpus in driver.kernel.tenancy.placement[job_id]:
        found[nodes[node_id].offer.id] += gpus
    return found


def test_for_one_who_lacks_gpus_on_demand_so_many_go_as_it_lacks():
    driver = town({"s": 0, "d": 2}, {"a": p(4)})
    driver.plan(Plan(hold={"s": 2, "d": 2}, shapes=joined(driver, b=p(1, steady=1))))
    settled(driver)
    assert gpus_by_market(driver, "b") == {"s": 0, "d": 1}
    assert gpus_by_market(driver) == {"s": 1, "d": 3}


def test_nobody_makes_room_where_a_node_on_demand_is_on_its_way():
    driver = town({"s": 0, "d": 1}, {"a": p(2)})
    driver.plan(Plan(hold={"s": 1, "d": 2}, shapes=joined(driver, b=p(2, steady=2))))
    spot = next(order for order in driver.open if order.offer_id == "s")
    driver.answer(spot)
    assert not any(isinstance(order, ResizeJob) for order in driver.open)
    settled(driver)
    assert [gpus_by_market(driver, job_id) for job_id in "ab"] == [{"s": 0, "d": 2}, {"s": 0, "d": 2}]


def test_of_nodes_that_are_given_up_the_one_with_least_of_a_job_goes_first():
    """Either could go, and one node is given back for one GPU that moves in place of two."""
    driver = town({"s": 0, "d": 2}, {"a": p(3)})
    driver.plan(Plan(hold={"s": 1, "d": 0}))
    settled(driver)
    assert gpus_by_market(driver) == {"s": 1, "d": 2}
    assert driver.kernel.cluster.held["d"] == 1


def test_a_grid_that_shrinks_keeps_what_it_has_on_demand_wherever_that_sits():
    driver = town({"s": 1, "d": 0}, {"a": p(2, grid=(1, 2))})
    driver.plan(Plan(hold={"s": 1, "d": 1}, shapes={"a": p(4, 2, grid=(2, 2))}))
    settled(driver)
    assert gpus_by_market(driver) == {"s": 2, "d": 2}
    driver.plan(Plan(hold={"s": 0, "d": 1}, shapes={"a": p(2, 2, grid=(1, 2))}))
    settled(driver)
    assert gpus_by_market(driver) == {"s": 0, "d": 2}


def test_survivors_train_in_the_grid_of_the_promise_where_it_fits_and_else_in_the_one_that_ran():
    ran = p(8, grid=(1, 3))
    for promised, kept, grid in (((2, 2), 4, Grid(2, 2)), ((3, 2), 4, Grid(1, 3)), ((3, 2), 2, None)):
        state = JobState(
            job=a_job("a", gpus=4, min_gpus=1, max_gpus=9, speed=InAnyGrid()),
            seq=0,
            phase=Phase.BROKEN,
            shape=p(8, grid=promised),
            runs_in=ran,
            gpu="T4",
        )
        found = shape_of_survivors(state, (("n1", kept),), 0, [])
        assert (None if found is None else found.grid) == grid
