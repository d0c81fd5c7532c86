"""What the kernel is told of a job: how fast it goes, once that is steady, and what is left of its own purse."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from sublet.domain.demand import kind_of
from sublet.errors import InvalidValue
from sublet.runtime.controller.memory.records import WARM_REPORTS, JobRecord, kernel_job, pools_for
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.values import an_offer
from sublet.wire.messages import Stepped


def a_record(**facts):
    spec = JobSpec(**{"name": "a", "argv": ("true",), "cwd": "/", "work": 1000.0, "samples_per_s": 10.0, **facts})
    return JobRecord(id="a-1", spec=spec, group=SimpleNamespace(work=1000.0, done=0.0), submitted_s=0.0)


def a_report(step, samples_per_s):
    return Stepped(
        worker_id="w",
        generation=1,
        step=step,
        done=0.0,
        epoch=0,
        loss=0.0,
        step_s=32.0 / samples_per_s,
        comm_s=0.0,
        saved_s=0.0,
        global_batch=32,
        local_batch=32,
        noise=None,
    )


def test_the_first_slow_steps_of_a_group_are_not_taken_for_its_speed():
    record = a_record()
    told = [record.measure(a_report(1, 10.0), "T4", 2)]  # the first report only begins to count
    told += [record.measure(a_report(2 + at, 1.0 if at == 0 else 10.0), "T4", 2) for at in range(WARM_REPORTS)]
    assert told == [False] * WARM_REPORTS + [True]
    (measured,) = kernel_job(record, 1.0).speed.measured
    assert measured.rate == pytest.approx(10.0 / 1000.0, rel=0.25)


def test_a_width_that_was_looked_at_for_a_moment_stays_a_guess():
    record = a_record()
    for at in range(3):
        record.measure(a_report(1 + at, 0.1), "T4", 2)
    assert kernel_job(record, 1.0).speed.measured == ()


def test_what_is_left_of_a_jobs_own_purse_is_told_at_coarse_steps():
    record = a_record(purse_usd=1.0)
    assert kernel_job(record, 1.0).purse_left_usd == 1.0
    told = [cents for cents in range(101) if record.learn_spend(cents / 100.0)]
    assert 5 < len(told) < 25
    assert kernel_job(record, 1.0).purse_left_usd == 0.0
    assert not record.learn_spend(1.0)


def test_a_topped_up_purse_is_told_at_once():
    record = a_record(purse_usd=1.0)
    assert record.learn_spend(0.98)
    record.spec = replace(record.spec, purse_usd=4.0)
    assert record.learn_spend(0.98)
    assert kernel_job(record, 1.0).purse_left_usd == pytest.approx(3.02)


def test_a_job_without_a_purse_of_its_own_has_no_such_limit():
    record = a_record()
    assert not record.learn_spend(1e6)
    assert kernel_job(record, 1.0).purse_left_usd is None


def test_jobs_of_a_sweep_are_one_kind_to_the_kernel_whatever_they_are_called():
    """It keeps something of each kind for ever: one for each name would be memory that grows with every job."""
    kinds = {kind_of(kernel_job(a_record(name=f"sweep-{at}"), 16.0)) for at in range(50)}
    assert len(kinds) == 1
    assert kind_of(kernel_job(a_record(max_workers=7), 16.0)) not in kinds


def test_a_command_for_a_node_may_only_run_where_a_node_is_made_up_of_its_gpus():
    offers = [an_offer(f"o{gpus}", gpus=gpus, pool=f"p{gpus}") for gpus in (1, 4, 6, 8)]
    spec = JobSpec(name="x", argv=("x",), cwd="/", sdk=False, min_workers=8, max_workers=8, accelerators=("t4",))
    assert pools_for(spec, offers) == ()
    assert pools_for(replace(spec, per_node=4), offers) == ("p4", "p8")
    with pytest.raises(InvalidValue, match="T4:1, T4:6"):
        pools_for(replace(spec, per_node=4), [offers[0], offers[2]])
