"""What was measured at one batch says less of another."""

from __future__ import annotations

from sublet.perf.learned import MEASURED_DOUBT
from sublet.perf.live.rows import StepRow, earlier
from sublet.perf.live.speed import LiveSpeed

BATCHES = (64, 256, 1024)


def row(samples, gpus=1):
    piece_s = 0.02 + 0.001 * samples
    return StepRow(gpu="T4", gpus=gpus, samples=samples, step_s=piece_s + 0.005, piece_s=piece_s, error=0.02)


def a_speed(*rows, batch_now=64):
    return LiveSpeed(rows=rows, batches=BATCHES, initial=64, batch_now=batch_now, noise=800.0)


def test_a_batch_that_was_measured_is_known_and_another_less_the_farther_it_is():
    now, near, far = a_speed(row(64)).doubts("T4", (1,), BATCHES)
    assert now == MEASURED_DOUBT
    assert now < near <= far
    both = a_speed(row(64), row(256)).doubts("T4", (1,), BATCHES)
    assert both[:2].tolist() == [MEASURED_DOUBT, MEASURED_DOUBT]
    assert MEASURED_DOUBT < both[2] < far


def test_what_an_earlier_run_measured_does_not_make_a_batch_known():
    _, near, _ = a_speed(row(64), earlier(row(256))).doubts("T4", (1,), BATCHES)
    assert near > MEASURED_DOUBT


def test_the_batch_that_it_has_is_as_sure_as_its_width_whoever_names_it():
    speed = a_speed(row(90), batch_now=91)  # as the workers told it, of a last share that was smaller
    assert speed.doubts("T4", (1,), [None, 91]).tolist() == [speed.doubt("T4", (1,))] * 2
    wide = a_speed(row(64)).doubts("T4", (2,), [None, 64])
    assert wide.tolist() == [a_speed(row(64)).doubt("T4", (2,))] * 2


def test_a_share_that_does_not_come_out_even_is_still_the_batch_that_was_measured():
    speed = a_speed(row(64), StepRow(gpu="T4", gpus=2, samples=46, step_s=0.1, piece_s=0.06))
    assert speed.doubts("T4", (2,), [91]).tolist() == [MEASURED_DOUBT]
