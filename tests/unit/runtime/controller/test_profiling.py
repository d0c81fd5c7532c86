"""What workers tell of their steps becomes the speed of their job: medians, priors, and what the kernel has to hear."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sublet.advise.transfer import ratio_from_facts
from sublet.domain.shape import Shape
from sublet.market.catalogue import load_gpus
from sublet.perf.learned import Learned
from sublet.perf.live.rows import PREDICTED_ERROR, Source, StepRow, earlier
from sublet.perf.live.speed import LiveSpeed
from sublet.runtime.controller.memory.records import WARM_REPORTS, JobRecord, kernel_job
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.profiles.learned import MOST_FORMS, Profiling, kind_ratio
from sublet.wire.messages import Profile, Stepped


def a_report(step, *, batch=64, workers=1, noise=500.0, slower=1.0, generation=1, **facts):
    """Steps of 20 ms and 1 ms a sample, 30 ms to exchange gradients, 5 ms beside."""
    samples = batch // workers
    compute_s, wait_s = 0.02 + 0.001 * samples, 0.03 if workers > 1 else 0.0
    step_s = (compute_s + wait_s + 0.005) * slower
    given = {"step_s": step_s, "samples": samples, "compute_s": compute_s, "wait_s": wait_s, "update_s": 0.005}
    profile = Profile(**{**given, "batch_initial": 64, "batch_low": 32, "batch_high": 1024, **facts})
    common = {"worker_id": "w", "generation": generation, "done": 0.0, "epoch": 0, "loss": 0.0}
    return Stepped(**common, step=step, step_s=step_s, global_batch=batch, noise=noise, profile=profile)


def heard(profiling, *reports, gpu="T4", workers=1, nodes=1):
    for report in reports:
        profiling.learn(report, gpu, workers, nodes)
    return profiling


def a_record(**facts):
    spec = JobSpec(**{"name": "a", "argv": ("true",), "cwd": "/", **facts})
    return JobRecord(id="a-1", spec=spec, group=SimpleNamespace(work=6400.0, done=0.0), submitted_s=0.0)


def test_a_checkpoint_or_an_evaluation_in_between_is_not_what_steps_take():
    reports = [a_report(at, slower=20.0 if at == 3 else 1.0) for at in range(8)]
    (row,) = heard(Profiling(), *reports).rows
    assert row.step_s == pytest.approx(0.089)
    assert (row.piece_s, row.wait_s, row.samples, row.source) == (pytest.approx(0.084), 0.0, 64, Source.MEASURED)
    assert row.error < 0.05


def test_the_first_word_of_a_group_is_of_its_first_steps_and_does_not_count():
    profiling = heard(Profiling(), a_report(1, slower=9.0), a_report(2))
    assert [row.step_s for row in profiling.rows] == [pytest.approx(0.089)]


def test_a_job_with_a_range_of_batches_gets_a_speed_by_batch_and_one_without_stays_as_it_was():
    fixed, adaptive = a_record(), a_record()
    for at in range(1 + WARM_REPORTS):
        fixed.measure(a_report(at + 1, batch_initial=0), "T4", 1)
        adaptive.measure(a_report(at + 1), "T4", 1)
    assert isinstance(kernel_job(fixed, 1.0).speed, Learned)
    speed = kernel_job(adaptive, 2.0).speed
    assert isinstance(speed, LiveSpeed)
    here = kernel_job(adaptive, 2.0).speed_on(Shape("p", 1)).rate("T4", (1,), 0.0)
    assert here == pytest.approx(64 / 0.089 / 6400.0 / 2.0, rel=0.02)
    assert speed.rate("T4", (1,), 0.0) > 1.05 * here  # a larger batch gains, at this noise


def test_the_kernel_hears_of_a_new_form_of_noise_and_of_a_batch_that_changed_and_of_nothing_else():
    record = a_record()
    told = []
    for at in range(12):
        told.append(record.measure(a_report(at + 1), "T4", 1))
        if told[-1]:
            record.note_told()
    assert sum(told) == 1
    for change in ({"noise": 900.0}, {"batch": 128}, {"workers": 2}, {"slower": 3.0}):
        reports = [record.measure(a_report(20 + at, **change), "T4", change.get("workers", 1)) for at in range(12)]
        assert any(reports), change
        record.note_told()
        assert not record.measure(a_report(40, **change), "T4", change.get("workers", 1))
        record._before = None
    record.measure(a_report(50), "T4", 1)


def test_what_was_learned_is_found_again_after_a_restart():
    record = a_record()
    for at in range(9):
        record.measure(a_report(at + 1, memory_bytes=7), "T4", 1)
    record.profile.earlier = (earlier(StepRow(gpu="T4", gpus=2, samples=32, step_s=0.1, piece_s=0.05)),)
    again = Profiling.from_facts(json.loads(json.dumps(record.profile.facts())))
    assert [replace(row, error=0.02) for row in record.profile.rows] == list(again.rows)
    now, then = record.profile.speed(10.0), again.speed(10.0)
    assert replace(now, rows=then.rows) == then
    assert then.rows[-1].source is Source.EARLIER
    assert (again.memory, again.most, again.growth) == ({("T4", 64): 7}, {"T4": 0}, 0.0)
    older = {**record.profile.facts(), "memory": [[64, 7]]}  # before it was kept by kind
    assert Profiling.from_facts({key: value for key, value in older.items() if key != "most"}).memory == {}
    assert Profiling.from_facts({}) == Profiling()


@pytest.mark.parametrize(
    "wild",
    [
        {"compute_s": 0.0},
        {"compute_s": 1e300},
        {"step_s": 0.0},
        {"wait_s": 1e12},
        {"pieces": 0},
        {"samples": 0},
    ],
    ids=str,
)
def test_what_nobody_can_be_right_with_is_not_learned_from(wild):
    profiling = heard(Profiling(), a_report(1), a_report(2, **wild))
    assert profiling.rows == ()
    assert profiling.speed() is None


def test_a_range_that_is_none_is_a_fixed_batch():
    profiling = heard(Profiling(), a_report(1), a_report(2, batch_low=100))
    assert profiling.speed() is None


def test_forms_are_bounded():
    profiling = Profiling()
    for at in range(MOST_FORMS + 20):
        heard(profiling, a_report(at + 1, batch=64 + at))
    assert len(profiling.forms) == MOST_FORMS
    assert profiling.batch == 64 + MOST_FORMS + 19


def test_kinds_are_compared_as_the_adviser_does_and_taken_for_equal_without_facts():
    """By facts alone where no model ran on both; K80 and V100 were both measured, and count for more than facts."""
    gpus = load_gpus()
    assert kind_ratio("T4", "A100") == pytest.approx(ratio_from_facts(gpus["T4"], gpus["A100"]))
    by_facts = ratio_from_facts(gpus["K80"], gpus["V100"])
    assert kind_ratio("K80", "V100") != pytest.approx(by_facts, rel=0.01)
    assert kind_ratio("K80", "V100") == pytest.approx(by_facts, rel=PREDICTED_ERROR)
    assert kind_ratio("T4", "nobody-knows") == 1.0


def test_noise_that_grows_makes_phases_and_the_kernel_hears_when_the_first_is_over():
    record = a_record()
    for at in range(1 + WARM_REPORTS):
        record.measure(a_report(at + 1, noise_growth=0.0002), "T4", 1)
    record.group.done = 640.0
    record.note_told()
    speed = kernel_job(record, 2.0).speed
    ends, noises = zip(*speed.phases, strict=True)
    assert ends[-1] == kernel_job(record, 2.0).work
    assert 500.0 < noises[0] < noises[-1] < 500.0 * 2.718 ** (0.0002 * 5760.0)
    record.group.done = ends[0] * 6400.0 - 1.0
    assert not record.measure(a_report(20, noise_growth=0.0002), "T4", 1)
    record.group.done += 2.0
    assert record.measure(a_report(21, noise_growth=0.0002), "T4", 1)
    record.note_told()
    assert not record.measure(a_report(22, noise_growth=0.0002), "T4", 1)


def test_until_its_own_trend_can_be_told_that_of_an_earlier_run_counts():
    profiling = heard(Profiling(growth=0.0003), a_report(1), a_report(2))
    assert profiling.growth == 0.0003
    assert heard(profiling, a_report(3, noise_growth=0.0001)).growth == 0.0001
    assert heard(Profiling(), a_report(1), a_report(2)).speed(1.0, 6400.0, 0.0).phases == ()


def test_reports_that_say_the_same_leave_the_rows_as_they_are_and_others_do_not():
    """Every other row is a curve to be fitted, and a job reports once a second."""
    profiling, seen = Profiling(), set()
    for step in range(200):
        heard(profiling, a_report(step, slower=1.0 + 0.005 * (step % 7 - 3)))
        seen.add(profiling.rows)
    assert len(seen) <= 4  # one by one its error is known better
    before = profiling.rows[0].step_s
    for step in range(200, 210):
        heard(profiling, a_report(step, slower=1.1))
    assert profiling.rows[0].step_s == pytest.approx(1.1 * before, rel=0.02)


def test_what_fits_is_known_for_kinds_of_which_the_memory_was_measured():
    profiling = heard(Profiling(), a_report(1), a_report(2, memory_bytes=9, most_samples=32))
    heard(profiling, a_report(3, memory_bytes=8, most_samples=16), gpu="A10")
    heard(profiling, a_report(4, most_samples=8), gpu="K80")  # the script's own number: another run may have another
    assert [profiling.fits(gpu) for gpu in ("T4", "A10", "K80", "H200")] == [32, 16, 0, 0]
    heard(profiling, a_report(5, memory_bytes=7, most_samples=0))
    assert profiling.fits("T4") == 0  # all fits by now
    assert profiling.memory["T4", 64] == 9


def test_a_profiling_run_calls_what_it_measured_as_the_gpu_is_really_called():
    profiling = heard(Profiling(), a_report(1), a_report(2, memory_bytes=9, most_samples=32)).called("H200")
    assert (profiling.memory, profiling.fits("H200"), profiling.fits("T4")) == ({("H200", 64): 9}, 32, 0)
    assert {row.gpu for row in profiling.rows} == {"H200"}


def test_of_memory_no_more_is_kept_than_of_steps():
    profiling = Profiling()
    for at in range(3 * MOST_FORMS):
        heard(profiling, a_report(at, batch=64 + at, memory_bytes=1))
    assert len(profiling.memory) == MOST_FORMS


@pytest.mark.parametrize("compute_s", [1e-9, 3e-9, 1e-7])
def test_a_step_that_took_no_time_is_not_learned_from(compute_s):
    lie = a_report(2, compute_s=compute_s, step_s=compute_s)
    assert heard(Profiling(), a_report(1), lie).rows == ()


def test_a_batch_that_is_smaller_than_the_least_width_is_slow_there_and_not_impossible():
    facts = {"batch": 4, "noise": None, "batch_initial": 4, "batch_low": 4, "batch_high": 4}
    speed = heard(Profiling(), *[a_report(at, **facts) for at in range(4)]).speed()
    wide, narrow = speed.rate("T4", (8,), 0.0), speed.rate("T4", (4,), 0.0)
    assert 0.0 < wide <= narrow
