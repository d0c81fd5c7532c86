"""Conformance of policies."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import strategies as st

from sublet.domain.actions import MakePlan, RentNode
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    JobChanged,
    JobFinished,
    NodeLost,
    PlanMade,
    PriceChanged,
    RentRefused,
)
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan, Policy
from sublet.domain.shape import Shape
from sublet.domain.timers import PlanAgain
from sublet.domain.units import DAY_S
from sublet.perf.live.rows import StepRow
from sublet.perf.live.speed import LiveSpeed, batch_steps
from sublet.sim.simulator import Cloud, simulate
from sublet.testing import strategies
from sublet.testing.conformance import DrawingSuite, check_value
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

LONGEST_SENTENCE = 120


class PolicySuite(DrawingSuite):
    """Inherit it as `TestMine` and say `registered_as = "mine"`, or write `make` for one with other knobs."""

    group = "sublet.policies"
    plans_batches: ClassVar[bool] = False  # whether it is asked to; one that does not leaves jobs at their own

    def make(self) -> Policy:
        """A fresh one; twice must be the same."""
        policy: Policy = self.plugin()()
        return policy

    # ------------------------------------------------------------------ as values

    def test_a_policy_is_a_frozen_value_with_one_verb(self) -> None:
        check_value(self.make(), verb="decide")

    def test_two_policies_with_the_same_knobs_are_the_same(self) -> None:
        assert self.make() == self.make()
        assert len({self.make(), self.make()}) == 1

    def test_a_policy_says_in_one_line_what_it_does(self) -> None:
        text = inspect.getdoc(type(self.make()))
        assert text, "its docstring is what `sublet policies` prints"
        assert "\n" not in text
        assert text.endswith(".")
        assert len(text) <= LONGEST_SENTENCE

    # ------------------------------------------------------------------ in any situation

    def test_a_plan_promises_no_more_than_could_be_held_and_paid(self) -> None:
        def law(driver: Driver) -> None:
            snapshot = driver.kernel.snapshot()
            plan = self.make().decide(snapshot)
            promised = dict.fromkeys(snapshot.pools, 0)
            for shape in shapes_after(driver, plan).values():
                promised[shape.pool] += shape.gpus
            hold = {offer_id: plan.hold.get(offer_id, state.held) for offer_id, state in snapshot.offers.items()}
            for name, pool in snapshot.pools.items():
                supply = sum(snapshot.offers[offer_id].most for offer_id in pool.offer_ids) * pool.gpus_per_node
                most = min(supply, math.inf if pool.max_gpus is None else pool.max_gpus)
                assert promised[name] <= most, f"pool {name}: more GPUs are promised than could be held"
                nodes = sum(min(hold[offer_id], snapshot.offers[offer_id].most) for offer_id in pool.offer_ids)
                assert promised[name] <= nodes * pool.gpus_per_node, f"pool {name}: `hold` is less than was promised"
            burn = snapshot.budget.burn
            cost = sum(nodes * snapshot.offers[offer_id].price.micro_usd_per_h for offer_id, nodes in hold.items())
            assert burn is None or cost <= burn.micro_usd_per_h, "what is to be held costs more an hour than allowed"

        self.for_examples(law, situations(self.make))

    def test_a_plan_speaks_only_of_what_is_there_and_respects_the_widths_of_every_job(self) -> None:
        def law(driver: Driver) -> None:
            snapshot, jobs = driver.kernel.snapshot(), driver.kernel.jobs
            plan = self.make().decide(snapshot)
            assert set(plan.shapes) | set(plan.reasons) <= set(jobs), "it speaks of jobs that are not there"
            assert set(plan.hold) <= set(snapshot.offers), "it holds nodes that are not on offer"
            assert plan.ask_again_s is None or plan.ask_again_s > snapshot.now_s, "it wants to be asked in the past"
            for job_id, shape in plan.shapes.items():
                if shape is not None:
                    job = jobs[job_id].job
                    assert shape.pool in snapshot.pools
                    assert job.min_gpus <= shape.gpus <= job.max_gpus, f"job {job_id} cannot run that wide"

        self.for_examples(law, situations(self.make))

    def test_the_same_snapshot_gives_the_same_plan_live_frozen_and_again(self) -> None:
        def law(driver: Driver) -> None:
            policy = self.make()
            first = policy.decide(driver.kernel.snapshot())
            assert policy.decide(driver.kernel.snapshot()) == first, "asked again, it answers otherwise"
            assert list(policy.decide(driver.kernel.snapshot()).shapes) == list(first.shapes)
            frozen = driver.kernel.snapshot(frozen=True)
            assert self.make().decide(frozen) == first, "a fresh one answers otherwise: it remembers, or draws"
            assert list(self.make().decide(frozen).shapes) == list(first.shapes)

        self.for_examples(law, situations(self.make))

    def test_once_everything_is_settled_the_plan_is_kept(self) -> None:
        def law(driver: Driver) -> None:
            driver.settle(self.make())
            plan = self.make().decide(driver.kernel.snapshot())
            assert plan.shapes == {}, "nothing happened, and it changes its mind"

        self.for_examples(law, situations(self.make))

    def test_when_supply_comes_back_every_job_runs_in_the_end(self) -> None:
        def law(driver: Driver) -> None:
            policy = self.make()
            for offer in driver.kernel.supply.offers.values():
                driver.tell(AvailabilityChanged(driver.now_s, offer.id, None))
                driver.tell(PriceChanged(driver.now_s, offer.id, offer.price))
            driver.settle(policy)
            for _ in range(len(driver.kernel.jobs)):
                running = [job_id for job_id, state in driver.kernel.active.items() if state.phase is Phase.RUNNING]
                assert running, "jobs wait, everything can be had, and none runs"
                driver.tell(JobFinished(driver.now_s + 1.0, running[0]))
                driver.settle(policy)
            assert driver.kernel.jobs == {}

        self.for_examples(law, situations(self.make))

    # ------------------------------------------------------------------ none and one

    def test_without_jobs_nothing_is_held_and_nothing_changes(self) -> None:
        driver = Driver([an_offer("o")])
        driver.tell(AvailabilityChanged(0.0, "o", 3))
        plan = self.make().decide(driver.kernel.snapshot())
        assert plan.shapes == {}
        assert sum(plan.hold.values()) == 0, "it rents for no job"

    def test_a_lone_job_that_fits_runs_after_one_decision(self) -> None:
        def law(jobs: list[Job], nodes: int, size: int, owned: bool) -> None:  # noqa: FBT001 - drawn
            (job,) = jobs
            offer = an_offer("o", gpus=size)
            driver = Driver([offer], limits={"o": Limit(min_nodes=nodes if owned else 0, max_nodes=nodes)})
            driver.submit(job)
            plans = driver.settle(self.make())
            fits = job.min_gpus <= nodes * size
            assert plans == 1
            assert (driver.kernel.jobs[job.id].phase is Phase.RUNNING) == fits

        sizes = st.sampled_from(strategies.NODE_SIZES)
        self.for_examples(law, strategies.jobs(most=1), st.integers(1, 3), sizes, st.booleans())

    @pytest.mark.parametrize("left", [0, 1, 2])
    def test_a_lone_job_runs_again_after_supply_fell_and_came_back(self, left: int) -> None:
        driver = Driver([an_offer("o", gpus=4)], limits={"o": Limit(max_nodes=3)})
        policy = self.make()
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

    def test_a_lone_job_moves_to_another_pool_when_its_own_dries_up(self) -> None:
        offers = [an_offer("o", pool="p"), an_offer("z", pool="q", usd_per_h="9")]
        driver = Driver(offers, limits={"o": Limit(max_nodes=1), "z": Limit(max_nodes=1)})
        driver.submit(a_job("a", gpus=4, min_gpus=4))
        driver.settle(self.make())
        (node,) = driver.kernel.cluster.nodes.values()
        driver.tell(AvailabilityChanged(10.0, node.offer.id, 0))
        driver.tell(NodeLost(10.0, node.id))
        driver.settle(self.make())
        assert driver.kernel.jobs["a"].phase is Phase.RUNNING

    def test_a_lone_job_moves_to_another_pool_when_nothing_of_what_was_promised_can_be_had(self) -> None:
        offers = [an_offer("o", pool="p"), an_offer("z", pool="q", usd_per_h="9")]
        driver = Driver(offers, limits={"o": Limit(max_nodes=1), "z": Limit(max_nodes=1)})
        driver.submit(a_job("a", gpus=4, min_gpus=4))
        driver.plan(self.make().decide(driver.kernel.snapshot()))
        (rent,) = (order for order in driver.last if isinstance(order, RentNode))
        driver.tell(AvailabilityChanged(10.0, rent.offer_id, 0))
        driver.tell(RentRefused(10.0, rent.node_id))
        driver.settle(self.make())
        assert driver.kernel.jobs["a"].phase is Phase.RUNNING

    def test_a_budget_that_falls_to_nothing_stops_everything_and_one_that_comes_back_starts_it(self) -> None:
        driver = Driver([an_offer("o")])
        policy = self.make()
        driver.submit(a_job("a", gpus=4), a_job("b", gpus=2))
        driver.settle(policy)
        before = driver.kernel.snapshot().budget
        driver.tell(BudgetChanged(10.0, dataclasses.replace(before, burn=Price(1))))
        driver.settle(policy)
        assert driver.kernel.active == {}, "there is no money, and jobs run"
        assert driver.kernel.cluster.nodes == {}, "there is no money, and nodes are held"
        driver.tell(BudgetChanged(20.0, before))
        driver.settle(policy)
        assert {state.phase for state in driver.kernel.jobs.values()} == {Phase.RUNNING}

    def test_a_job_that_nothing_can_hold_does_not_keep_the_policy_from_answering(self) -> None:
        driver = Driver([an_offer("o")], limits={"o": Limit(max_nodes=1)})
        driver.submit(a_job("wide", gpus=9, min_gpus=9))
        driver.settle(self.make())
        assert driver.kernel.active == {}

    # ------------------------------------------------------------------ whole workloads

    def test_every_job_of_a_finite_workload_finishes(self) -> None:
        def law(jobs: list[Job]) -> None:
            cloud = Cloud(offers=[an_offer("o", gpus=4)], limits={"o": Limit(min_nodes=3, max_nodes=3)})
            run = simulate(jobs, self.make(), cloud, checked=True)
            assert run.unfinished == ()
            assert run.metrics.finished == len(jobs)

        self.for_examples(law, strategies.jobs(most=10), most=max(3, self.examples // 5))  # each is a whole simulation

    def test_a_stale_plan_is_no_fault(self) -> None:
        driver = Driver([an_offer("o")], limits={"o": Limit(max_nodes=2)})
        driver.submit(a_job("a", gpus=8), a_job("b", gpus=4))
        frozen = driver.kernel.snapshot(frozen=True)
        plan = self.make().decide(frozen)
        driver.tell(AvailabilityChanged(1.0, "o", 0))
        driver.open = [order for order in driver.open if not isinstance(order, MakePlan)]
        assert MakePlan() in driver.tell(PlanMade(2.0, plan, frozen.seen))
        assert isinstance(plan, Plan)

    # ------------------------------------------------------------------ where owners let their jobs run

    def test_a_job_runs_only_where_its_owner_lets_it(self) -> None:
        """The kernel refuses any plan that does otherwise, so all finish: no job strays, and none starves."""
        pools: dict[str, tuple[str, ...]] = {"s": (), "o": ("bought",), "p": ("lent",)}
        jobs = [
            a_job(f"{kind}{at}", submit_s=10.0 * at, gpus=2, max_gpus=4, pools=pools[kind])
            for at in range(4)
            for kind in pools
        ]
        offers = [an_offer("lent", pool="lent"), an_offer("bought", usd_per_h="3", pool="bought")]
        limits = {offer.id: Limit(max_nodes=1) for offer in offers}
        run = simulate(jobs, self.make(), Cloud(offers=offers, limits=limits), checked=True)
        assert run.unfinished == ()

    @pytest.mark.parametrize("others", [0, 1, 6])
    def test_no_job_waits_for_ever_for_money_that_a_cheaper_pool_could_use(self, others: int) -> None:
        offers = [an_offer("o", gpus=1, pool="p"), an_offer("z", gpus=1, usd_per_h="1.5", pool="q")]
        jobs = [a_job(f"j{at}", gpus=2, max_gpus=8, pools=("p",) if at % 2 else ()) for at in range(others)]
        choosy = a_job("choosy", submit_s=1.0, gpus=2, max_gpus=8, pools=("q",))
        cloud = Cloud(offers=offers, budget=Budget(burn=Price.from_usd_per_h("8")))
        run = simulate([*jobs, choosy], self.make(), cloud, checked=True)
        assert run.unfinished == ()

    @pytest.mark.parametrize(("usd_per_h", "least", "others"), [("3", 1, 0), ("5", 2, 0), ("4", 1, 2), ("6", 3, 1)])
    def test_no_job_waits_for_ever_for_a_core_while_cheap_spot_could_use_the_money(
        self, usd_per_h: str, least: int, others: int
    ) -> None:
        """The money is enough for the least of it, and never for all that it wishes."""
        offers = [
            an_offer("s", gpus=1, pool="p"),
            an_offer("d", gpus=1, usd_per_h="3", pool="p", market=Market.ON_DEMAND),
        ]
        jobs = [a_job(f"j{at}", gpus=2, max_gpus=4) for at in range(others)]
        core = [a_job(f"core{at}", gpus=4, min_gpus=least, max_gpus=8, min_on_demand=1) for at in range(2)]
        cloud = Cloud(offers=offers, budget=Budget(burn=Price.from_usd_per_h(usd_per_h)))
        run = simulate([*jobs, *core], self.make(), cloud, checked=True, until_s=DAY_S)
        assert run.unfinished == ()

    def test_no_job_waits_for_the_cheapest_pool_that_has_too_few_for_it(self) -> None:
        offers = [an_offer("o", gpus=1, pool="p"), an_offer("z", gpus=1, usd_per_h="3", pool="q")]
        limits = {"o": Limit(max_nodes=1), "z": Limit(max_nodes=8)}
        job = a_job("wide", gpus=2, min_gpus=2, max_gpus=4)
        run = simulate([job], self.make(), Cloud(offers=offers, limits=limits), checked=True, until_s=DAY_S)
        assert run.unfinished == ()

    def test_a_job_waits_for_its_pool_while_another_is_free(self) -> None:
        driver = Driver(
            [an_offer("lent", pool="lent"), an_offer("bought", pool="bought")],
            limits={"lent": Limit(max_nodes=1), "bought": Limit(max_nodes=0)},
        )
        driver.submit(a_job("choosy", gpus=1, pools=("bought",)))
        driver.submit(a_job("easy", gpus=1))
        driver.settle(self.make())
        assert driver.kernel.jobs["choosy"].shape is None
        assert driver.kernel.jobs["easy"].shape is not None

    def test_a_job_with_a_core_on_demand_has_it_or_waits_and_the_plan_is_kept(self) -> None:
        """The kernel refuses any plan with less.

        Facts that no policy needs to know are handled by `planning.draft.Draft`.
        """
        offers = [an_offer("s", gpus=2, pool="p"), an_offer("d", gpus=2, pool="p", market=Market.ON_DEMAND)]
        driver = Driver(offers, limits={"s": Limit(max_nodes=3), "d": Limit(max_nodes=1)})
        driver.submit(*(a_job(job_id, gpus=2, min_gpus=2, max_gpus=4, min_on_demand=2) for job_id in "ab"))
        driver.settle(self.make())
        (running,) = (state for state in driver.kernel.jobs.values() if state.phase is Phase.RUNNING)
        assert driver.kernel.cluster.on_demand(driver.kernel.tenancy.placement[running.job.id]) == 2
        assert self.make().decide(driver.kernel.snapshot()).shapes == {}, "nothing happened, and it changes its mind"

    def test_a_job_that_trains_gets_a_better_batch_once_its_noise_is_known(self) -> None:
        """Under a controller no session chooses one by itself: a batch that no plan names is never used."""
        if not self.plans_batches:
            pytest.skip("it leaves jobs at their own batch; say plans_batches = True of one that does not")
        rows = tuple(
            StepRow(gpu="T4", gpus=1, samples=samples, step_s=0.1 + 0.001 * samples, piece_s=0.1 + 0.001 * samples)
            for samples in (8, 64)
        )
        blind = LiveSpeed(rows=rows, batches=batch_steps(8, 8, 512), initial=8, batch_now=8, unit=1e4)
        job = a_job("a", gpus=1, speed=blind)
        driver, policy = Driver([an_offer("o", gpus=1)], limits={"o": Limit(max_nodes=1)}), self.make()
        driver.submit(job)
        driver.settle(policy)
        (first,) = (state.shape for state in driver.kernel.jobs.values())
        assert first is not None
        assert first.batch is None, "nothing speaks for another"
        driver.tell(JobChanged(1.0, dataclasses.replace(job, speed=dataclasses.replace(blind, noise=400.0))))
        driver.settle(policy)
        driver.ring([timer for timer in driver.timers if isinstance(timer, PlanAgain)])  # some look at set times alone
        driver.settle(policy)
        (shape,) = (state.shape for state in driver.kernel.jobs.values())
        assert shape is not None
        assert shape.batch is not None
        assert shape.batch >= 8 * 8  # the best is 200


def shapes_after(driver: Driver, plan: Plan) -> dict[str, Shape]:
    """The shape of each job once the plan is applied."""
    before = {job_id: state.shape for job_id, state in driver.kernel.jobs.items()}
    return {job_id: shape for job_id, shape in {**before, **plan.shapes}.items() if shape is not None}


@st.composite
def situations(draw: st.DrawFn, make: Callable[[], Policy]) -> Driver:
    """A kernel some way into its life under a policy, with the next plan due."""
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
            driver.settle(make())
        elif verb == "lose" and driver.kernel.cluster.nodes:
            driver.tell(NodeLost(driver.now_s, draw(st.sampled_from(sorted(driver.kernel.cluster.nodes)))))
    driver.submit(*waiting[:2])
    return driver
