"""The clock of Pollux's simulator: epochs end on whole seconds, whatever the rounds in which one looks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.plan import Pool
from sublet.errors import InvalidValue
from sublet.perf.measured import measured_goodput, measured_step_time, total_work
from sublet.testing.values import a_job
from sublet_lab.studies.epoch_speeds import iterations_left_s, pollux_speed
from tests.rigs.sizes import examples

CASES = [("cifar10", 512, (4,)), ("cifar10", 2048, (2, 3)), ("ncf", 32768, (1,)), ("deepspeech2", 160, (4, 2))]
POOL = Pool(name="p", gpu="T4", gpus_per_node=4, offer_ids=("o",))
every_case = pytest.mark.parametrize(("model", "batch", "spread"), CASES)


def stepped(speed, spread, done, seconds, round_s):
    """The simulator's own loop: round by round, split at epochs. Progress, and the time of the end (None: not yet)."""
    at_s = 0
    while at_s < seconds:
        left_s, at_s = min(round_s, seconds - at_s), at_s + min(round_s, seconds - at_s)
        while left_s > 0:
            epoch = speed._epoch(done)
            rate, end = speed.rate("T4", spread, done), speed.ends[epoch]
            if done + rate * left_s < end:
                done, left_s = done + rate * left_s, 0
                continue
            left_s, done = left_s - round((end - done) / rate), end
            if end == speed.ends[-1]:
                return done, at_s - left_s
    return done, None


@settings(max_examples=examples(60))
@given(st.sampled_from(CASES), st.floats(0.0, 0.98), st.integers(1, 4000), st.sampled_from([7, 60]))
def test_progress_is_that_of_the_loop_round_by_round(case, begun, seconds, round_s):
    model, batch, spread = case
    speed = pollux_speed(model, batch)
    start = begun * speed.ends[-1]
    done, ended_s = stepped(speed, spread, start, seconds, round_s)
    if ended_s is None:
        assert speed.work("T4", spread, start, float(seconds)) == pytest.approx(done, rel=1e-9)
    else:
        assert speed.work("T4", spread, start, float(seconds)) >= speed.ends[-1] * (1 - 1e-12)


@every_case
def test_the_end_comes_within_half_a_second_of_where_the_loop_puts_it(model, batch, spread):
    speed = pollux_speed(model, batch)
    for begun in (0.0, 0.3, 0.77):
        start = begun * speed.ends[-1]
        _, ended_s = stepped(speed, spread, start, 10**7, 60)
        assert round(speed.seconds("T4", spread, start, speed.ends[-1])) == ended_s


@every_case
def test_it_is_the_measured_speed_but_for_the_rounding(model, batch, spread):
    speed, smooth = pollux_speed(model, batch), measured_goodput(model, batch=batch)
    work = total_work(model)
    assert speed.rate("T4", spread, 0.0) == smooth.rate("T4", spread, 0.0)
    off_s = speed.seconds("T4", spread, 0.0, work) - smooth.seconds("T4", spread, 0.0, work)
    assert abs(off_s) <= 0.5 * len(speed.ends)


def test_more_time_never_means_less_progress():
    speed = pollux_speed("cifar10", 512)
    reached = [speed.work("T4", (4,), 0.0, tenth / 10) for tenth in range(6000)]
    assert reached == sorted(reached)


def test_what_cannot_run_never_ends():
    speed = pollux_speed("cifar10", 512)
    assert speed.rate("A100", (4,), 0.0) == 0.0
    assert speed.seconds("A100", (4,), 0.0, 1.0) == float("inf")
    assert speed.work("A100", (4,), 5.0, 100.0) == 5.0


def test_expected_time_is_step_time_times_iterations_from_the_end_of_the_epoch():
    speed = pollux_speed("cifar10", 1024)
    first, last = speed.left_s(4, 0.0), speed.left_s(4, speed.ends[-1])
    assert first[3] / last[3] == pytest.approx(speed.iterations[0])
    assert speed.iterations[-1] == 1.0
    step_s, _ = measured_step_time("cifar10").times((4,), speed.goodput._grid("T4", (4,)).local)
    assert last[3] == pytest.approx(step_s[0])


def test_a_job_may_grow_while_each_gpu_has_a_measured_batch():
    assert pollux_speed("cifar10", 512).max_gpus == 16
    assert pollux_speed("imagenet", 12800).max_gpus == 64
    assert pollux_speed("ncf", 32768).max_gpus == 1


def test_the_expectation_starts_at_the_fewest_gpus_and_knows_only_such_jobs():
    speed = pollux_speed("cifar10", 512)
    job = a_job(speed=speed, gpus=2, min_gpus=2, work=speed.ends[-1])
    assert list(iterations_left_s(job, POOL, 0.0)) == speed.left_s(4, 0.0)[1:]
    with pytest.raises(InvalidValue):
        iterations_left_s(a_job(), POOL, 0.0)
