"""The laws hold for a sound kernel, and each of them notices when it is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.events import NodeLost, PlanMade, ProgressReported
from sublet.domain.money import Money
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import PlanAgain
from sublet.errors import InvariantBroken
from sublet.kernel.cluster import NodePhase
from sublet.kernel.invariants import check
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@pytest.fixture
def kernel(town):
    """Job "a" runs on one node, job "b" waits."""
    town.submit(a_job("a", gpus=4), a_job("b", gpus=8))
    town.plan(Plan(shapes={"a": Shape("p", 4)}))
    town.answer(town.open[0])
    check(town.kernel)
    return town.kernel


def lose_a_promise(kernel):
    del kernel.active["a"]


def forget_who_waits(kernel):
    kernel.waiting.remove("b")


def wait_and_run(kernel):
    kernel.waiting.add(kernel.jobs["a"])


def hold_more_than_is_placed(kernel):
    kernel.jobs["a"] = kernel.active["a"] = replace(kernel.jobs["a"], gpus=5)


def have_two_states(kernel):
    kernel.active["a"] = replace(kernel.jobs["a"])


def promise_more_than_is_counted(kernel):
    kernel.jobs["a"] = kernel.active["a"] = replace(kernel.jobs["a"], shape=Shape("p", 3))


def count_a_free_gpu_twice(kernel):
    kernel.cluster.free_gpus["p"] += 1


def lend_a_gpu_to_nobody(kernel):
    kernel.cluster.nodes["n2"].free -= 1


def let_a_stranger_in(kernel):
    kernel.cluster.nodes["n2"].jobs["stranger"] = 1


def lose_a_node(kernel):
    del kernel.cluster.nodes["n1"]


def use_a_node_that_goes(kernel):
    kernel.cluster.withdraw(kernel.cluster.nodes["n1"], NodePhase.RELEASING)


def miscount_held_nodes(kernel):
    kernel.cluster.held["o"] += 1


def pay_for_a_node_that_is_not_there(kernel):
    kernel.ledger.open("n9", "o", kernel.now_s)


def stop_paying(kernel):
    kernel.ledger.close("n1", kernel.now_s)


def rent_beyond_the_limit(kernel):
    kernel.cluster.add("n9", an_offer("o", gpus=4, pool="p"))
    kernel.ledger.open("n9", "o", kernel.now_s)


def stand_still_for_ever(kernel):
    kernel.jobs["a"] = kernel.active["a"] = replace(kernel.jobs["a"], phase=Phase.BROKEN)


def hold_less_than_is_placed(kernel):
    kernel.jobs["a"] = kernel.active["a"] = replace(kernel.jobs["a"], gpus=3)


def keep_what_an_ended_job_held(kernel):
    kernel.tenancy.leaving["c"] = ()


def miscount_leaving_nodes(kernel):
    kernel.cluster.leaving["o"] += 1


def told_otherwise(kernel, **facts):
    """The state of "a", with other facts."""
    kernel.jobs["a"] = kernel.active["a"] = replace(kernel.jobs["a"], **facts)


def have_a_share_of_nothing(kernel):
    kernel.tenancy.placement["a"] = (("n1", 4), ("n2", 0))


def give_a_gpu_to_two(kernel):
    told_otherwise(kernel, gpus=5)
    kernel.tenancy.placement["a"] = (("n1", 5),)
    kernel.cluster.nodes["n1"].jobs["a"], kernel.cluster.nodes["n1"].free = 5, -1


def split_a_block(kernel):
    told_otherwise(kernel, job=replace(kernel.jobs["a"].job, min_gpus=4, max_gpus=4, block=2))
    kernel.tenancy.placement["a"] = (("n1", 3), ("n2", 1))
    for node_id, gpus in kernel.tenancy.placement["a"]:
        kernel.cluster.nodes[node_id].jobs["a"], kernel.cluster.nodes[node_id].free = gpus, 4 - gpus


def promise_on_demand_what_nobody_asked_for(kernel):
    kernel.tenancy.promises.steady["p"] += 1


def call_spot_steady(kernel):
    told_otherwise(kernel, runs_in=replace(kernel.jobs["a"].runs_in, steady=1))


def train_without_a_core(kernel):
    told_otherwise(kernel, job=replace(kernel.jobs["a"].job, min_on_demand=1))


def miscount_the_bill(kernel):
    kernel.ledger._closed_grains += 1


def spend_more_than_the_purse(kernel):
    kernel.supply.purse.budget = replace(kernel.supply.budget, purse=Money(0))
    kernel.now_s += 3600.0


def hold_more_than_the_quota(kernel):
    kernel.pools["p"] = replace(kernel.pools["p"], max_gpus=7)


def stay_on_a_node_that_will_be_taken(kernel):
    kernel.cluster.withdraw(kernel.cluster.nodes["n1"], NodePhase.NOTICED)


BREAKS = [
    (have_a_share_of_nothing, "a share of a node is positive"),
    (give_a_gpu_to_two, "a GPU has one user"),
    (split_a_block, "GPUs of a job come in its blocks"),
    (promise_on_demand_what_nobody_asked_for, "promises on demand add up"),
    (call_spot_steady, "steady GPUs are on demand"),
    (train_without_a_core, "a job trains with its core on demand"),
    (miscount_the_bill, "the bill is intervals times prices"),
    (spend_more_than_the_purse, "spending and the cost of giving up stay within the budget"),
    (hold_more_than_the_quota, "a pool stays within its quota"),
    (stay_on_a_node_that_will_be_taken, "no job outstays a notice"),
    (lose_a_promise, "a job with a shape is active"),
    (forget_who_waits, "a job without shape and GPUs waits"),
    (wait_and_run, "a job without shape and GPUs waits"),
    (hold_more_than_is_placed, "a job holds the GPUs of its state"),
    (hold_less_than_is_placed, "a job holds the GPUs of its state"),
    (have_two_states, "a job has one state"),
    (keep_what_an_ended_job_held, "an ended job holds nothing"),
    (promise_more_than_is_counted, "promises add up"),
    (count_a_free_gpu_twice, "free GPUs add up"),
    (lend_a_gpu_to_nobody, "used and free make a node"),
    (let_a_stranger_in, "a node knows the jobs on it"),
    (lose_a_node, "GPUs are on nodes that exist"),
    (use_a_node_that_goes, "no job is on a node that is coming or going"),
    (miscount_held_nodes, "held nodes add up"),
    (miscount_leaving_nodes, "leaving nodes add up"),
    (pay_for_a_node_that_is_not_there, "we pay for what we hold"),
    (stop_paying, "we pay for what we hold"),
    (rent_beyond_the_limit, "nodes held stay within the limit"),
    (stand_still_for_ever, "no job is stuck"),
]


@pytest.mark.parametrize(("break_it", "law"), BREAKS)
def test_a_broken_law_is_noticed(kernel, break_it, law):
    break_it(kernel)
    with pytest.raises(InvariantBroken) as caught:
        check(kernel)
    assert caught.value.law == law
    assert caught.value.found


def a_job_whose_node_was_lost_and_that_no_plan_holds_one_for():
    driver = Driver([an_offer("o", gpus=4, pool="p")])
    driver.submit(a_job("a", gpus=4))
    driver.settle(Equal())
    seen = driver.kernel.seen
    driver.submit(a_job("b"))
    driver.tell(PlanMade(0.0, Plan(hold={"o": 0}), seen))  # on its way when the node went
    driver.tell(NodeLost(0.0, "n1"))
    assert driver.kernel.jobs["a"].phase is Phase.BROKEN
    return driver


def test_a_job_without_gpus_is_not_stuck_while_a_refused_policy_is_to_be_asked_again():
    driver = a_job_whose_node_was_lost_and_that_no_plan_holds_one_for()
    driver.expect_refusal(Plan(hold={"no such offer": 1}))  # all laws hold after each event
    driver.tell(ProgressReported(1.0, "a", 0.0))
    driver.ring([PlanAgain()])
    driver.settle(Equal())
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING


def test_it_is_stuck_where_nobody_asks_again():
    taken = a_job_whose_node_was_lost_and_that_no_plan_holds_one_for()
    with pytest.raises(InvariantBroken, match="no job is stuck"):
        taken.plan(Plan())
    refused = a_job_whose_node_was_lost_and_that_no_plan_holds_one_for()
    refused.expect_refusal(Plan(hold={"no such offer": 1}))
    refused.kernel._plans._wake_s = None  # as if no timer had been set
    with pytest.raises(InvariantBroken, match="no job is stuck"):
        check(refused.kernel)


def test_the_error_tells_the_story_of_the_job_to_blame(kernel):
    hold_more_than_is_placed(kernel)
    with pytest.raises(InvariantBroken) as caught:
        check(kernel)
    assert list(caught.value.story) == kernel.story("a")
