"""The comparison of elastic and fixed batches: the same jobs on both sides, and checks that can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.sim.simulator import simulate
from sublet_lab.studies import elastic_batch as study
from sublet_lab.studies.elastic_batch import BASELINES, CASES, FAMILIES, GPU, MOST_GPUS, BatchOutcome, jobs_of, outcome

SMALL = replace(CASES[0], span_h=3.0)


def test_the_scaling_factors_are_those_of_the_table():
    (check,), table = study._factors()
    assert check.ok
    assert [row[0] for row in table.rows] == list(FAMILIES)
    assert {row[-1] for row in table.rows} == {"8"}  # the largest batch of every family takes eight GPUs


def test_both_sides_have_the_same_jobs_but_for_the_batch():
    elastic = jobs_of(SMALL, "elastic", 3)
    for batch in BASELINES:
        fixed = jobs_of(SMALL, batch, 3)
        assert [(a.id, a.submit_s, a.work) for a in fixed] == [(b.id, b.submit_s, b.work) for b in elastic]
        assert all(len(job.speed.batches) == 1 for job in fixed)
        assert all(job.min_gpus == job.speed.least_gpus(GPU, MOST_GPUS) for job in fixed)


def test_every_seed_carries_the_stated_load():
    for seed in range(3):
        jobs = jobs_of(CASES[0], "elastic", seed)
        hours = [job.work / FAMILIES[job.model].rate_at(FAMILIES[job.model].max_local[GPU], GPU, (1,)) for job in jobs]
        assert len(jobs) == 34 * 24
        assert sum(hours) / len(hours) / 3600 == pytest.approx(0.9)


def test_fixed_large_batches_get_fewer_jobs_done_and_later():
    elastic, largest = (outcome(SMALL, batch, 0) for batch in ("elastic", "largest"))
    assert elastic.done > 1.3 * largest.done
    assert largest.time_h > 1.5 * elastic.time_h


def test_the_laws_of_the_kernel_hold_all_the_way():
    jobs = jobs_of(SMALL, "random", 1)
    assert simulate(jobs, ElasticBatch(), study.CLOUD, checked=True).unfinished == ()


def test_a_ratio_that_is_off_misses_its_check():
    one = BatchOutcome(jobs=816, done=800, time_h=1.0, rescales=0.0)
    found = {
        "elastic": one,
        "random": replace(one, done=800 / 1.29, time_h=4.4),
        "largest": replace(one, done=800 / 1.98, time_h=13.4 * 1.2),
        "smallest": replace(one, done=800 / 1.10, time_h=1.9),
    }
    missed = [check.name for check in study._case_checks(CASES[0], found) if not check.ok]
    assert missed == [f"{CASES[0]}: time, largest / elastic"]
    rows = study._case_rows(CASES[0], found)
    assert [row[1] for row in rows] == ["elastic", "random", "largest", "smallest"]
    assert rows[2][-4:] == ["1.98", "1.98", "16.1", "13.4"]


def test_matched_load_is_what_the_baseline_can_carry():
    found = {batch: BatchOutcome(jobs=0, done=3.0 * 10, time_h=0.0, rescales=0.0) for batch in BASELINES}
    checks, table = study._stable(SMALL, found, [0])
    assert {row[1] for row in table.rows} == {"8.0"}  # per hour: 0.8 x 30 jobs in 3 hours
    assert len(checks) == len(table.rows) == 3


def test_dropping_is_reported_for_all_three_baselines():
    checks, table = study._dropped(SMALL, [0])
    assert [row[0] for row in table.rows] == ["elastic", *BASELINES]
    assert checks[0].published == 2
