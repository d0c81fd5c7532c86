"""The value of time hangs on what is left to do and to spend, never on which nodes are held for it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Budget, Limit
from sublet.domain.demand import Demand
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.domain.plan import Phase
from sublet.domain.shape import Shape
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import value_of_time
from sublet.policies.price.choices import all_options, ask
from sublet.policies.price.decision import Decision
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

NODES, INF = 8, float("inf")
NOW_S, LATER_S = 3_600.0, 36_000.0

speeds = st.sampled_from([Linear(), Amdahl(parallel=0.8), Amdahl(parallel=0.98), PowerLaw(exponent=0.5)])
kinds = st.tuples(speeds, st.sampled_from([600.0, 7_200.0, 90_000.0]), st.integers(1, NODES))
budgets = st.builds(
    Budget,
    purse=st.integers(1, 400).map(lambda tenths: Money.from_usd(f"{tenths / 10 + 0.00137:.5f}")),  # no sum of costs
    average=st.sampled_from([None, Price.from_usd_per_h("0.5"), Price.from_usd_per_h("1.5")]),
    until_s=st.sampled_from([None, None, LATER_S]),
)


@st.composite
def instants(draw):
    """Some jobs, partly done, that hold nothing; a pool of both markets, and an hour gone."""
    facts = {"gpus": 1, "pool": "p", "wind_down_s": draw(st.sampled_from([0.0, 90.0, 1_800.0]))}
    spot = an_offer("s", usd_per_h=draw(st.sampled_from(["0.1", "0.5"])), hazard_per_h=0.1, **facts)
    driver = Driver(
        [spot, an_offer("d", usd_per_h="0.526", market=Market.ON_DEMAND, **facts)],
        limits={name: Limit(max_nodes=NODES) for name in ("s", "d")},
        budget=draw(budgets),
    )
    jobs = [
        a_job(f"j{n}", work=work, speed=speed, max_gpus=most)
        for n, (speed, work, most) in enumerate(draw(st.lists(kinds, min_size=1, max_size=5)))
    ]
    driver.submit(*jobs)
    seen = driver.kernel.snapshot()
    waiting = list(seen.waiting.by(lambda state: state.seq))
    states = [replace(state, done=draw(st.floats(0.0, 0.99)) * state.job.work, as_of_s=NOW_S) for state in waiting]
    spent = Money.from_usd(seen.budget.purse.usd * draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])))
    allowed = None if seen.budget.average is None else Money.from_usd(draw(st.integers(0, 9)))
    expected = draw(st.sampled_from([None, Demand.from_jobs(jobs, 10.0)]))
    facts = {"spent": spent, "allowed": allowed, "expected": expected, "now_s": NOW_S}
    return replace(seen, **facts), states


def held_on(seen, states, steady):
    """The same instant, where each job holds a GPU: so many of them on demand."""
    held = {"s": len(states) - steady, "d": steady}
    reserves = (nodes * seen.offers[name].offer.reserve.grains for name, nodes in held.items())
    shapes = [Shape("p", 1, steady=int(at < steady)) for at in range(len(states))]
    running = [
        replace(state, shape=shape, runs_in=shape, gpus=1, gpu="T4", spread=(1,), phase=Phase.RUNNING)
        for state, shape in zip(states, shapes, strict=True)
    ]
    return replace(
        seen,
        active={state.job.id: state for state in running},
        waiting=Waiting([]),
        offers=MappingProxyType({n: replace(seen.offers[n], held=held[n], coming=held[n] // 2) for n in held}),
        promised={"p": len(states)},
        steady={"p": steady},
        reserved=Money(sum(reserves)),
    )


class Waiting(list):
    """Jobs that no GPU is promised to."""

    def by(self, key):
        """In order."""
        return iter(sorted(self, key=key))

    def orders(self, *keys):
        return tuple(list(self.by(key)) for key in keys)


@settings(max_examples=examples(300), deadline=None)
@given(instants(), st.data())
def test_the_value_of_time_is_the_same_whatever_is_held(instant, data):
    seen, states = instant
    steady = [data.draw(st.integers(0, len(states))) for _ in range(2)]
    nothing = replace(seen, waiting=Waiting(states), active={})
    found = [
        [value_of_time(Terms.from_snapshot(each)).price.of(state) for state in states]
        for each in (nothing, *(held_on(seen, states, each) for each in steady))
    ]
    assert found[0] == found[1] == found[2]


@settings(max_examples=examples(100), deadline=None)
@given(instants(), st.sampled_from([0.0, 0.25, 0.75]))
def test_who_spends_as_planned_finds_time_worth_as_much_as_before(instant, done):
    """Nothing more is to come: what is left of the money has to do for what is left of the work."""
    seen, states = instant
    budget = replace(seen.budget, average=None, until_s=None)
    jobs = [state.job for state in states]
    seen = replace(seen, budget=budget, expected=Demand.from_jobs(jobs, 0.5), allowed=None)

    def price(part):
        waiting = Waiting(replace(state, done=part * state.job.work) for state in states)
        spent = Money.from_usd(part * budget.purse.usd)
        return value_of_time(Terms.from_snapshot(replace(seen, waiting=waiting, spent=spent, active={}))).price

    assert price(done).usd_per_h == pytest.approx(price(0.5).usd_per_h, rel=1e-6)


@settings(max_examples=examples(150), deadline=None)
@given(instants())
def test_no_shape_that_costs_more_than_is_left_is_a_candidate_but_the_cheapest(instant):
    """Of a total without an end: what is left for a job is at most the money that is not spent."""
    seen, states = instant
    budget = replace(seen.budget, average=None, until_s=None)
    terms = Terms.from_snapshot(replace(seen, budget=budget, allowed=None, waiting=Waiting(states), active={}))
    decision = Decision.read(terms, value_of_time(terms).over, review_s=60.0)
    if decision.jobs is None:
        return
    every, (asked, _) = all_options(decision, decision.jobs), ask(decision, decision.jobs)
    rents_C = [every.of(row).rent_to_the_end(terms.rent_R) for row in range(len(every))]
    least = {state.job.id: rent_C.min() for state, rent_C in zip(decision.jobs.states, rents_C, strict=True)}
    left_usd = budget.purse.usd - seen.spent.usd
    for row, state in enumerate(asked.jobs.states):
        rent_C = asked.table.of(row).rent_to_the_end(terms.rent_R)
        assert rent_C[rent_C < INF].max() <= max(left_usd, least[state.job.id]) * (1.0 + 1e-9)
