"""Generated workloads follow the laws that they are named after. Bounds are 5 standard errors, seeds are fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sublet.errors import InvalidValue, SubletError, UnknownName
from sublet.perf.speedup import Linear
from sublet.sim.workloads import generate, load_workload
from sublet.sim.workloads.generate import Bursty, Daily, Deterministic, Exponential, GpuMix, Lognormal, Pareto, Poisson

N = 20_000
SIGMAS = 5.0
RATE_PER_H = 40.0
MEAN_GAP_S = 3600.0 / RATE_PER_H


def rng(seed=7):
    return np.random.default_rng(seed)


def assert_mean(sample, mean, std):
    assert abs(np.mean(sample) - mean) < SIGMAS * std / math.sqrt(len(sample))


def test_poisson_gaps_are_exponential():
    gaps_s = np.diff(Poisson().times_s(rng(), N, RATE_PER_H), prepend=0.0)
    assert_mean(gaps_s, MEAN_GAP_S, MEAN_GAP_S)
    assert stats.kstest(gaps_s / MEAN_GAP_S, "expon").pvalue > 1e-4


@pytest.mark.parametrize("mean_burst", [1.0, 5.0, 20.0])
def test_bursts_have_the_asked_mean_size_and_rate(mean_burst):
    times_s = Bursty(mean_burst=mean_burst).times_s(rng(), N, RATE_PER_H)
    starts_s, sizes = np.unique(times_s, return_counts=True)
    assert_mean(sizes, mean_burst, math.sqrt(mean_burst * (mean_burst - 1.0)) + 1e-9)
    gaps_s = np.diff(starts_s, prepend=0.0)
    assert_mean(gaps_s, MEAN_GAP_S * mean_burst, MEAN_GAP_S * mean_burst)
    # The number of arrivals in a window has variance / mean = E[size^2] / E[size] = 2 mean - 1.
    windows = np.histogram(times_s, bins=np.arange(0.0, times_s[-1], 40.0 * MEAN_GAP_S))[0]
    assert np.var(windows) / np.mean(windows) == pytest.approx(2.0 * mean_burst - 1.0, rel=0.3)


@pytest.mark.parametrize("swing", [0.0, 0.5, 1.0])
def test_the_daily_swing_puts_the_right_share_of_arrivals_around_the_peak(swing):
    times_s = Daily(swing=swing, peak_h=14.0).times_s(rng(), N, RATE_PER_H)
    days = math.floor(times_s[-1] / 86_400.0)
    times_s = times_s[times_s < days * 86_400.0]
    hour = times_s / 3600.0 % 24.0
    near_peak = np.abs((hour - 14.0 + 12.0) % 24.0 - 12.0) < 6.0
    assert_mean(near_peak, 0.5 + swing / math.pi, 0.5)
    assert abs(len(times_s) - RATE_PER_H * 24.0 * days) < SIGMAS * math.sqrt(len(times_s))


def test_exponential_sizes_have_cv_one():
    sizes = Exponential().draw(rng(), N, 3600.0)
    assert_mean(sizes, 3600.0, 3600.0)
    assert stats.kstest(sizes / 3600.0, "expon").pvalue > 1e-4


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0, 4.0])
def test_lognormal_sizes_have_the_asked_mean_and_cv(cv):
    sizes = Lognormal(cv=cv).draw(rng(), N, 3600.0)
    assert_mean(sizes, 3600.0, cv * 3600.0)
    log_variance = math.log1p(cv**2)
    assert abs(np.var(np.log(sizes)) - log_variance) < SIGMAS * log_variance * math.sqrt(2.0 / N)


@pytest.mark.parametrize("law", [Pareto(shape=1.5), Pareto(shape=2.5), Pareto.from_cv(0.5), Pareto.from_cv(2.0)])
def test_pareto_sizes_have_the_asked_mean_and_tail(law):
    sizes = law.draw(rng(), N, 3600.0)
    smallest = 3600.0 * (law.shape - 1.0) / law.shape
    assert sizes.min() >= smallest
    assert_mean(np.log(sizes / smallest), 1.0 / law.shape, 1.0 / law.shape)


def test_pareto_from_cv_inverts_the_formula_of_the_cv():
    for cv in (0.1, 1.0, 3.0):
        shape = Pareto.from_cv(cv).shape
        assert 1.0 / math.sqrt(shape * (shape - 2.0)) == pytest.approx(cv)


def test_deterministic_sizes_are_all_the_mean():
    assert set(Deterministic().draw(rng(), 10, 3600.0)) == {3600.0}


def test_gpu_requests_follow_their_weights():
    drawn = GpuMix(choices=((1, 70.0), (4, 20.0), (8, 10.0))).draw(rng(), N)
    for gpus, share in ((1, 0.7), (4, 0.2), (8, 0.1)):
        assert_mean(drawn == gpus, share, math.sqrt(share * (1.0 - share)))


def test_the_same_seed_gives_the_same_workload_and_another_seed_another():
    first, again, other = (generate(rng(seed), n_jobs=50, rate_per_h=10.0) for seed in (1, 1, 2))
    assert first == again
    assert first.jobs != other.jobs


def test_another_size_law_leaves_arrivals_as_they_are():
    one, two = (generate(rng(), n_jobs=50, rate_per_h=10.0, sizes=law) for law in (Exponential(), Lognormal()))
    assert [job.submit_s for job in one.jobs] == [job.submit_s for job in two.jobs]
    assert [job.work for job in one.jobs] != [job.work for job in two.jobs]


def test_jobs_share_one_speed_and_may_be_given_more_gpus_than_they_ask_for():
    speed = Linear()
    workload = generate(rng(), n_jobs=20, rate_per_h=1.0, gpus=GpuMix(choices=((2, 1.0),)), max_gpus=16, speed=speed)
    assert {(job.min_gpus, job.gpus, job.max_gpus) for job in workload.jobs} == {(1, 2, 16)}
    assert all(job.speed is speed for job in workload.jobs)


def test_ids_sort_in_order_of_arrival_even_within_a_burst():
    workload = generate(rng(), n_jobs=1000, rate_per_h=10.0, arrivals=Bursty(mean_burst=50.0))
    assert [job.id for job in workload.jobs] == sorted(job.id for job in workload.jobs)


def test_a_recipe_is_a_workload_by_name():
    recipe = "poisson:rate=40,n=200,seed=1,size=lognormal,mean=3600,cv=2"
    by_name = load_workload(recipe)
    by_hand = generate(rng(1), n_jobs=200, rate_per_h=40.0, sizes=Lognormal(cv=2.0), mean_work_s=3600.0, name=recipe)
    assert by_name == by_hand


@pytest.mark.parametrize(
    "recipe",
    [
        "poisson",
        "poisson:",
        "bursty:burst=3,n=10",
        "daily:swing=0.5,peak=9,n=10",
        "poisson:size=pareto,cv=1.5",
        "poisson:size=pareto,shape=1.8",
        "poisson:size=deterministic,mean=60",
        "poisson:gpus=8,max_gpus=64",
        "poisson: n = 5 , gpus=1x7+2+8x0.5",
    ],
)
def test_recipes_of_every_kind_are_drawn(recipe):
    assert len(load_workload(recipe)) > 0


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        ("poison:n=5", UnknownName, "did you mean"),
        ("poisson:n=0", InvalidValue, "n = '0'"),
        ("poisson:n=-5", InvalidValue, "n = '-5'"),
        ("poisson:n=1.5", InvalidValue, "whole number"),
        ("poisson:n=99999999999", InvalidValue, "n ="),
        ("poisson:rate=0", InvalidValue, "rate_per_h"),
        ("poisson:rate=nan", InvalidValue, "rate = 'nan'"),
        ("poisson:rate=1e-320", InvalidValue, "submit_s"),
        ("poisson:rate", InvalidValue, "key=value"),
        ("poisson:rate=", InvalidValue, "key=value"),
        ("poisson:rate=1,rate=2", InvalidValue, "twice"),
        ("poisson:rat=1", UnknownName, "did you mean rate"),
        ("poisson:burst=3", UnknownName, "setting of poisson"),
        ("poisson:cv=2", UnknownName, "size=exponential"),
        ("poisson:size=normal", UnknownName, "size law"),
        ("poisson:size=pareto,cv=1,shape=3", InvalidValue, "each determines the other"),
        ("poisson:size=pareto,shape=1", InvalidValue, "above 1"),
        ("poisson:size=lognormal,cv=1e200", InvalidValue, "cv"),
        ("poisson:mean=-1", InvalidValue, "mean_work_s"),
        ("poisson:gpus=0", InvalidValue, "gpus"),
        ("poisson:gpus=2x", InvalidValue, "weight"),
        ("poisson:gpus=2x0", InvalidValue, "weight"),
        ("poisson:gpus=1++2", InvalidValue, "gpus"),
        ("poisson:seed=-1", InvalidValue, "seed"),
        ("bursty:burst=0.5", InvalidValue, "mean_burst"),
        ("daily:swing=2", InvalidValue, "swing"),
    ],
)
def test_a_wrong_recipe_gets_help(recipe, error, words):
    with pytest.raises(error, match=words) as caught:
        load_workload(recipe)
    assert isinstance(caught.value, SubletError)
