"""The simulator and the policies against the theory of budget-optimal rental.

With one kind of GPU, nodes of one GPU, no quota and nothing that takes time, no policy can be better than the frontier
of its jobs allows for the money that it really spent: a run below that line shows a fault of the simulator. The policy
`boa-ideal` with a true forecast lies on the line.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sublet import plugins
from sublet.domain.budget import UNLIMITED, Budget
from sublet.domain.demand import Arrivals, Demand, kind_of
from sublet.domain.job import Job
from sublet.domain.money import Money
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market, Offer
from sublet.errors import Infeasible
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear, PowerLaw, Table
from sublet.policies.price.policy import Price
from sublet.rental.plan import rental_plan
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.solve.curves import Curves
from sublet.solve.price import frontier
from sublet_lab.rivals.boa_ideal import BoaIdeal
from tests.rigs.sizes import sized

NAMES = plugins.names("sublet.policies")
CONFIDENCE = 0.999
BILLING_S = 1e-5  # instants are billed in whole microseconds


def offer(offer_id="o", usd_per_h="1", gpu="T4", **fields):
    price = Usd.from_usd_per_h(usd_per_h)
    facts = {"gpus_per_node": 1, "market": Market.ON_DEMAND, "minimum_billing_s": 0.0}
    return Offer(id=offer_id, gpu=gpu, price=price, **{**facts, **fields})


def cloud(budget=UNLIMITED, **facts):
    return Cloud(offers=(offer(),), budget=budget, **facts)


def average(usd_per_h):
    return Budget(average=Usd.from_usd_per_h(usd_per_h))


def line_of(jobs):
    """All that money can buy for these very jobs, in hours and USD; a phase of a job is a row of its own."""
    rows_h, rows_usd = [], []
    for job in jobs:
        ends = [*job.speed.ends[:-1], math.inf]
        for begin, end in zip([0.0, *ends], ends, strict=False):
            work = min(end, job.work) - begin
            if work <= 0:
                continue
            widths = np.arange(1, 13)
            rate_C = np.array([job.speed.rate("T4", (1,) * int(k), begin) for k in widths])
            rate_C[(widths < job.min_gpus) | (widths > job.max_gpus)] = 0.0
            with np.errstate(divide="ignore"):
                hours_C = work / rate_C / 3600
            rows_h.append(hours_C)
            rows_usd.append(hours_C * widths)
    return frontier(Curves.from_tables(rows_h, rows_usd), np.ones(len(rows_h)))


def hours_and_bound(run, line):
    """Hours of all jobs together, and the least that the money spent could have made of them."""
    assert run.unfinished == ()
    hours = sum(row.completion_s for row in run.record.jobs.values()) / 3600
    assert run.metrics.mean_s * run.metrics.finished == pytest.approx(hours * 3600)
    rounding_usd = BILLING_S * (1 + run.record.plans) * 12 / 3600
    assert run.metrics.usd >= line.least - rounding_usd  # nobody works for less than the cheapest width costs
    return hours, line.at(max(line.least, run.metrics.usd)).jobs


# ---------------------------------------------------------------------- no policy below the line


constant_speeds = st.one_of(
    st.sampled_from([0.3, 0.8, 0.97]).map(lambda p: Amdahl(parallel=p)),
    st.sampled_from([0.0, 0.5, 0.9]).map(lambda e: PowerLaw(exponent=e)),
    st.sampled_from([Linear(), Table(rates={"T4": {1: 1.0, 2: 1.5, 4: 4.5, 8: 4.0, 12: 9.0}})]),
)
phased_speeds = st.sampled_from([0.2, 0.9]).map(
    lambda x: Phased(ends=(150.0, 600.0, 900.0), rates=lambda gpu, spread: (1.0, sum(spread) ** x, 2.0 * sum(spread)))
)


@st.composite
def workloads(draw, speeds=constant_speeds | phased_speeds, *, most=8):
    """Jobs in bursts and alone, elastic and rigid, of a few kinds."""
    kinds = [(draw(speeds), draw(st.integers(1, 3)), draw(st.integers(3, 12))) for _ in range(draw(st.integers(1, 3)))]
    jobs, at_s = [], 0.0
    for number in range(draw(st.integers(2, most))):
        at_s += draw(st.sampled_from([0.0, 20.0, 777.7])) if number > 1 else 100.0 * number
        speed, low, high = draw(st.sampled_from(kinds))
        gpus = draw(st.integers(low, high))
        work = draw(st.sampled_from([60.0, 500.0, 1234.5]))
        jobs.append(Job(id=f"j{number}", submit_s=at_s, work=work, speed=speed, gpus=gpus, min_gpus=low, max_gpus=high))
    return jobs


def forecast_of(jobs):
    return Demand.from_jobs(jobs, (jobs[-1].submit_s - jobs[0].submit_s) / 3600)


budgets = st.one_of(
    st.just(UNLIMITED),
    st.sampled_from(["1", "4", "20", "300"]).map(average),
    st.sampled_from(["3", "9", "30"]).map(lambda usd: Budget(burn=Usd.from_usd_per_h(usd))),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_policy_makes_more_of_its_money_than_the_frontier_of_its_jobs_allows(name):
    policy = plugins.load("sublet.policies", name)()

    @settings(max_examples=20, deadline=None, database=None)
    @given(workloads(), budgets, st.booleans())
    def none_is_better(jobs, budget, told):
        run = simulate(jobs, policy, cloud(budget), expected=forecast_of(jobs) if told else None)
        hours, bound = hours_and_bound(run, line_of(jobs))
        assert hours >= bound * (1 - 1e-6)

    none_is_better()


@settings(max_examples=100, deadline=None)
@given(workloads(constant_speeds, most=12), st.sampled_from(["0.7", "1", "2.5", "8", "33", "500"]))
def test_the_ideal_policy_with_a_true_forecast_lies_on_the_line(jobs, usd_per_h):
    """Whatever it spends: what it does at its one price of time is best for that money."""
    jobs = [replace(job, min_gpus=1) for job in jobs]
    run = simulate(jobs, BoaIdeal(), cloud(average(usd_per_h)), expected=forecast_of(jobs))
    hours, bound = hours_and_bound(run, line_of(jobs))
    assert hours == pytest.approx(bound, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(workloads(constant_speeds, most=12), st.sampled_from(["1", "8", "100"]), st.randoms(use_true_random=False))
def test_sizes_changed_between_arrivals_of_a_kind_leave_it_on_the_same_line(jobs, usd_per_h, random):
    jobs = [replace(job, min_gpus=1) for job in jobs]
    places = {}
    for at, job in enumerate(jobs):
        places.setdefault(kind_of(job), []).append(at)
    mixed = list(jobs)
    for members in places.values():
        works = [jobs[at].work for at in members]
        random.shuffle(works)
        for at, work in zip(members, works, strict=True):
            mixed[at] = replace(jobs[at], work=work)
    line = line_of(jobs)
    for each in (jobs, mixed):
        run = simulate(each, BoaIdeal(), cloud(average(usd_per_h)), expected=forecast_of(each))
        hours, bound = hours_and_bound(run, line)
        assert hours == pytest.approx(bound, rel=1e-6)


# ---------------------------------------------------------------------- long-run means


KINDS = (Amdahl(parallel=0.8), PowerLaw(exponent=0.5))  # the published example
RATE_PER_H = 0.4  # of each
MEAN_H = 1.0
MANY = 1_500
BURST = 5


def poisson(rng):
    return np.cumsum(rng.exponential(1 / (2 * RATE_PER_H), MANY))


def bursts(rng):
    """Several at a time, and long pauses."""
    return np.repeat(np.cumsum(rng.exponential(BURST / (2 * RATE_PER_H), MANY // BURST)), BURST)


def exponential(rng):
    return rng.exponential(MEAN_H, MANY)


def heavy_tail(rng):
    """Pareto with a finite variance, but no third moment."""
    alpha = 2.5
    return MEAN_H * (alpha - 1) / alpha * (1 + rng.pareto(alpha, MANY))


def stream(arrivals_h, sizes_h, rng):
    which = rng.integers(0, 2, MANY)
    return [
        Job(
            id=f"j{n}",
            submit_s=float(at * 3600),
            work=float(size * 3600),
            speed=KINDS[which[n]],
            max_gpus=30,
            model=str(which[n]),
        )
        for n, (at, size) in enumerate(zip(arrivals_h, sizes_h, strict=True))
    ]


def truth(jobs):
    """The rates and mean sizes by which the jobs were drawn, whatever came of it."""
    likes = {kind_of(job): job for job in jobs}
    kinds = {key: Arrivals(like=like, jobs=RATE_PER_H * 100, work=MEAN_H * 3600) for key, like in likes.items()}
    return Demand(kinds=kinds, hours=100.0)


def theory(usd_per_h):
    widths = np.arange(1, 31)
    hours_IC = np.array([[MEAN_H / speed.speedup(int(k)) for k in widths] for speed in KINDS])
    return frontier(Curves.from_tables(hours_IC, hours_IC * widths), [RATE_PER_H] * 2).at(usd_per_h)


def assert_mean(values, expected, batches=30, *, power=None):
    """Zero, or what is expected, lies in the interval of the means of batches, and the interval is narrow."""
    means = np.asarray(values).reshape(batches, -1).mean(axis=1)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, batches - 1) * means.std(ddof=1) / math.sqrt(batches)
    assert half < (power or 0.15 * expected), "the interval is too wide to test anything"
    assert abs(means.mean() - expected) <= half, f"{means.mean():.4f} +- {half:.4f}, theory {expected:.4f}"


@pytest.mark.parametrize(
    ("arrivals", "sizes", "usd_per_h"),
    [
        (poisson, exponential, 1.5),
        (poisson, exponential, 3.0),
        (poisson, heavy_tail, 1.5),
        (bursts, exponential, 1.5),
        (bursts, heavy_tail, 1.5),
    ][:: sized(4, 1)],
)
def test_mean_time_and_mean_spend_are_those_of_theory_whatever_the_input(arrivals, sizes, usd_per_h):
    """No job waits, so that times are independent; GPUs held on average are GPU-hours per job over the time per job."""
    rng = np.random.default_rng([int(usd_per_h * 2), len(arrivals.__name__), len(sizes.__name__)])
    arrivals_h = arrivals(rng)
    jobs = stream(arrivals_h, sizes(rng), rng)
    policy = BoaIdeal(review_s=1e6)  # one phase, one price: nobody ever changes
    run = simulate(jobs, policy, cloud(average(usd_per_h)), expected=truth(jobs), keep_segments=False)
    assert run.unfinished == ()
    assert run.metrics.mean_wait_s == 0.0
    rows = list(run.record.jobs.values())
    best = theory(usd_per_h)
    assert best.spend == pytest.approx(usd_per_h)
    assert_mean([row.completion_s / 3600 for row in rows], best.jobs / (2 * RATE_PER_H))
    gaps_h = np.diff(arrivals_h, prepend=0.0)
    over = [row.gpu_s / 3600 - usd_per_h * gap for row, gap in zip(rows, gaps_h, strict=True)]
    assert_mean(over, 0.0, power=0.3 * usd_per_h / (2 * RATE_PER_H))
    assert run.metrics.usd == pytest.approx(sum(row.gpu_s for row in rows) / 3600, rel=1e-6)


# ---------------------------------------------------------------------- more to choose from, and more in the way


@st.composite
def mixes(draw):
    """Jobs of two or three kinds that can run on both kinds of GPU, over ten hours."""
    jobs = []
    for kind in range(draw(st.integers(2, 3))):
        kinds = {"T4": 1.0, "A100": draw(st.sampled_from([1.5, 3.0, 6.0]))}
        exponent = draw(st.sampled_from([0.3, 0.6, 0.9]))
        speed = PowerLaw(exponent=exponent, kinds=kinds)
        work = 3600.0 * draw(st.sampled_from([0.5, 3.0]))
        jobs += [
            Job(id=f"{kind}-{n}", submit_s=18_000.0 * n, work=work, speed=speed, max_gpus=6, model=str(kind))
            for n in range(3)
        ]
    return jobs


T4, A100 = offer("t"), offer("a", usd_per_h="3.5", gpu="A100")
amounts = st.sampled_from([0.9, 1.3, 2.0, 5.0, 40.0])


def mean_s(jobs, offers, usd_per_h, **facts):
    """The theory; infinite where the money is too little for it."""
    try:
        return rental_plan(jobs, offers, usd_per_h, **facts).mean_s
    except Infeasible:
        return math.inf


@settings(max_examples=40, deadline=None)
@given(mixes(), amounts)
def test_another_kind_of_gpu_never_makes_the_mean_time_longer(jobs, usd_per_h):
    both = mean_s(jobs, [T4, A100], usd_per_h)
    assert both <= min(mean_s(jobs, [T4], usd_per_h), mean_s(jobs, [A100], usd_per_h)) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(mixes(), amounts, st.integers(1, 6))
def test_wider_jobs_are_never_slower(jobs, usd_per_h, more):
    wider = [replace(job, max_gpus=job.max_gpus + more) for job in jobs]
    assert mean_s(wider, [T4, A100], usd_per_h) <= mean_s(jobs, [T4, A100], usd_per_h) * (1 + 1e-9)


@settings(max_examples=8, deadline=None)
@given(mixes(), amounts, st.sampled_from([0.1, 1.0, 3.0]))
def test_a_quota_never_makes_the_mean_time_shorter(jobs, usd_per_h, gpus):
    free, limited = (mean_s(jobs, [T4, A100], usd_per_h, quotas=quotas) for quotas in (None, {"A100": gpus}))
    assert limited >= free * (1 - 1e-7)
    assert mean_s(jobs, [T4, A100], usd_per_h, quotas={"A100": 2 * gpus}) <= limited * (1 + 1e-7)


@settings(max_examples=40, deadline=None)
@given(mixes(), amounts, st.sampled_from([30.0, 600.0]))
def test_boot_and_restart_never_make_the_mean_time_shorter(jobs, usd_per_h, pause_s):
    plain = mean_s(jobs, [T4, A100], usd_per_h)
    assert mean_s(jobs, [T4, A100], usd_per_h, provision_s=pause_s) >= plain * (1 - 1e-9)
    slow = [replace(job, restart_s=pause_s) for job in jobs]
    assert mean_s(slow, [T4, A100], usd_per_h) >= plain * (1 - 1e-9)


@settings(max_examples=15, deadline=None)
@given(mixes(), st.sampled_from(["1.3", "4", "40"]))
def test_the_ideal_policy_on_two_kinds_is_as_good_as_the_theory_of_two_kinds(jobs, usd_per_h):
    """All sizes of a kind are equal here, so that what it spends tells what it must reach."""
    run = simulate(
        jobs, BoaIdeal(), Cloud(offers=(T4, A100), budget=average(usd_per_h)), expected=Demand.from_jobs(jobs, 10.0)
    )
    assert run.unfinished == ()
    spent = run.metrics.usd / 10.0
    assert run.metrics.mean_s == pytest.approx(mean_s(jobs, [T4, A100], spent * (1 + 1e-9)), rel=1e-6)


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("policy", [Price(), BoaIdeal()])
def test_a_job_that_comes_while_there_is_debt_runs_in_the_end(policy):
    """Ten dollars too much at a cent per hour are made up for by waiting, however long; nothing else is needed."""
    jobs = [Job(id=name, submit_s=at_s, work=36_000.0, speed=Linear()) for name, at_s in (("a", 0.0), ("b", 40_000.0))]
    assert simulate(jobs, policy, cloud(average("0.01"))).unfinished == ()


def test_the_ideal_policy_is_open_loop():
    """Its price is from the forecast alone, and so are its starts: nobody waits in its theory."""
    jobs = [Job(id=name, submit_s=at_s, work=36_000.0, speed=Linear()) for name, at_s in (("a", 0.0), ("b", 40_000.0))]
    run = simulate([*jobs], BoaIdeal(), cloud(average("0.01")), expected=Demand.from_jobs(jobs, 10.0))
    assert run.metrics.mean_wait_s == 0.0
    assert run.unfinished == ()


def test_money_that_is_left_when_the_time_of_a_purse_is_over_is_still_there_for_jobs():
    jobs = [Job(id=name, submit_s=at_s, work=3600.0, speed=Linear()) for name, at_s in (("a", 0.0), ("b", 7200.0))]
    budget = Budget(average=Usd.from_usd_per_h("5"), purse=Money.from_usd("100"), until_s=5000.0)
    assert simulate(jobs, Price(), cloud(budget)).unfinished == ()


SLOW_THEN_FAST = Phased(ends=(3600.0, 7200.0), rates=lambda gpu, spread: (1.0, float(sum(spread))))


def late_by(physics):
    """Seconds that a job of two phases loses because its planner is not always there."""
    job = Job(id="a", submit_s=0.0, work=7200.0, speed=SLOW_THEN_FAST, max_gpus=12)
    return simulate([job], Price(), cloud(physics=physics)).metrics.max_s - (3600.0 + 3600.0 / 12)


def test_a_job_is_looked_at_in_time_when_its_next_phase_begins():
    assert late_by(Physics()) == pytest.approx(0.0)


@pytest.mark.parametrize("physics", [Physics(round_s=90.0), Physics(planning_s=61.0)])
def test_a_planner_that_comes_a_little_late_still_looks_at_running_jobs(physics):
    assert late_by(physics) <= 60.0 + physics.round_s + 2 * physics.planning_s
