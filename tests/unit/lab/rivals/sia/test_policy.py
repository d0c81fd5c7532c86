"""Kind and number of GPUs for all jobs at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.domain.timers import PlanAgain
from sublet.errors import InvalidValue
from sublet.perf.speedup import ConstantRate
from sublet.planning.widths import rate_at
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.fitness import by_time_left
from sublet_lab.rivals.sia.choices import best_choices, sia_widths
from sublet_lab.rivals.sia.policy import Sia
from tests.rigs.sizes import examples


@dataclass(frozen=True)
class Kinds(ConstantRate):
    """So much per GPU of each kind, to a power of their number."""

    each: dict[str, float] = field(hash=False)
    power: float = 1.0

    def rate(self, gpu, spread, done):
        return self.each.get(gpu, 0.0) * sum(spread) ** self.power


def town(*jobs, policy=Sia(), nodes=1):  # noqa: B008 - frozen
    offers = [an_offer("t", gpus=4, gpu="T4", pool="t"), an_offer("a", gpus=8, gpu="A100", pool="a")]
    driver = Driver(offers, limits={name: Limit(min_nodes=nodes, max_nodes=nodes) for name in ("t", "a")})
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, t4=1.0, a100=2.0, power=1.0, high=24, **facts):
    return a_job(job_id, gpus=1, max_gpus=high, speed=Kinds({"T4": t4, "A100": a100}, power), **facts)


def shapes(driver):
    return {job_id: (state.shape.pool, state.gpus) for job_id, state in driver.kernel.active.items()}


def test_a_lone_job_has_what_is_fastest():
    assert shapes(town(elastic("a"))) == {"a": ("a", 8)}
    assert shapes(town(elastic("a", a100=0.0))) == {"a": ("t", 4)}
    assert shapes(town(elastic("a"), nodes=3)) == {"a": ("a", 24)}


def test_each_kind_goes_to_whom_it_helps_more():
    assert shapes(town(elastic("even", a100=1.0, high=4), elastic("keen", a100=9.0))) == {
        "even": ("t", 4),
        "keen": ("a", 8),
    }


def test_a_job_may_wait_while_others_grow_unless_waiting_is_dear():
    jobs = [elastic(f"j{at}") for at in range(12)]
    assert len(shapes(town(*jobs))) < 12
    assert sorted(gpus for _, gpus in shapes(town(*jobs, policy=Sia(waiting_cost=10.0))).values()) == [1] * 12


def test_a_job_in_its_pause_is_left_alone():
    pools = town().kernel.snapshot().pools
    job = elastic("a", restart_s=60.0)
    state = JobState(
        job=job, seq=0, phase=Phase.RUNNING, shape=Shape("t", 1), gpu="T4", gpus=1, spread=(1,), as_of_s=50.0
    )
    weights = {"rate": rate_at, "discount": by_time_left, "power": -0.5, "growth": math.inf, "waiting_cost": 1.1}
    most = {"t": 4.0, "a": 8.0}
    assert best_choices([state], pools, most, 49.0, **weights) == [Shape("t", 1)]
    assert best_choices([state], pools, most, 51.0, **weights) == [Shape("a", 8)]


@pytest.mark.parametrize("shape", [Shape("t", 4), Shape("t", 4, batch=64), Shape("t", 4, steady=1)], ids=str)
def test_a_job_stays_where_it_is_as_well_off_whatever_else_its_shape_says(shape):
    pools, most = town().kernel.snapshot().pools, {"t": 4.0, "a": 4.0}
    weights = {"rate": rate_at, "discount": by_time_left, "power": -0.5, "growth": math.inf, "waiting_cost": 1.1}
    job = elastic("a", t4=1.0, a100=1.000_000_1, high=4, restart_s=60.0)  # by less than a move costs
    state = JobState(job=job, seq=0, phase=Phase.RUNNING, shape=shape, gpu="T4", gpus=4, spread=(4,), as_of_s=0.0)
    rival = JobState(job=elastic("b", t4=0.0, a100=1.0, high=4), seq=1)
    assert best_choices([state], pools, most, 1.0, **weights) == [Shape("t", 4)]
    assert best_choices([state, rival], pools, most, 1.0, **weights) == [Shape("t", 4), Shape("a", 4)]


def test_the_planner_believes_what_it_is_told():
    assert shapes(
        town(elastic("a"), policy=Sia(rate=lambda _job, pool, gpus, _now: float(pool.name == "t" and gpus)))
    ) == {"a": ("t", 4)}


def test_widths_are_powers_of_two_and_whole_nodes():
    job = elastic("a")
    assert sia_widths(job, 8, 100.0) == [1, 2, 4, 8, 16, 24]
    assert sia_widths(job, 4, 17.0) == [1, 2, 4, 8, 12, 16]
    assert sia_widths(a_job("b", gpus=5, min_gpus=3, max_gpus=9), 8, 100.0) == [3, 4, 8]
    assert sia_widths(a_job("b", gpus=5, min_gpus=3, max_gpus=9), 8, 2.0) == []


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([1.0, 2.0, 7.0]), st.sampled_from([0.4, 1.0])),
        min_size=1,
        max_size=3,
    )
)
def test_no_other_choices_cost_less(kinds):
    jobs = [elastic(f"j{at}", t4, a100, power, high=8) for at, (t4, a100, power) in enumerate(kinds)]
    group = [JobState(job=job, seq=at) for at, job in enumerate(jobs)]
    pools, most = town().kernel.snapshot().pools, {"t": 4.0, "a": 8.0}
    weights = {"rate": rate_at, "discount": by_time_left, "growth": math.inf}
    found = best_choices(group, pools, most, 0.0, power=-0.5, waiting_cost=1.1, **weights)

    def rates(state):
        every = [
            Shape(name, gpus)
            for name, p in pools.items()
            for gpus in sia_widths(state.job, p.gpus_per_node, most[name])
        ]
        return {shape: rate for shape in every if (rate := rate_at(state, pools[shape.pool], shape.gpus, 0.0))}

    def cost(state, shape):
        known = rates(state)
        return 1.1 if shape is None else (known[shape] / min(known.values())) ** -0.5

    def fits(chosen):
        return all(sum(s.gpus for s in chosen if s and s.pool == name) <= most[name] for name in pools)

    every = product(*([None, *rates(state)] for state in group))
    best = min(sum(map(cost, group, chosen)) for chosen in every if fits(chosen))
    assert fits(found)
    assert sum(map(cost, group, found)) == pytest.approx(best)


@pytest.mark.parametrize(
    "knobs",
    [{"power": 0.0}, {"waiting_cost": 0.0}, {"round_s": 0.0}, {"growth": 0.5}],
    ids=lambda knobs: next(iter(knobs)),
)
def test_knobs_that_mean_nothing_are_refused(knobs):
    with pytest.raises(InvalidValue):
        Sia(**knobs)


# ---------------------------------------------------------------------- as published


def test_goodput_counts_to_the_power_of_minus_one_half():
    """Four T4s, one that scales and one that does not: 4 ** -0.5 + 1.1 < 2 ** -0.5 + 2 ** -0.15."""
    jobs = [elastic("keen", a100=0.0, high=4), elastic("flat", a100=0.0, power=0.3, high=4)]
    assert shapes(town(*jobs)) == {"keen": ("t", 4)}
    for power in (-1.0, -0.25):
        assert shapes(town(*jobs, policy=Sia(power=power))) == {"keen": ("t", 2), "flat": ("t", 2)}


def test_it_looks_again_every_minute_while_there_are_jobs():
    assert town(elastic("a")).timers[PlanAgain()] == 60.0
    assert town(elastic("a"), policy=Sia(round_s=7.0)).timers[PlanAgain()] == 7.0
    assert PlanAgain() not in town().timers
