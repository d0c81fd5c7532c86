"""What every registered policy must do, whoever wrote it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet import plugins
from sublet.domain.actions import MakePlan
from sublet.domain.budget import Limit
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    JobFinished,
    NodeLost,
    PlanMade,
    PriceChanged,
)
from sublet.domain.plan import Phase, Plan
from sublet.sim.simulator import Cloud, simulate
from sublet.testing import strategies
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

GROUP = "sublet.policies"
NAMES = plugins.names(GROUP)
LINES_AT_MOST = 80

every_policy = pytest.mark.parametrize("name", NAMES)


def make(name):
    return plugins.load(GROUP, name)()


# ---------------------------------------------------------------------- as values


def test_there_are_policies():
    assert len(NAMES) >= 5


@every_policy
def test_a_policy_is_a_frozen_value_with_one_verb(name):
    kind = plugins.load(GROUP, name)
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert [verb for verb in vars(kind) if not verb.startswith("_") and callable(vars(kind)[verb])] == ["decide"]


@every_policy
def test_two_policies_with_the_same_knobs_are_the_same(name):
    assert make(name) == make(name)
    assert len({make(name), make(name)}) == 1


@every_policy
def test_a_policy_says_in_one_line_what_it_does(name):
    text = inspect.getdoc(plugins.load(GROUP, name))
    assert text
    assert "\n" not in text
    assert text.endswith(".")
    assert len(text) <= 120


@every_policy
def test_a_policy_is_a_file_of_its_own_and_a_short_one(name):
    kind = plugins.load(GROUP, name)
    path = Path(inspect.getfile(kind))
    assert len(path.read_text(encoding="utf-8").splitlines()) < LINES_AT_MOST
    others = [plugins.load(GROUP, other) for other in NAMES if other != name]
    assert path not in {Path(inspect.getfile(other)) for other in others}


@every_policy
def test_all_else_of_a_policy_is_in_its_folder_or_shared_by_all_in_planning(name):
    kind = plugins.load(GROUP, name)
    home = kind.__module__.rpartition(".")[0]
    if not home.startswith("sublet.policies"):
        return  # somebody else's
    folder = Path(inspect.getfile(kind)).parent
    files = [Path(inspect.getfile(kind))] if home == "sublet.policies" else sorted(folder.glob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    foreign = {
        (path.name, node.module)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("sublet.policies.")
        and not (node.module or "").startswith(f"{home}." if home != "sublet.policies" else kind.__module__)
    }
    # `boa-ideal` is what theory allows: `price` with a constant price of time, and nothing else.
    borrowed = {("ideal.py", "sublet.policies.price.plan")} if home == "sublet.policies.boa" else set()
    assert foreign == borrowed


# ---------------------------------------------------------------------- situations


@st.composite
def situations(draw):
    """A kernel some way into its life under a policy, with the next plan due; and the name of that policy."""
    name = draw(st.sampled_from(NAMES))
    offers = draw(strategies.offers())
    limits, quotas, budget = draw(strategies.limits_and_budgets(offers))
    driver = Driver(offers, limits=limits, quotas=quotas, budget=budget)
    waiting = draw(strategies.jobs(most=8, submits=st.just(0.0)))
    owned = {offer_id for offer_id, limit in limits.items() if limit.min_nodes}
    verbs = ["rest", "submit", "submit", "settle", "settle", "finish", "supply", "price", "lose"]
    for verb in draw(st.lists(st.sampled_from(verbs), min_size=8, max_size=8)):
        driver.now_s += draw(st.sampled_from([0.0, 10.0, 100.0])) if verb != "rest" else 0.0
        if verb == "submit" and waiting:
            driver.submit(waiting.pop(), *waiting[:1])
            del waiting[:1]
        elif verb == "finish" and any(s.phase is Phase.RUNNING for s in driver.kernel.active.values()):
            running = [job_id for job_id, s in driver.kernel.active.items() if s.phase is Phase.RUNNING]
            driver.tell(JobFinished(driver.now_s, draw(st.sampled_from(running))))
        elif verb == "supply":
            offer = draw(st.sampled_from(offers))
            driver.tell(AvailabilityChanged(driver.now_s, offer.id, draw(st.sampled_from([0, 1, 3, None]))))
        elif verb == "price" and (prices := [o for o in offers if o.id not in owned or budget.burn is None]):
            driver.tell(PriceChanged(driver.now_s, draw(st.sampled_from(prices)).id, draw(strategies.prices)))
        elif verb == "settle":
            driver.settle(make(name))
        elif verb == "lose" and driver.kernel.cluster.nodes:
            driver.tell(NodeLost(driver.now_s, draw(st.sampled_from(sorted(driver.kernel.cluster.nodes)))))
    driver.submit(*waiting[:2])
    return name, driver


def shapes_after(driver, plan):
    """Who has which shape once the plan is applied."""
    before = {job_id: state.shape for job_id, state in driver.kernel.jobs.items()}
    return {job_id: shape for job_id, shape in {**before, **plan.shapes}.items() if shape is not None}


@settings(max_examples=200)
@given(situations())
def test_a_plan_promises_no_more_than_could_be_held_and_paid(case):
    name, driver = case
    snapshot = driver.kernel.snapshot()
    plan = make(name).decide(snapshot)
    promised = dict.fromkeys(snapshot.pools, 0)
    for shape in shapes_after(driver, plan).values():
        promised[shape.pool] += shape.gpus
    hold = {offer_id: plan.hold.get(offer_id, state.held) for offer_id, state in snapshot.offers.items()}
    for pool_name, pool in snapshot.pools.items():
        supply = sum(snapshot.offers[offer_id].most for offer_id in pool.offer_ids) * pool.gpus_per_node
        assert promised[pool_name] <= min(supply, math.inf if pool.max_gpus is None else pool.max_gpus)
        nodes = sum(min(hold[offer_id], snapshot.offers[offer_id].most) for offer_id in pool.offer_ids)
        assert promised[pool_name] <= nodes * pool.gpus_per_node  # what is to be held carries what is promised
    burn = snapshot.budget.burn
    cost = sum(nodes * snapshot.offers[offer_id].price.micro_usd_per_h for offer_id, nodes in hold.items())
    assert burn is None or cost <= burn.micro_usd_per_h


@settings(max_examples=120)
@given(situations())
def test_a_plan_speaks_only_of_what_is_there_and_respects_the_widths_of_every_job(case):
    name, driver = case
    snapshot, jobs = driver.kernel.snapshot(), driver.kernel.jobs
    plan = make(name).decide(snapshot)
    assert set(plan.shapes) | set(plan.reasons) <= set(jobs)
    assert set(plan.hold) <= set(snapshot.offers)
    assert plan.ask_again_s is None or plan.ask_again_s > snapshot.now_s
    for job_id, shape in plan.shapes.items():
        if shape is not None:
            assert shape.pool in snapshot.pools
            assert jobs[job_id].job.min_gpus <= shape.gpus <= jobs[job_id].job.max_gpus


@settings(max_examples=100)
@given(situations())
def test_the_same_snapshot_gives_the_same_plan_live_frozen_and_again(case):
    name, driver = case
    policy = make(name)
    first = policy.decide(driver.kernel.snapshot())
    assert policy.decide(driver.kernel.snapshot()) == first
    assert list(policy.decide(driver.kernel.snapshot()).shapes) == list(first.shapes)
    frozen = driver.kernel.snapshot(frozen=True)
    assert make(name).decide(frozen) == first
    assert list(make(name).decide(frozen).shapes) == list(first.shapes)


@settings(max_examples=150)
@given(situations())
def test_once_everything_is_settled_the_plan_is_kept(case):
    name, driver = case
    driver.settle(make(name))
    plan = make(name).decide(driver.kernel.snapshot())
    assert plan.shapes == {}


@settings(max_examples=150)
@given(situations())
def test_when_supply_comes_back_every_job_runs_in_the_end(case):
    name, driver = case
    policy = make(name)
    for offer in driver.kernel.supply.offers.values():
        driver.tell(AvailabilityChanged(driver.now_s, offer.id, None))
        driver.tell(PriceChanged(driver.now_s, offer.id, offer.price))
    driver.settle(policy)
    for _ in range(len(driver.kernel.jobs)):
        running = [job_id for job_id, state in driver.kernel.active.items() if state.phase is Phase.RUNNING]
        assert running  # as long as anybody is here, somebody runs
        driver.tell(JobFinished(driver.now_s + 1.0, running[0]))
        driver.settle(policy)
    assert driver.kernel.jobs == {}


# ---------------------------------------------------------------------- none and one


@every_policy
def test_without_jobs_nothing_is_held_and_nothing_changes(name):
    driver = Driver([an_offer("o")])
    driver.tell(AvailabilityChanged(0.0, "o", 3))
    plan = make(name).decide(driver.kernel.snapshot())
    assert plan.shapes == {}
    assert sum(plan.hold.values()) == 0


@settings(max_examples=200)
@given(
    st.sampled_from(NAMES),
    strategies.jobs(most=1),
    st.integers(1, 3),
    st.sampled_from(strategies.NODE_SIZES),
    st.booleans(),
)
def test_a_lone_job_that_fits_runs_after_one_decision(name, jobs, nodes, size, owned):
    (job,) = jobs
    offer = an_offer("o", gpus=size)
    driver = Driver([offer], limits={"o": Limit(min_nodes=nodes if owned else 0, max_nodes=nodes)})
    driver.submit(job)
    plans = driver.settle(make(name))
    fits = job.min_gpus <= nodes * size
    assert plans == 1
    assert (driver.kernel.jobs[job.id].phase is Phase.RUNNING) == fits


@pytest.mark.parametrize("left", [0, 1, 2])
@every_policy
def test_a_lone_job_runs_again_after_supply_fell_and_came_back(name, left):
    driver = Driver([an_offer("o", gpus=4)], limits={"o": Limit(max_nodes=3)})
    policy = make(name)
    driver.submit(a_job("a", gpus=12, min_gpus=2))
    driver.settle(policy)
    driver.tell(AvailabilityChanged(10.0, "o", left))
    for node_id in sorted(driver.kernel.cluster.nodes)[left:]:
        driver.tell(NodeLost(10.0, node_id))
    driver.settle(policy)
    assert (driver.kernel.jobs["a"].phase is Phase.RUNNING) == (left > 0)  # what is left can hold it
    driver.tell(AvailabilityChanged(20.0, "o", 3))
    driver.settle(policy)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING


@every_policy
def test_a_lone_job_moves_to_another_pool_when_its_own_dries_up(name):
    offers = [an_offer("o", pool="p"), an_offer("z", pool="q", usd_per_h="9")]
    driver = Driver(offers, limits={"o": Limit(max_nodes=1), "z": Limit(max_nodes=1)})
    driver.submit(a_job("a", gpus=4, min_gpus=4))
    driver.settle(make(name))
    (node,) = driver.kernel.cluster.nodes.values()
    driver.tell(AvailabilityChanged(10.0, node.offer.id, 0))
    driver.tell(NodeLost(10.0, node.id))
    driver.settle(make(name))
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING


@every_policy
def test_a_budget_that_falls_to_nothing_stops_everything_and_one_that_comes_back_starts_it(name):
    driver = Driver([an_offer("o")])
    policy = make(name)
    driver.submit(a_job("a", gpus=4), a_job("b", gpus=2))
    driver.settle(policy)
    before = driver.kernel.snapshot().budget
    driver.tell(BudgetChanged(10.0, dataclasses.replace(before, burn=strategies.Price(1))))
    driver.settle(policy)
    assert driver.kernel.active == {}
    assert driver.kernel.cluster.nodes == {}
    driver.tell(BudgetChanged(20.0, before))
    driver.settle(policy)
    assert {state.phase for state in driver.kernel.jobs.values()} == {Phase.RUNNING}


@every_policy
def test_a_job_that_nothing_can_hold_does_not_keep_the_policy_from_answering(name):
    driver = Driver([an_offer("o")], limits={"o": Limit(max_nodes=1)})
    driver.submit(a_job("wide", gpus=9, min_gpus=9))
    driver.settle(make(name))
    assert driver.kernel.active == {}


# ---------------------------------------------------------------------- whole workloads


@settings(max_examples=40)
@given(strategies.jobs(most=10), st.sampled_from(NAMES))
def test_every_job_of_a_finite_workload_finishes(jobs, name):
    cloud = Cloud(offers=[an_offer("o", gpus=4)], limits={"o": Limit(min_nodes=3, max_nodes=3)})
    run = simulate(jobs, make(name), cloud, checked=True)
    assert run.unfinished == ()
    assert run.metrics.finished == len(jobs)


@every_policy
def test_a_stale_plan_is_no_fault(name):
    driver = Driver([an_offer("o")], limits={"o": Limit(max_nodes=2)})
    driver.submit(a_job("a", gpus=8), a_job("b", gpus=4))
    frozen = driver.kernel.snapshot(frozen=True)
    plan = make(name).decide(frozen)
    driver.tell(AvailabilityChanged(1.0, "o", 0))
    driver.open = [order for order in driver.open if not isinstance(order, MakePlan)]
    assert MakePlan() in driver.tell(PlanMade(2.0, plan, frozen.seen))
    assert isinstance(plan, Plan)


# ---------------------------------------------------------------------- where owners let their jobs run


@every_policy
def test_a_job_runs_only_where_its_owner_lets_it(name):
    """The kernel refuses any plan that does otherwise, so that all finish says both: nobody strays, nobody starves."""
    pools = {"s": (), "o": ("bought",), "p": ("lent",)}
    jobs = [
        a_job(f"{kind}{at}", submit_s=10.0 * at, gpus=2, max_gpus=4, pools=pools[kind])
        for at in range(4)
        for kind in pools
    ]
    offers = [an_offer("lent", pool="lent"), an_offer("bought", usd_per_h="3", pool="bought")]
    limits = {offer.id: Limit(max_nodes=1) for offer in offers}
    run = simulate(jobs, make(name), Cloud(offers=offers, limits=limits), checked=True)
    assert run.unfinished == ()


@every_policy
def test_a_job_waits_for_its_pool_while_another_is_free(name):
    driver = Driver(
        [an_offer("lent", pool="lent"), an_offer("bought", pool="bought")],
        limits={"lent": Limit(max_nodes=1), "bought": Limit(max_nodes=0)},
    )
    driver.submit(a_job("choosy", gpus=1, pools=("bought",)))
    driver.submit(a_job("easy", gpus=1))
    driver.settle(make(name))
    assert driver.kernel.jobs["choosy"].shape is None
    assert driver.kernel.jobs["easy"].shape is not None
