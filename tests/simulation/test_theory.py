"""The simulator against queueing theory: closed forms must lie inside the confidence interval of the simulation.

Intervals are at 99.9 %, from means over batches of consecutive jobs (batches are long against the correlation time).
They must also be narrow, or the test could not fail.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sublet.domain.budget import Limit
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.perf.speedup import Linear
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.sim.simulator import Cloud, Run, simulate
from sublet.sim.world import Physics
from sublet_lab.rivals.srtf import Srtf
from tests.rigs.sizes import sized

JOBS = 20_000
BATCHES = 40
CONFIDENCE = 0.999
LINEAR = Linear()


def cluster(gpus: int, *, usd_per_h: str = "1", nodes: int = 1) -> Cloud:
    offer = Offer(id="x", gpu="T4", gpus_per_node=gpus, market=Market.ON_DEMAND, price=Price.from_usd_per_h(usd_per_h))
    return Cloud(offers=(offer,), limits={"x": Limit(min_nodes=nodes, max_nodes=nodes)})


def stream(seed: int, rate: float, sizes: np.ndarray, *, max_gpus: int = 1) -> list[Job]:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(sizes)))
    return [
        Job(id=f"j{i}", submit_s=float(at), work=float(size), speed=LINEAR, max_gpus=max_gpus)
        for i, (at, size) in enumerate(zip(arrivals, sizes, strict=True))
    ]


def exponential(seed: int, mean: float) -> np.ndarray:
    return np.random.default_rng(seed + 1_000).exponential(mean, JOBS)


def completion_times(run: Run) -> np.ndarray:
    assert not run.unfinished
    return np.array([row.completion_s for row in run.record.jobs.values()])


def interval(times: np.ndarray) -> tuple[float, float]:
    """Mean and half-width, without the first batch (the system starts empty)."""
    means = times.reshape(BATCHES, -1).mean(axis=1)[1:]
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
    return float(means.mean()), float(half)


def assert_mean(times: np.ndarray, theory: float, *, power: float = 0.15) -> None:
    mean, half = interval(times)
    assert half < power * theory, "the interval is too wide to test anything"
    assert abs(mean - theory) <= half, f"simulated {mean:.4f} +- {half:.4f}, theory {theory:.4f}"


def erlang_c(servers: int, load: float) -> float:
    """Probability to wait in M/M/k."""
    rho = load / servers
    last = load**servers / math.factorial(servers) / (1 - rho)
    return last / (sum(load**n / math.factorial(n) for n in range(servers)) + last)


@pytest.mark.parametrize("seed", [1, 2][: sized(1, 2)])
def test_mm1_mean_response_under_fifo(seed: int) -> None:
    rate, mean_size = 0.6, 1.0
    run = simulate(stream(seed, rate, exponential(seed, mean_size)), Fifo(), cluster(1))
    assert_mean(completion_times(run), 1 / (1 / mean_size - rate))


@pytest.mark.long
@pytest.mark.parametrize(("servers", "nodes"), [(4, 1), (8, 4)])
def test_mmk_mean_response_under_fifo(servers: int, nodes: int) -> None:
    rate, mean_size = 0.75 * servers, 1.0
    jobs = stream(3, rate, exponential(3, mean_size))
    run = simulate(jobs, Fifo(), cluster(servers // nodes, nodes=nodes))
    wait = erlang_c(servers, rate * mean_size) / (servers / mean_size - rate)
    assert_mean(completion_times(run), mean_size + wait)


@pytest.mark.long
@pytest.mark.parametrize("gpus", [4, 64])
def test_processor_sharing_mean_response_with_exponential_sizes(gpus: int) -> None:
    """All GPUs work whenever a job is there, so the mean is that of M/M/1 at the speed of the whole cluster."""
    mean_size = float(gpus)
    jobs = stream(5, 0.6, exponential(5, mean_size), max_gpus=gpus)
    run = simulate(jobs, Equal(), cluster(gpus))
    assert_mean(completion_times(run), 1 / (gpus / mean_size - 0.6))


@pytest.mark.long
def test_processor_sharing_does_not_care_about_the_distribution_of_sizes() -> None:
    """M/D/1 under processor sharing: 1/(1-rho), where first come first served would give (2-rho)/(2(1-rho))."""
    gpus, rho = 256, 0.6  # many GPUs, so that whole shares are nearly equal
    jobs = stream(7, rho, np.full(JOBS, float(gpus)), max_gpus=gpus)
    assert_mean(completion_times(simulate(jobs, Equal(), cluster(gpus))), 1 / (1 - rho), power=0.1)


@pytest.mark.long
def test_shortest_remaining_time_first_matches_the_formula_of_schrage_and_miller() -> None:
    rate = 0.7
    jobs = stream(9, rate, exponential(9, 1.0))
    run = simulate(jobs, Srtf(), cluster(1))

    def load_below(x: float) -> float:
        return rate * (1 - math.exp(-x) * (1 + x))

    def mean_time(x: float) -> float:
        second = 2 - math.exp(-x) * (x * x + 2 * x + 2)  # integral of t^2 f(t) up to x
        waiting = rate / 2 * (second + x * x * math.exp(-x)) / (1 - load_below(x)) ** 2
        return waiting + integrate.quad(lambda t: 1 / (1 - load_below(t)), 0, x)[0]

    theory = integrate.quad(lambda x: mean_time(x) * math.exp(-x), 0, 40, limit=200)[0]
    assert_mean(completion_times(run), theory)


@pytest.mark.parametrize("policy", [Fifo(), Equal(), Srtf()])
def test_littles_law_holds_on_a_path(policy: Policy) -> None:
    """Mean number present, integrated over time, equals throughput times mean time, both taken from the rows."""
    jobs = stream(11, 0.7, exponential(11, 1.0)[:2_000], max_gpus=4)
    run = simulate(jobs, policy, cluster(4))
    rows = run.record.jobs.values()
    ends = np.sort([row.finish_s for row in rows])
    starts = np.sort([row.submit_s for row in rows])
    grid = np.concatenate([starts, ends])
    steps = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.argsort(grid, kind="stable")
    present = np.cumsum(steps[order])[:-1]
    area = float((present * np.diff(grid[order])).sum())
    assert area == pytest.approx(completion_times(run).sum(), rel=1e-9)
    assert run.metrics.mean_jobs == pytest.approx(area / (ends[-1] - starts[0]), rel=1e-9)


def test_one_job_at_a_fixed_price_costs_exactly_rate_times_time() -> None:
    """7,200.5 s on two nodes of 3.912 USD per hour, owned from submission to end: to the grain."""
    job = Job(id="a", submit_s=100.0, work=7_200.5 * 8, speed=LINEAR, gpus=8)
    run = simulate([job], Fifo(), cluster(4, usd_per_h="3.912", nodes=2))
    assert run.record.spend[-1][1] == Money(2 * 3_912_000 * 7_200_500_000)
    assert run.metrics.usd == pytest.approx(2 * 3.912 * 7_200.5 / 3600, abs=1e-9)


def test_a_rented_job_pays_for_boot_work_and_release_and_nothing_else() -> None:
    job = Job(id="a", submit_s=50.0, work=1_000.0, speed=LINEAR, restart_s=30.0)
    offer = Offer(id="x", gpu="T4", gpus_per_node=1, market=Market.ON_DEMAND, price=Price.from_usd_per_h("0.36"))
    cloud = Cloud(offers=(offer,), physics=Physics(provision_s=120.0, release_s=10.0))
    run = simulate([job], Fifo(), cloud)
    paid_s = 120 + 30 + 1_000 + 10
    assert run.record.spend[-1][1] == Money(360_000 * paid_s * 1_000_000)
    assert run.metrics.mean_s == pytest.approx(120 + 30 + 1_000)
    assert run.metrics.paused_gpu_hours == pytest.approx(30 / 3600)
