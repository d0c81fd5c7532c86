from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.domain.shape import packed
from sublet.errors import UnknownName
from sublet.perf.measured import (
    MODELS,
    goodput_model,
    measured_goodput,
    measured_step_time,
    stat_efficiency,
    total_work,
)
from sublet.perf.tables import read_profile

WIDTHS = (2, 4, 8, 12, 16, 24, 32, 64)


def step(times, spread, local):
    full, compute = times.times(spread, np.array([float(local)]))
    return float(full[0]), float(compute[0])


def test_a_measured_placement_answers_with_its_own_rows():
    table = read_profile("pollux-step-time").rows(model="bert", placement="24")
    times = measured_step_time("bert")
    for at in range(len(table)):
        full, sync = table.floats("step_time_s")[at], table.floats("sync_time_s")[at]
        found = step(times, (4, 2), table.floats("local_bsz")[at])
        assert found == pytest.approx((full, full - sync), rel=1e-12)


def test_rotations_and_idle_nodes_make_no_difference():
    times = measured_step_time("cifar10")
    expected = step(times, (1, 3, 4), 100)
    assert step(times, (3, 4, 1), 100) == expected
    assert step(times, (4, 0, 1, 3), 100) == expected
    assert step(times, (1, 4, 3), 100) != expected  # another ring


def test_between_local_batches_times_are_linear():
    times = measured_step_time("bert")
    low, middle, high = (step(times, (4,), local)[0] for local in (4, 5, 6))
    assert middle == pytest.approx((low + high) / 2, rel=1e-12)


def test_outside_the_measurements_nothing_runs():
    times = measured_step_time("bert")
    assert step(times, (4,), 13) == (math.inf, math.inf)  # above the largest local batch
    assert step(times, (4,), 3) == (math.inf, math.inf)
    assert step(times, (4,) * 17, 8) == (math.inf, math.inf)  # 68 GPUs
    assert step(times, (), 8) == (math.inf, math.inf)


def test_an_interpolated_answer_does_not_depend_on_what_else_is_asked():
    # SciPy's own does, at about one point in forty of this table.
    times = measured_step_time("deepspeech2")
    local = np.arange(10.0, 81.0)
    together = times.times((4,) * 6 + (2,), local)[0]
    times._triangulated.clear()
    alone = [step(times, (4,) * 6 + (2,), value)[0] for value in reversed(local.tolist())]
    assert together.tolist() == alone[::-1]


def test_presetting_the_inverses_changes_no_answer():
    from scipy.interpolate import LinearNDInterpolator

    times = measured_step_time("yolov3")  # the smallest: SciPy's own way can take seconds on busy cores
    plain = LinearNDInterpolator(times.points, times.values, fill_value=np.inf)
    for spread in (packed(18, 4), packed(26, 4), packed(36, 4), packed(51, 4), packed(64, 4), (3,) * 7, (1,) * 9):
        for local in (4.0, 5.0, 7.0, 8.0):
            expected = plain(np.array([[len(spread), sum(spread), local]]))[0]
            assert step(times, spread, local) == pytest.approx(tuple(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "work"),
    [
        ("cifar10", 39062.9),
        ("ncf", 194174.0),
        ("deepspeech2", 28536.0),
        ("bert", 14774.0),
        ("yolov3", 103444.0),
        ("imagenet", 576525.6),
    ],
)
def test_total_work_is_as_published(model, work):
    assert total_work(model) == pytest.approx(work, abs=0.05)


@pytest.mark.parametrize("model", MODELS)
def test_efficiency_is_one_at_the_initial_batch_and_never_more(model):
    worth = stat_efficiency(model)
    at = worth.worth(np.linspace(worth.initial, worth.largest, 97))
    assert at[:, 0] == pytest.approx(1.0, rel=1e-12)
    assert (at > 0).all()
    assert (at <= 1.0 + 1e-12).all()
    outside = worth.worth(np.array([worth.initial - 1.0, worth.largest + 1.0]))
    assert (outside == 0.0).all()


def test_local_batch_limits_are_those_of_the_simulator():
    limits = {model: goodput_model(model).limits["T4"] for model in MODELS}
    assert {model: (limit.min_local, limit.max_local) for model, limit in limits.items()} == {
        "bert": (4, 12),
        "cifar10": (32, 1024),
        "deepspeech2": (10, 80),
        "imagenet": (20, 200),
        "ncf": (32, 32768),
        "yolov3": (4, 8),
    }
    assert {model: (limit.initial, limit.largest) for model, limit in limits.items()} == {
        "bert": (12, 384),
        "cifar10": (128, 4096),
        "deepspeech2": (20, 640),
        "imagenet": (200, 12800),
        "ncf": (256, 32768),
        "yolov3": (8, 512),
    }


@pytest.mark.parametrize(
    ("model", "batch", "spread", "submit_s", "completion_s"),
    [
        # workload 1 under Tiresias: results published with petuum/adaptdl, branch osdi21-artifact
        ("cifar10", 2048, (4, 2), 107, 953),
        ("deepspeech2", 320, (4, 2), 110, 4182),
        ("ncf", 32768, (1,), 135, 122),
        ("deepspeech2", 640, (4, 4, 4), 262, 2545),
    ],
)
def test_published_job_times_come_out_to_the_second(model, batch, spread, submit_s, completion_s):
    speed = measured_goodput(model, batch=batch)
    now_s, done, epoch = math.ceil(submit_s / 60) * 60 + 30, 0.0, 0  # next round, then 30 s of restart
    while epoch < len(speed.ends):
        left_s = 60 - now_s % 60  # the published simulator stops at each minute, and rounds at each epoch's end
        goal = speed.ends[epoch]
        needed_s = speed.seconds("T4", spread, done, goal)
        if speed.work("T4", spread, done, left_s) < goal:
            done, now_s = speed.work("T4", spread, done, left_s), now_s + left_s
        else:
            done, now_s, epoch = goal, now_s + round(needed_s), epoch + 1
    assert now_s - submit_s == completion_s


