"""A job's past: when it held how many GPUs."""

from __future__ import annotations

from sublet.domain.budget import Limit
from sublet.domain.events import NodeLost
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


class Wish:
    def __init__(self, **shapes):
        self.shapes = {job_id: gpus and Shape("p", gpus) for job_id, gpus in shapes.items()}

    def decide(self, snapshot):
        return Plan(shapes=self.shapes, hold={"o": 1})


def test_every_change_of_gpus_ends_a_stint_and_their_sum_is_the_service():
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=1)})
    driver.submit(a_job("a", gpus=4, work=1e6))
    for at_s, gpus in ((10.0, 2), (30.0, 3), (70.0, None), (100.0, 1)):
        driver.now_s = at_s
        driver.plan(Wish(a=gpus).decide(None))
        driver.settle(Wish(a=gpus))
    state = driver.kernel.jobs["a"]
    assert state.stints == ((10.0, 30.0, 2), (30.0, 70.0, 3))
    assert sum((until_s - since_s) * gpus for since_s, until_s, gpus in state.stints) == state.gpu_s == 160.0
    assert state.attained_gpu_s(110.0) == 170.0


def test_where_the_state_of_a_job_lies_is_known_after_its_node_was_lost():
    driver = Driver([an_offer("o", pool="p"), an_offer("z", pool="q")])
    driver.submit(a_job("a", gpus=4, work=1e6))
    assert driver.kernel.jobs["a"].lies_in == ""
    driver.settle(Wish(a=4))
    assert driver.kernel.jobs["a"].lies_in == "p"
    (node_id,) = driver.kernel.cluster.nodes
    driver.tell(NodeLost(10.0, node_id))
    state = driver.kernel.jobs["a"]
    assert (state.runs_in, state.lies_in) == (None, "p")
