"""The best choice for everyone at once: which jobs run, and how wide."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, NodeLost
from sublet.domain.plan import JobState
from sublet.domain.shape import Shape
from sublet.domain.timers import PlanAgain
from sublet.errors import InvalidValue
from sublet.perf.phased import Phased
from sublet.perf.speedup import Linear, PowerLaw, Table
from sublet.planning.widths import runnable
from sublet.policies.mip.policy import Aim, Mip, gains
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

GPU = "T4"


def town(*jobs, gpus=4, nodes=1, policy=Mip()):  # noqa: B008 - frozen
    driver = Driver([an_offer("o", gpus=gpus, pool="p")], limits={"o": Limit(min_nodes=nodes, max_nodes=nodes)})
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, high=4, speed=None, **facts):
    return a_job(job_id, gpus=facts.pop("gpus", 1), max_gpus=high, speed=speed or Linear(), **facts)


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def goodput():
    """Scales badly early and well late."""
    return Phased(ends=(1000.0, 9000.0), rates=lambda gpu, spread: (sum(spread) ** 0.1, float(sum(spread))))


def test_in_a_plan_those_that_give_come_before_those_that_take():
    driver = town(elastic("old", speed=PowerLaw(exponent=0.3), work=1e5), gpus=4)
    assert sizes(driver) == {"old": 4}
    driver.submit(elastic("new", speed=Linear(), work=1e3), elastic("later", speed=Linear(), work=1e3))
    plan = Mip().decide(driver.kernel.snapshot())
    grows = [bool(shape and shape.gpus > driver.kernel.jobs[job_id].gpus) for job_id, shape in plan.shapes.items()]
    assert len(set(grows)) == 2
    assert grows == sorted(grows)
    assert next(iter(plan.shapes)) == "old"


# ---------------------------------------------------------------------- the objectives


def test_who_is_nearly_done_goes_first_whoever_came_first():
    driver = town(elastic("long", work=1e6, min_gpus=4, gpus=4), elastic("short", work=4000.0, min_gpus=4, gpus=4))
    assert sizes(driver) == {"short": 4}


def test_share_of_all_work_starves_who_is_nearly_done():
    jobs = elastic("new", work=1e4, min_gpus=4, gpus=4), elastic("old", work=1e6, min_gpus=4, gpus=4)
    waiting = Driver([an_offer("o", gpus=4, pool="p")], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    waiting.submit(*jobs)
    states = {state.job.id: state for state in waiting.kernel.waiting.by(lambda state: 0.0)}
    object.__setattr__(states["old"], "done", 1e6 - 10.0)
    plans = {aim: Mip(objective=aim).decide(waiting.kernel.snapshot()) for aim in ("remaining", "total")}
    assert set(plans["total"].shapes) == {"new"}
    assert set(plans["remaining"].shapes) == {"old"}


def test_throughput_is_relative_to_one_gpu_so_units_do_not_matter():
    slow, fast = PowerLaw(exponent=0.9), PowerLaw(exponent=0.5, kinds={GPU: 1000.0})
    driver = town(
        elastic("a", speed=slow, work=1e9), elastic("b", speed=fast, work=1e9), policy=Mip(objective="throughput")
    )
    assert sizes(driver) == {"a": 3, "b": 1}


def test_time_left_runs_as_many_as_it_can_then_saves_most_time():
    jobs = [elastic(f"j{at}", work=100.0 * 4**at) for at in range(3)]
    assert sizes(town(*jobs, policy=Mip(objective="time-left"))) == {"j0": 1, "j1": 1, "j2": 2}


def test_a_finished_horizon_still_prefers_the_faster_width_and_then_who_came_first():
    driver = town(elastic("a", work=1.0), elastic("b", work=1.0), gpus=3)
    assert sizes(driver) == {"a": 2, "b": 1}


def test_a_weight_counts():
    jobs = elastic("light", work=1e6, min_gpus=4, gpus=4), elastic("heavy", work=1e6, min_gpus=4, gpus=4, weight=2.0)
    assert sizes(town(*jobs)) == {"heavy": 4}


# ---------------------------------------------------------------------- changes


def test_a_pause_keeps_a_running_job_from_changing_for_little():
    driver = town(elastic("a", speed=PowerLaw(exponent=0.1), work=1e4, restart_s=900.0, high=2), gpus=2)
    driver.now_s = 60.0
    driver.submit(elastic("b", speed=PowerLaw(exponent=0.1), work=1e6, restart_s=900.0, high=1))
    driver.settle(Mip())
    assert sizes(driver) == {"a": 2}
    free = town(elastic("a", speed=PowerLaw(exponent=0.1), work=1e4, high=2), gpus=2)
    free.now_s = 60.0
    free.submit(elastic("b", speed=PowerLaw(exponent=0.1), work=1e5, high=1))
    free.settle(Mip())
    assert sizes(free) == {"a": 1, "b": 1}


@pytest.mark.parametrize("policy", [Mip(most_changes=0), Mip(change_cost=10.0)])
def test_changes_can_be_limited_or_charged_for(policy):
    driver = town(elastic("a", work=1e6), policy=policy)
    driver.now_s = 60.0
    driver.submit(elastic("b", work=10.0))
    driver.settle(policy)
    assert sizes(driver) == {"a": 4}
    driver.settle(Mip())
    assert "b" in Mip().decide(driver.kernel.snapshot()).shapes


def test_nobody_is_paused_if_told_so():
    long = elastic("long", work=1e6, min_gpus=2, gpus=2)
    short = elastic("short", work=10.0, min_gpus=4, gpus=4)
    policies = Mip(), Mip(may_pause=False)
    drivers = []
    for policy in policies:
        driver = Driver([an_offer("o", gpus=2, pool="p")], limits={"o": Limit(max_nodes=2)})
        driver.submit(long)
        driver.settle(policy)
        driver.now_s = 60.0
        driver.submit(short)
        driver.settle(policy)
        drivers.append(driver)
    assert [set(sizes(driver)) for driver in drivers] == [{"short"}, {"long"}]


def test_when_supply_falls_the_limits_are_given_up_and_the_reasons_say_so():
    policy = Mip(may_pause=False, most_changes=0)
    driver = Driver([an_offer("o", gpus=2, pool="p")], limits={"o": Limit(max_nodes=2)})
    driver.submit(elastic("a", min_gpus=2, gpus=2, work=1e5, high=2), elastic("b", min_gpus=2, gpus=2, high=2))
    driver.settle(policy)
    driver.tell(AvailabilityChanged(10.0, "o", 1))
    plan = policy.decide(driver.kernel.snapshot())
    assert plan.shapes == {"a": None}
    assert "supply fell, so the limits" in plan.reasons["a"]
    driver.tell(AvailabilityChanged(10.0, "o", 0))
    for node_id in sorted(driver.kernel.cluster.nodes):
        driver.tell(NodeLost(10.0, node_id))
    plan = policy.decide(driver.kernel.snapshot())
    assert plan.shapes == {"a": None, "b": None}
    assert plan.reasons["a"] == "no GPUs that it runs on can be had"


def test_it_looks_again_at_regular_times():
    driver = town(elastic("a", work=1e6))
    assert driver.timers[PlanAgain()] == 600.0
    assert town().timers == {}


# ---------------------------------------------------------------------- odd tables


def test_holes_and_dents_in_a_table_are_stepped_over():
    speed = Table(rates={GPU: {1: 1.0, 2: 0.5, 3: 0.0, 4: 3.0}})
    assert sizes(town(elastic("a", speed=speed, work=1e6))) == {"a": 4}
    assert sizes(town(elastic("a", speed=speed, work=1e6), gpus=3)) == {"a": 1}


def test_a_job_without_any_speed_here_waits_and_its_owner_is_told():
    driver = town(elastic("a", speed=Table(rates={GPU: {8: 1.0}}), work=1e6), elastic("b", work=1e6))
    assert sizes(driver) == {"b": 4}
    assert "speed is 0 at every width from 1 to 4" in Mip().decide(driver.kernel.snapshot()).warnings["a"]


@pytest.mark.parametrize("objective", ["remaining", "throughput", "total", "time-left"])
def test_goodput_that_changes_with_progress_is_followed_to_the_end(objective):
    jobs = [elastic(f"g{at}", speed=goodput(), work=9000.0, submit_s=60.0 * at, restart_s=5.0) for at in range(3)]
    jobs += [elastic(f"c{at}", speed=PowerLaw(exponent=0.7), work=3000.0, submit_s=90.0 * at) for at in range(3)]
    cloud = Cloud(offers=[an_offer("o", gpus=4)], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    run = simulate(jobs, Mip(objective=objective), cloud, checked=True)
    assert run.unfinished == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": "money"},
        {"horizon_s": 0.0},
        {"stickiness": -0.1},
        {"every_s": 0.0},
        {"change_cost": -1.0},
        {"most_changes": -1},
        {"most_changes": 1.5},
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        Mip(**wrong)


# ---------------------------------------------------------------------- the best of all choices


def gain(job, width, objective, horizon_s=1800.0):
    """From a standing start, by the book."""
    if width == 0:
        return -1e9 if objective == "time-left" else 0.0
    rate = job.speed.rate(GPU, (width,), 0.0)
    if rate == 0.0:
        return -math.inf
    if objective == "throughput":
        return rate / job.speed.rate(GPU, (1,), 0.0)
    if objective == "time-left":
        return -(job.work / rate + job.restart_s)
    if objective == "total":
        return min(job.work, horizon_s * rate) / job.work
    return min(1.0, (horizon_s - job.restart_s) * rate / job.work)


drawn_jobs = st.tuples(
    st.sampled_from([500.0, 3000.0, 20_000.0]),
    st.one_of(
        st.sampled_from([0.3, 0.7, 1.0]).map(lambda p: PowerLaw(exponent=p)),
        st.lists(st.sampled_from([0.0, 1.5, 2.0, 4.0]), min_size=2, max_size=2).map(
            lambda rates: Table(rates={GPU: {1: 1.0, 2: rates[0], 3: rates[1]}})
        ),
    ),
    st.sampled_from([0.0, 600.0]),
)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(drawn_jobs, min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from(["remaining", "throughput", "total", "time-left"]),
)
def test_no_other_choice_for_everyone_has_a_greater_total(facts, gpus, objective):
    jobs = [elastic(f"j{at}", 3, speed, work=work, restart_s=pause) for at, (work, speed, pause) in enumerate(facts)]
    driver = Driver([an_offer("o", gpus=gpus, pool="p")], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(*jobs)
    shapes = Mip(objective=objective).decide(driver.kernel.snapshot()).shapes
    ours = [shapes[job.id].gpus if job.id in shapes else 0 for job in jobs]

    def total(widths):
        return sum(gain(job, width, objective) for job, width in zip(jobs, widths, strict=True))

    every = [total(widths) for widths in product(range(4), repeat=len(jobs)) if sum(widths) <= gpus]
    assert sum(ours) <= gpus
    assert total(ours) == pytest.approx(max(every), abs=1e-5)  # what breaks ties is that small


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(drawn_jobs, min_size=2, max_size=4), st.integers(2, 6), st.integers(0, 2))
def test_with_few_changes_allowed_it_is_the_best_of_what_is_allowed(facts, gpus, most):
    jobs = [elastic(f"j{at}", 3, speed, work=work) for at, (work, speed, _) in enumerate(facts)]
    driver = Driver([an_offer("o", gpus=gpus, pool="p")], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(*jobs[:-1])
    driver.settle(Mip(objective="time-left"))
    before = sizes(driver)
    driver.submit(jobs[-1])
    plan = Mip(objective="throughput", most_changes=most, stickiness=0.0).decide(driver.kernel.snapshot())
    after = before | {job_id: shape.gpus if shape else 0 for job_id, shape in plan.shapes.items()}

    def total(widths):
        return sum(gain(job, width, "throughput") for job, width in zip(jobs, widths, strict=True))

    def changes(widths):
        return sum(before.get(job.id, 0) not in (0, width) for job, width in zip(jobs, widths, strict=True))

    ours = [after.get(job.id, 0) for job in jobs]
    every = [w for w in product(range(4), repeat=len(jobs)) if sum(w) <= gpus and changes(w) <= most]
    assert changes(ours) <= most
    assert total(ours) == pytest.approx(max(map(total, every)), abs=1e-5)


# ---------------------------------------------------------------------- what it costs to change


def changed(policy, **facts):
    """One that runs alone on two GPUs; then another comes that would gain a bit more from one of them."""
    driver = town(elastic("a", speed=PowerLaw(exponent=0.7), work=1e6, high=2, **facts), gpus=2, policy=policy)
    driver.now_s = 60.0
    driver.submit(elastic("b", speed=PowerLaw(exponent=0.7), work=1.58e6, high=1, **facts))
    driver.settle(policy)
    return sizes(driver)


def test_stickiness_keeps_who_runs_as_it_is_for_a_small_gain():
    """Of what one GPU gives it, a loses 0.624, and b gains 0.633 of that: 0.02 of 1.62 is more than the difference."""
    assert changed(Mip(stickiness=0.0)) == {"a": 1, "b": 1}
    assert changed(Mip()) == {"a": 2}
    assert changed(Mip(stickiness=0.001)) == {"a": 1, "b": 1}


def test_the_pause_of_a_change_and_of_a_start_is_deducted_from_the_horizon():
    assert changed(Mip(stickiness=0.0), restart_s=30.0) == {"a": 2}


def worth_of(objective, *, done, gpus=2, stays=False, speed=None, work=100.0, horizon_s=10.0):
    """What one width is worth to a job that has come so far."""
    job = elastic("a", speed=speed, work=work, restart_s=0.0)
    state = JobState(job=job, seq=0, done=done, shape=Shape("p", gpus) if stays else None)
    pool = Driver([an_offer("o", gpus=4, pool="p")]).kernel.snapshot().pools["p"]
    (choice,) = [each for each in runnable(state, pool, 4, done) if each.gpus == gpus]
    return gains(state, pool, [choice], done, Aim(objective=objective, horizon_s=horizon_s, stickiness=0.5))[0]


def test_no_more_is_gained_than_is_left_to_do():
    """Two GPUs do 20 in the horizon: of the whole, of what is left, or all of that."""
    assert worth_of("total", done=0.0) == pytest.approx(0.2)
    assert worth_of("total", done=95.0) == pytest.approx(0.05)
    assert worth_of("total", done=100.0) == 0.0
    assert worth_of("remaining", done=60.0) == pytest.approx(0.5)
    assert worth_of("remaining", done=95.0) == worth_of("remaining", done=100.0) == 1.0
    assert worth_of("time-left", done=60.0) == pytest.approx(-20.0)
    assert worth_of("throughput", done=60.0) == pytest.approx(2.0)


def test_what_never_ends_is_worth_nothing_also_to_who_is_there():
    """A width at which a later phase stands still: staying adds half of the gain to it, and nothing to this."""
    stuck = Phased(ends=(50.0, 100.0), rates=lambda gpu, spread: (1.0, 0.0))
    assert worth_of("time-left", done=0.0, speed=stuck) == -math.inf
    assert worth_of("time-left", done=0.0, speed=stuck, stays=True) == -math.inf
    assert worth_of("time-left", done=60.0, stays=True) == pytest.approx(-10.0)
    assert worth_of("total", done=0.0, stays=True) == pytest.approx(0.3)


@pytest.mark.parametrize(("least", "told"), [(4, True), (5, False)])
def test_who_makes_no_progress_on_all_that_there_is_is_told_and_who_needs_more_waits_for_it(least, told):
    driver = town(elastic("a", high=8, gpus=least, min_gpus=least, speed=Table(rates={GPU: {1: 1.0}})), gpus=4)
    plan = Mip().decide(driver.kernel.snapshot())
    assert plan.shapes == {}
    assert ("a" in plan.warnings) is told