def relative(model, epoch, width):
    speed = measured_goodput(model)
    done = (0.0, *speed.ends)[epoch]
    return speed.rate("T4", packed(width, 4), done) / speed.rate("T4", (1,), done)


def test_best_goodput_agrees_with_published_speedups_of_bert():
    # Speedups in the simulator of BOA Constrictor. It most likely picks the batch by a fitted model and charges the
    # measured time; then, at 2 and 4 GPUs, the best batch of the tables is a little better than what it ran.
    published = (2.02, 3.90, 5.52, 8.49, 10.26, 11.67, 13.96, 13.39)
    found = [relative("bert", 0, width) for width in WIDTHS]
    assert found[2:] == pytest.approx(published[2:], abs=0.006)
    assert all(ours >= theirs for ours, theirs in zip(found[:2], published[:2], strict=True))
    assert found[:2] == pytest.approx(published[:2], rel=0.05)


@pytest.mark.parametrize(
    ("model", "epoch", "published", "tolerance"),
    [
        ("cifar10", 0, (1.55, 1.91, 0.83, 1.11, 1.08, 0.88, 0.93, 0.59), 0.20),
        ("cifar10", 50, (1.72, 3.50, 5.87, 8.85, 11.27, 11.24, 11.18, 8.35), 0.05),
        ("deepspeech2", 0, (1.30, 1.25, 0.73, 0.90, 1.04, 0.95, 0.93, 0.92), 0.08),
        ("deepspeech2", 40, (1.93, 3.84, 7.30, 11.15, 13.48, 14.62, 14.33, 16.68), 0.12),
    ],
)
def test_best_goodput_is_near_published_speedups(model, epoch, published, tolerance):
    # Not equal, presumably for the same reason: a worse batch on one GPU makes all of their speedups larger.
    found = [relative(model, epoch, width) for width in WIDTHS]
    assert found == pytest.approx(published, rel=tolerance)


def test_a_chosen_batch_is_at_least_as_good_as_any_fixed_one():
    best = measured_goodput("deepspeech2")
    for batch in (20, 40, 80, 160, 320, 640):
        fixed = measured_goodput("deepspeech2", batch=batch)
        for done in (0.0, 10_000.0, 28_000.0):
            assert best.rate("T4", (4, 4), done) >= fixed.rate("T4", (4, 4), done) * 0.99  # the grid has 50 points


def test_a_slowdown_divides_every_rate():
    plain, slow = measured_goodput("bert"), measured_goodput("bert", slowdown=1.2)
    assert slow.rate("T4", (4,), 0.0) == pytest.approx(plain.rate("T4", (4,), 0.0) / 1.2)


def test_jobs_of_one_model_share_one_speed():
    assert measured_goodput("bert") is measured_goodput("bert")
    assert measured_goodput("bert", batch=48) is measured_goodput("bert", batch=48)


def test_a_default_that_is_spelled_out_gives_the_same_object():
    assert measured_goodput("bert", source="pollux", batch=None, slowdown=1.0) is measured_goodput("bert")
    assert goodput_model(model="bert", source="pollux") is goodput_model("bert")
    assert measured_step_time("bert", gpu="T4", source="pollux") is measured_step_time("bert")
    assert stat_efficiency(model="bert", source="pollux") is stat_efficiency("bert")


def test_what_holds_tables_is_printed_in_one_line_and_can_be_compared_and_hashed():
    makers = (measured_goodput, goodput_model, measured_step_time, stat_efficiency)
    for one, other in ((make("bert"), make("cifar10")) for make in makers):
        assert len(repr(one)) < 80
        assert one == one  # noqa: PLR0124 - that it does not raise is the point
        assert one != other
        assert len({one, other, one}) == 2
    assert repr(measured_goodput("cifar10")) == "Phased(phases=100)"
    assert repr(goodput_model("cifar10", batch=128)) == "Goodput(kinds=['T4'], phases=100, batch=128)"


def test_unknown_models_and_kinds_get_help():
    with pytest.raises(UnknownName, match="did you mean cifar10"):
        measured_goodput("cifar")
    with pytest.raises(UnknownName, match="T4"):
        measured_step_time("bert", "H100")
    assert measured_goodput("bert").rate("H100", (1,), 0.0) == 0.0


@pytest.mark.outside_data
def test_the_tables_of_sia_answer_for_four_kinds(need_profile):
    need_profile("sia-step-time")
    need_profile("sia-stat-efficiency")
    speed = measured_goodput("cifar10", source="sia", slowdown=1.8)
    rates = {kind: speed.rate(kind, (4,), 30_000.0) for kind in ("T4", "RTX-2080Ti", "V100-32GB", "A100")}
    assert sorted(rates, key=rates.get) == ["T4", "RTX-2080Ti", "V100-32GB", "A100"]
    assert goodput_model("deepspeech2", source="sia").limits["RTX-2080Ti"].max_local == 57
    ours, theirs = measured_goodput("imagenet"), measured_goodput("imagenet", source="sia")
    assert theirs.rate("T4", (4, 4), 0.0) == pytest.approx(ours.rate("T4", (4, 4), 0.0), rel=1e-4)  # six digits
