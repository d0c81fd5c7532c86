"""A job whose step time is a known function: what is fitted to a few of its forms foretells the others."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.domain.shape import Shape, packed
from sublet.perf.live.fit import surest
from sublet.perf.live.rows import Source, StepRow, earlier, predicted
from sublet.perf.live.speed import LiveSpeed, batch_steps
from sublet.perf.steptime import PolluxStep

PER_NODE, OTHER_S, JITTER = 4, 0.003, 0.01
TRIED_WIDTHS, TRIED_BATCHES = (1, 2, 4, 8, 16), (64, 512, 4096)
ALL_WIDTHS, ALL_BATCHES = (1, 2, 3, 4, 8, 12, 16), batch_steps(64, 64, 4096)
INITIAL = 64


def truth(rng):
    inside_s = rng.uniform(0.002, 0.05)
    between_s = inside_s * rng.uniform(1.2, 3.0)
    return PolluxStep(
        alpha_c_s=rng.uniform(0.01, 0.05),
        beta_c_s=10 ** rng.uniform(-3.7, -2.5),
        alpha_r_s=inside_s,
        beta_r_s=inside_s * rng.uniform(0.0, 0.2),
        alpha_n_s=between_s,
        beta_n_s=between_s * rng.uniform(0.0, 0.2),
        gamma=rng.uniform(1.0, 4.0),
    )


def row_of(true, width, batch, rng=None):
    """What a session would measure; without rng, exactly."""
    spread, local = packed(width, PER_NODE), -(-batch // width)
    full_s, piece_s = (float(each[0]) for each in true.times(spread, np.array([float(local)])))
    jitter = np.ones(3) if rng is None else np.exp(rng.normal(0.0, JITTER, 3))
    piece_s, wait_s, other_s = np.array([piece_s, full_s - piece_s, OTHER_S]) * jitter
    times = {"step_s": piece_s + wait_s + other_s, "piece_s": piece_s, "wait_s": wait_s}
    return StepRow(gpu="T4", gpus=width, nodes=len(spread), samples=local, error=JITTER, **times)


def speed_of(rows, **facts):
    given = {"batches": ALL_BATCHES, "initial": INITIAL, "batch_now": INITIAL, "noise": 1000.0, **facts}
    return LiveSpeed(rows=tuple(rows), **given)


@pytest.mark.parametrize("seed", range(6))
def test_five_widths_by_three_batches_foretell_the_rest_and_the_best(seed):
    rng = np.random.default_rng(seed)
    true, noise = truth(rng), 10 ** rng.uniform(2.0, 4.0)
    speed = speed_of([row_of(true, k, b, rng) for k in TRIED_WIDTHS for b in TRIED_BATCHES], noise=noise)
    cost, believed = {}, {}
    for width in ALL_WIDTHS:
        for batch in ALL_BATCHES:
            worth = (noise + INITIAL) / (noise + batch)
            rate, step_s = speed.rate_at("T4", packed(width, PER_NODE), batch), row_of(true, width, batch).step_s
            assert batch * worth / rate == pytest.approx(step_s, rel=0.05)
            hour = 2.0 + width  # time is worth as much as two GPUs
            cost[width, batch], believed[width, batch] = hour * step_s / (batch * worth), hour / rate
    chosen = min(believed, key=believed.__getitem__)
    assert cost[chosen] <= 1.02 * min(cost.values())


def test_what_was_never_tried_is_less_sure_than_what_was():
    true = truth(np.random.default_rng(0))
    alone = speed_of([row_of(true, 1, 64)])
    assert alone.doubt("T4", (1,)) < alone.doubt("T4", (2,)) < alone.doubt("A100", (2,))
    assert (alone.source("T4", (1,)), alone.source("T4", (2,))) == (Source.MEASURED, Source.PREDICTED)
    both = speed_of([row_of(true, k, 64) for k in (1, 4)])
    assert both.doubt("T4", (3,)) < alone.doubt("T4", (3,))


def test_growing_is_hoped_for_once_and_then_known():
    slow = PolluxStep(
        alpha_c_s=0.02, beta_c_s=1e-3, alpha_r_s=0.5, beta_r_s=0.0, alpha_n_s=0.5, beta_n_s=0.0, gamma=1.0
    )
    hopeful = speed_of([row_of(slow, 1, 512)], batches=(512,))
    assert hopeful.rate("T4", (2,), 0.0) > 1.3 * hopeful.rate("T4", (1,), 0.0)
    taught = speed_of([row_of(slow, k, 512) for k in (1, 2)], batches=(512,))
    assert taught.rate("T4", (2,), 0.0) < taught.rate("T4", (1,), 0.0)
    assert taught.rate("T4", (4,), 0.0) < taught.rate("T4", (1,), 0.0)


def test_what_this_run_measures_takes_the_place_of_what_an_earlier_one_did():
    true = truth(np.random.default_rng(1))
    before = [earlier(row_of(true, k, b)) for k in (1, 2, 4) for b in (64, 512)]
    speed = speed_of([*before, row_of(true, 1, 64)])
    assert speed.source("T4", (1,)) is Source.MEASURED
    assert speed.source("T4", (2,)) is Source.EARLIER
    assert speed.rate_at("T4", (3,), 512) == pytest.approx(512 / row_of(true, 3, 512).step_s * 1064 / 1512, rel=0.1)


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_rows_of_one_form_only_the_surer_counts(turned):
    now = row_of(truth(np.random.default_rng(1)), 1, 64)
    before = earlier(StepRow(**{**_facts(now), "step_s": now.step_s * 2, "piece_s": now.piece_s * 2}))
    rows = (now, before) if turned else (before, now)
    assert surest(rows) == (now,)
    assert surest((predicted(before, "T4", 1.0), before)) == (before,)
    assert speed_of(rows).rate_at("T4", (1,), 64) == speed_of([now]).rate_at("T4", (1,), 64)


def _facts(row):
    names = ("gpu", "gpus", "nodes", "samples", "pieces", "step_s", "piece_s", "wait_s")
    return {name: getattr(row, name) for name in names} | {"wait_s": 0.0, "error": 0.01}


def test_another_kind_is_reckoned_from_the_one_that_is_known():
    true = truth(np.random.default_rng(2))
    rows = [row_of(true, k, b) for k in (1, 2) for b in (64, 512)]
    speed = speed_of(rows, ratio=lambda known, gpu: 0.5 if (known, gpu) == ("T4", "A100") else 1.0)
    piece_s = row_of(true, 1, 4096).piece_s
    assert 4096 / speed.rate_at("A100", (1,), 4096) * 1064 / 5096 == pytest.approx(piece_s / 2 + OTHER_S, rel=0.05)
    assert predicted(rows[0], "A100", 0.5).source is Source.PREDICTED


def test_staying_takes_as_long_as_samples_take():
    """Progress is counted in samples: the rate at the batch that it has is samples per second, whatever the noise."""
    true = truth(np.random.default_rng(3))
    rows = [row_of(true, k, b) for k in (1, 2) for b in (64, 512)]
    for batch_now in (64, 512):
        speed = speed_of(rows, batch_now=batch_now, unit=10.0)
        here = speed.bound_to(Shape("p", 2)).rate("T4", (2,), 0.0)
        assert here == pytest.approx(batch_now / row_of(true, 2, batch_now).step_s / 10.0, rel=0.02)
    small, large = (speed_of(rows, batch_now=b) for b in (64, 512))
    assert large.rate("T4", (1,), 0.0) / small.rate("T4", (1,), 0.0) == pytest.approx(1512 / 1064)


def test_a_batch_stays_that_is_nearly_as_good_as_the_best_and_none_changes_where_the_noise_is_not_known():
    true = truth(np.random.default_rng(4))
    rows = [row_of(true, k, b) for k in (1, 2) for b in (64, 512)]
    speed = speed_of(rows)
    best = speed.best_batch("T4", (2,), None)
    assert best is not None
    assert speed.rate_at("T4", (2,), best) == speed.rate("T4", (2,), 0.0) > speed.rate_at("T4", (2,), 64) / 0.95
    assert speed.best_batch("T4", (2,), best) == best
    beside = ALL_BATCHES[ALL_BATCHES.index(best) + 1]
    assert speed.best_batch("T4", (2,), beside) == beside
    blind = speed_of(rows, noise=None)
    assert blind.best_batch("T4", (2,), None) is None
    assert blind.ways(2) == ((None, None),)
    assert blind.rate("T4", (2,), 0.0) == pytest.approx(64 / row_of(true, 2, 64).step_s, rel=0.02)


def test_more_gpus_than_samples_and_widths_that_are_not_allowed_cannot_train():
    rows = [row_of(truth(np.random.default_rng(5)), 1, 64)]
    speed = speed_of(rows, sizes=(1, 2, 128))
    assert speed.rate_at("T4", (128,), 64) == 0.0
    assert speed.rate("T4", (3,), 0.0) == 0.0
    assert (None, 64) not in speed.ways(65)


def test_a_step_of_several_micro_batches_takes_as_long_as_they_take():
    line = PolluxStep(alpha_c_s=0.1, beta_c_s=1e-3, alpha_r_s=0.0, beta_r_s=0.0, alpha_n_s=0.0, beta_n_s=0.0, gamma=1.0)
    rows = [row_of(line, 1, b) for b in (32, 64, 128)]
    speed = speed_of(rows, most_samples=100, batches=(300,), noise=1e9)
    step_s = 3 * (0.1 + 1e-3 * 100) + OTHER_S
    assert speed.rate_at("T4", (1,), 300) == pytest.approx(300 / step_s, rel=0.02)


def test_where_the_curve_is_off_what_was_measured_counts():
    true = truth(np.random.default_rng(6))
    rows = [row_of(true, k, 64) for k in (1, 2, 4)]
    odd = row_of(true, 3, 64)
    cliff = StepRow(**{**_facts(odd), "piece_s": odd.piece_s * 5, "step_s": odd.step_s * 6})
    speed = speed_of([*rows, cliff], noise=None)
    assert speed.rate_at("T4", (3,), 64) == pytest.approx(64 / cliff.step_s)
