"""What to rent on a budget: theory's figures, and the laws that any plan must keep."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import Infeasible, InvalidValue, MissingData, UnknownName
from sublet.perf.speedup import Amdahl, PowerLaw
from sublet.rental.plan import held_from, rental_plan
from sublet.rental.shapes import classes_from_jobs, shapes_of
from sublet_lab.studies.boa.kinds import ROWS, measured_mix, offers_of

AMDAHL, ROOT = Amdahl(parallel=0.8), PowerLaw(exponent=0.5)


def jobs_of(speeds, *, per_h=0.4, count=41, work=3600.0, **facts):
    """`count` jobs of each speed, one of each at a time, at this rate by number / span."""
    gap_s = 3600 * count / per_h / (count - 1)
    return [
        Job(id=f"{name}{at}", submit_s=at * gap_s, work=work, speed=speed, max_gpus=64, model=name, **facts)
        for at in range(count)
        for name, speed in speeds.items()
    ]


def offer(gpu="T4", *, usd_per_gpu_h=1.0, gpus_per_node=64, market=Market.ON_DEMAND, hazard_per_h=0.0):
    price = Price.from_usd_per_h(round(usd_per_gpu_h * gpus_per_node, 6))
    return Offer(
        id=f"{gpu}:{market}",
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        market=market,
        price=price,
        hazard_per_h=hazard_per_h,
    )


PAPER = jobs_of({"amdahl": AMDAHL, "root": ROOT})
T4 = offer()


def widths(plan):
    return {of.name: {shape.gpus for shape, _ in of.chosen} for of in plan.classes}


def test_the_example_of_the_paper_gives_six_and_nine_gpus_and_a_third_of_an_hour():
    plan = rental_plan(PAPER, [T4], 2.0)
    assert widths(plan) == {"amdahl": {6}, "root": {9}}
    assert plan.mean_s == pytest.approx(1200, rel=1e-9)
    assert plan.spend_usd_per_h == pytest.approx(2.0)
    assert plan.value_of_time == pytest.approx(9, rel=0.1)  # 9 for fractions of GPUs
    assert plan.held.mean == pytest.approx(2.0)  # a GPU-hour costs 1 USD


@pytest.mark.parametrize(("budget", "hours"), [(1.5, 0.4322), (3.0, 0.2463)])
def test_whole_gpus_with_mixing_lose_little_against_fractions(budget, hours):
    plan = rental_plan(PAPER, [T4], budget)
    assert hours <= plan.mean_s / 3600 <= 1.003 * hours
    assert plan.spend_usd_per_h == pytest.approx(budget)


def test_more_work_of_every_class_at_the_same_value_of_time_changes_no_shape():
    plan = rental_plan(PAPER, [T4], 2.0)
    triple = rental_plan(jobs_of({"amdahl": AMDAHL, "root": ROOT}, per_h=1.2), [T4], 6.0)
    assert widths(triple) == widths(plan)
    assert triple.value_of_time == pytest.approx(plan.value_of_time)
    assert triple.mean_s == pytest.approx(plan.mean_s)


@pytest.mark.parametrize("budget", [0.9, 1.3, 2.0, 5.0])
def test_another_kind_of_gpu_never_slows(budget):
    fast = Amdahl(parallel=0.8, kinds={"T4": 1.0, "A100": 3.0})
    jobs = jobs_of({"fast": fast, "root": PowerLaw(exponent=0.5, kinds={"T4": 1.0, "A100": 1.5})})
    alone = rental_plan(jobs, [T4], budget)
    both = rental_plan(jobs, [T4, offer("A100", usd_per_gpu_h=2.5)], budget)
    assert both.mean_s <= alone.mean_s * (1 + 1e-9)
    assert both.least.usd_per_h <= alone.least.usd_per_h * (1 + 1e-9)


@pytest.mark.parametrize("quotas", [None, {"T4": 1.9}])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_marginal_value_is_the_slope_of_the_mean_time(quotas, weight):
    jobs = [replace(job, weight=weight if job.model == "root" else 1.0) for job in PAPER]
    offers = [T4, offer("A100", usd_per_gpu_h=1.7)]
    at = 1.87
    here, more = (rental_plan(jobs, offers, budget, quotas=quotas) for budget in (at, at + 1e-6))
    assert (here.mean_s - more.mean_s) / 1e-6 == pytest.approx(here.saved_s_per_usd, rel=1e-3)


def test_the_frontier_falls_and_holds_the_plan():
    plan = rental_plan(PAPER, [T4], 2.0)
    assert plan.least.usd_per_h == pytest.approx(0.8)
    for before, after in pairwise(plan.frontier):
        assert after.usd_per_h > before.usd_per_h
        assert after.mean_s < before.mean_s
    money, times = zip(*((at.usd_per_h, at.mean_s) for at in plan.frontier), strict=True)
    assert np.interp(2.0, money, times) == pytest.approx(plan.mean_s)


def test_money_beyond_the_fastest_shapes_is_left_over():
    plan = rental_plan(PAPER, [T4], 1000.0)
    assert math.isinf(plan.value_of_time)
    assert plan.saved_s_per_usd == 0.0
    assert plan.spend_usd_per_h == pytest.approx(plan.most.usd_per_h)
    assert "money does not run short" in plan.classes[0].why


def test_a_budget_that_is_too_small_is_refused_with_the_smallest_that_is_not():
    with pytest.raises(Infeasible, match=r"USD 0\.80 per hour is the smallest budget") as refused:
        rental_plan(PAPER, [T4], 0.5)
    assert refused.value.needed == pytest.approx(0.8)
    assert rental_plan(PAPER, [T4], 0.8).spend_usd_per_h == pytest.approx(0.8)


def test_the_reason_states_the_price_of_the_next_step_and_the_value_of_time():
    plan = rental_plan(PAPER, [T4], 1.9)
    for of in plan.classes:
        if len(of.chosen) == 1:
            assert "per hour saved" in of.why
            assert f"time is worth USD {plan.value_of_time:,.2f}" in of.why
        else:
            assert "equally good" in of.why


def test_short_jobs_run_narrower_because_a_start_is_paid_for():
    long, short = (jobs_of({"root": ROOT}, work=work, restart_s=600.0) for work in (36_000.0, 360.0))
    mixed = [*long, *(replace(job, id=f"s{job.id}", model="short") for job in short)]
    wide = widths(rental_plan(mixed, [T4], 8.0))
    assert max(wide["short"]) < min(wide["root"])


def test_a_quota_holds_on_average_and_its_price_is_zero_when_it_does_not_bind():
    offers = [T4, offer("A100", usd_per_gpu_h=1.7)]
    fast = {"amdahl": Amdahl(parallel=0.8, kinds={"T4": 1.0, "A100": 1.6}), "root": ROOT}
    jobs = jobs_of(fast)
    free = rental_plan(jobs, offers, 2.5)
    loose = rental_plan(jobs, offers, 2.5, quotas={"T4": 1000.0})
    assert loose.mean_s == pytest.approx(free.mean_s)
    assert loose.congestion_usd_per_gpu_h["T4"] == pytest.approx(0.0, abs=1e-9)
    most = 0.5 * free.held_by_kind["T4"].mean
    tight = rental_plan(jobs, offers, 2.5, quotas={"T4": most})
    assert tight.held_by_kind["T4"].mean <= most * (1 + 1e-6)
    assert tight.congestion_usd_per_gpu_h["T4"] > 0
    assert tight.mean_s >= free.mean_s
    assert tight.spend_usd_per_h <= 2.5 * (1 + 1e-6)


def test_a_quota_that_no_plan_keeps_is_refused_with_one_that_is_kept():
    with pytest.raises(Infeasible, match="the quota of T4") as refused:
        rental_plan(PAPER, [T4], 5.0, quotas={"T4": 0.5})
    assert refused.value.needed == pytest.approx(0.8)
    with pytest.raises(Infeasible, match=r"the quota of (T4|A100)") as refused:
        rental_plan(PAPER, [T4, offer("A100")], 5.0, quotas={"T4": 0.5, "A100": 0.1})
    assert refused.value.needed - refused.value.available == pytest.approx(0.2)
    with pytest.raises(UnknownName, match="did you mean T4"):
        rental_plan(PAPER, [T4], 5.0, quotas={"T44": 5})


def test_quotas_on_two_kinds_hold_together():
    plan = rental_plan(PAPER, [T4, offer("A100", usd_per_gpu_h=1.2)], 9.0, quotas={"T4": 1.0, "A100": 0.8})
    assert plan.held_by_kind["T4"].mean <= 1.0 + 1e-6
    assert plan.held_by_kind["A100"].mean <= 0.8 + 1e-6
    assert "the fastest within the quota" in plan.classes[0].why


def test_jobs_that_arrive_at_once_have_no_rate():
    with pytest.raises(InvalidValue, match="span of arrivals"):
        rental_plan([replace(job, submit_s=0.0) for job in PAPER], [T4], 2.0)


# ---------------------------------------------------------------------- spot


def test_tight_budgets_buy_spot_and_rich_ones_on_demand():
    jobs = jobs_of({"root": ROOT}, restart_s=180.0, checkpoint_every_s=300.0)
    offers = [T4, offer(usd_per_gpu_h=0.35, market=Market.SPOT, hazard_per_h=1 / 3)]
    bought = [{shape.offer.market for shape, _ in rental_plan(jobs, offers, b).classes[0].chosen} for b in (0.3, 99.0)]
    assert bought == [{Market.SPOT}, {Market.ON_DEMAND}]


def test_wide_jobs_on_spot_that_would_never_end_are_no_shapes():
    spot = offer(gpus_per_node=1, market=Market.SPOT, hazard_per_h=1.0)
    jobs = jobs_of({"root": ROOT}, restart_s=180.0, checkpoint_every_s=300.0)
    (like,) = classes_from_jobs(jobs)
    slowdowns = [shape.slowdown for shape in shapes_of(like, [spot])]
    # Ten hits per hour: each costs three minutes of restart, and what was done since a checkpoint of every 5 min.
    assert slowdowns[9] == pytest.approx(math.exp(0.5) * math.expm1(10 / 12) / (10 / 12))
    assert slowdowns == sorted(slowdowns)
    plan = rental_plan(jobs, [spot], 99.0)
    assert max(shape.gpus for of in plan.classes for shape, _ in of.chosen) < 11
    with pytest.raises(Infeasible, match="cannot run on T4 spot"):
        rental_plan(jobs_of({"root": ROOT}), [spot], 99.0)  # no checkpoints: a reclaim loses all


def test_young_and_daly_space_checkpoints_whose_writing_takes_a_known_time():
    job = replace(PAPER[0], checkpoint_write_s=8.0)
    per_s = 1 / 3600
    every_s = math.sqrt(2 * 8.0 / per_s)
    (like,) = classes_from_jobs([job, replace(job, id="k", submit_s=job.submit_s + 60.0)])
    shapes = shapes_of(like, [offer(gpus_per_node=1, market=Market.SPOT, hazard_per_h=1.0)])
    assert shapes[0].slowdown == pytest.approx(math.expm1(per_s * (every_s + 8.0)) / (per_s * every_s))
    first_order = 1 / (1 - 8.0 / every_s - per_s * every_s / 2)
    assert shapes[0].slowdown == pytest.approx(first_order, rel=0.01)


# ---------------------------------------------------------------------- GPUs held


def test_gpus_held_are_compound_poisson():
    rng = np.random.default_rng(0)
    present = [(3.0, 4), (0.7, 16), (12.0, 1)]
    drawn = sum(gpus * rng.poisson(jobs, 400_000) for jobs, gpus in present)
    held = held_from(present)
    assert held.mean == pytest.approx(float(np.mean(drawn)), rel=0.01)
    assert abs(held.p99 - float(np.quantile(drawn, 0.99))) <= 1
    assert held_from([(900.0, 64)]).p99 == pytest.approx(64 * (900 + 2.326 * 30), rel=0.01)  # far from underflow


# ---------------------------------------------------------------------- two kinds and spot, measured


@pytest.fixture(scope="module")
def mix():
    try:
        return measured_mix()
    except MissingData:
        pytest.skip("the step times of Sia are not ours to ship")


@pytest.mark.outside_data
@pytest.mark.parametrize("row", ROWS)
def test_two_kinds_and_spot_give_the_table_of_the_design(mix, row):
    offers = offers_of(row)
    minutes, least = ROWS[row]
    for budget, expected in minutes.items():
        plan = rental_plan(mix, offers, budget)
        assert plan.mean_s / 60 == pytest.approx(expected, rel=0.015)
        assert plan.least.usd_per_h == pytest.approx(least, rel=0.015)
    for budget in {6, 10} - set(minutes):
        with pytest.raises(Infeasible):
            rental_plan(mix, offers, budget)
