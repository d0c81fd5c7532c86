"""What a run leaves behind, by hand: rows, segments, GPUs held, dollars, and the figures made of them."""

from __future__ import annotations

import math

import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Money, Price
from sublet.errors import Infeasible, InvalidValue, InvariantBroken
from sublet.kernel.kernel import Kernel
from sublet.policies.fifo import Fifo
from sublet.sim.record import JobRow, Segment, metrics_from_run
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.srtf import Srtf

OFFER = an_offer("o", gpus=4, usd_per_h="3.6", pool="p")  # a node costs a dollar every 1000 seconds


def run(*jobs, market=(), nodes=1, policy=None, offer=OFFER, **physics):
    cloud = Cloud(
        offers=(offer,),
        limits={offer.id: Limit(max_nodes=nodes)},
        physics=Physics(**{"notice_s": 0.0, **physics}),
        market=lambda: market,
    )
    return simulate(jobs, policy or Fifo(), cloud, checked=True)


# ---------------------------------------------------------------------- rows


def test_a_row_tells_when_a_job_came_began_and_ended():
    done = run(a_job("a", work=400.0, gpus=4, model="bert"), a_job("b", 50.0, work=400.0, gpus=4))
    a, b = done.record.jobs["a"], done.record.jobs["b"]
    assert (a.submit_s, a.start_s, a.finish_s, a.model, a.gpus_asked) == (0.0, 0.0, 100.0, "bert", 4)
    assert (b.submit_s, b.start_s, b.finish_s, b.completion_s) == (50.0, 100.0, 200.0, 150.0)
    assert (a.starts, a.resizes, a.losses, a.gpu_s, a.paused_gpu_s) == (1, 0, 0, 400.0, 0.0)


def test_the_time_of_a_job_that_has_not_ended_is_not_to_be_had():
    with pytest.raises(ValueError, match="a"):
        _ = JobRow("a", "", 0.0, 1).completion_s


def test_a_preempted_job_starts_twice_and_pauses_twice():
    jobs = a_job("long", work=4000.0, gpus=4, restart_s=10.0), a_job("short", 100.0, work=40.0, gpus=4)
    row = run(*jobs, policy=Srtf()).record.jobs["long"]
    assert (row.starts, row.start_s, row.finish_s) == (2, 0.0, 1030.0)  # 1000 s of work, two pauses, 10 s for the other
    assert (row.gpu_s, row.paused_gpu_s) == (4 * 1020.0, 4 * 20.0)


def test_a_job_that_lost_its_node_is_paused_until_it_has_another():
    market = [AvailabilityChanged(50.0, "o", 0), AvailabilityChanged(80.0, "o", 1)]
    row = run(a_job("a", work=400.0, gpus=4, checkpoint_every_s=20.0), market=market).record.jobs["a"]
    assert row.finish_s == 140.0  # 40 s of work kept, 60 s left at 80
    assert (row.gpu_s, row.paused_gpu_s) == (4 * 110.0, 0.0)


def test_what_survives_of_a_broken_job_is_held_and_paused():
    market = [AvailabilityChanged(50.0, "o", 1)]
    done = run(
        a_job("a", work=800.0, gpus=8, min_gpus=4, checkpoint_every_s=20.0),
        nodes=2,
        market=market,
        planning_s=5.0,
        policy=Srtf(),
    )
    row = done.record.jobs["a"]
    # starts at 5; node lost at 50, 40 s of eight GPUs kept; resized at 55 to four GPUs for the 480 left
    assert row.finish_s == 55.0 + 120.0
    assert row.losses == 1
    assert (row.gpu_s, row.paused_gpu_s) == (8 * 45.0 + 4 * 5.0 + 4 * 120.0, 4 * 5.0)


# ---------------------------------------------------------------------- over time


def test_segments_tell_who_held_how_many_from_when_to_when():
    jobs = a_job("long", work=4000.0, gpus=4), a_job("short", 100.0, work=40.0, gpus=2, max_gpus=2)
    assert run(*jobs, policy=Srtf()).record.segments == [
        Segment("long", 0.0, 100.0, 4),
        Segment("short", 100.0, 120.0, 2),
        Segment("long", 120.0, 1020.0, 4),
    ]


def test_segments_are_left_out_where_nobody_needs_them():
    cloud = Cloud(offers=(OFFER,))
    assert simulate([a_job()], Fifo(), cloud, keep_segments=False).record.segments == []


def test_gpus_held_and_dollars_spent_are_noted_at_every_change():
    record = run(a_job("a", work=400.0, gpus=4), provision_s=50.0, release_s=10.0).record
    assert record.held == [(0.0, 4), (160.0, 0)]  # boots until 50, trains until 150, is gone at 160
    assert record.spend[-1] == (160.0, Money.from_usd("0.16"))
    assert record.held_gpu_s == 4 * 160.0


def test_losses_and_refusals_are_counted():
    market = [AvailabilityChanged(0.0, "o", 1), AvailabilityChanged(50.0, "o", 0), AvailabilityChanged(200.0, "o", 1)]
    record = run(a_job("a", work=400.0, gpus=4), market=market).record
    assert (record.losses, record.refusals) == (1, 0)


# ---------------------------------------------------------------------- figures


def test_the_figures_of_two_jobs_by_hand():
    figures = run(a_job("a", work=400.0, gpus=4), a_job("b", 50.0, work=200.0, gpus=4)).metrics
    assert (figures.jobs, figures.finished) == (2, 2)
    assert (figures.mean_s, figures.max_s, figures.p50_s) == (100.0, 100.0, 100.0)
    assert figures.mean_wait_s == 25.0
    assert figures.makespan_s == 150.0
    assert figures.gpu_hours == figures.used_gpu_hours == pytest.approx(4 * 150 / 3600)
    assert figures.utilisation == 1.0
    assert figures.usd == pytest.approx(0.15)
    assert figures.mean_jobs == pytest.approx((100 + 100) / 150)
    assert (figures.rescales, figures.losses) == (0, 0)


def test_pauses_and_idle_nodes_lower_utilisation():
    figures = run(a_job("a", work=400.0, gpus=4, restart_s=25.0), provision_s=75.0).metrics
    assert figures.used_gpu_hours == pytest.approx(4 * 125 / 3600)
    assert figures.paused_gpu_hours == pytest.approx(4 * 25 / 3600)
    assert figures.utilisation == pytest.approx(100 / 200)


def test_rescales_are_resizes_and_restarts_after_the_first_start():
    jobs = a_job("long", work=4000.0, gpus=4), a_job("short", 100.0, work=40.0, gpus=4)
    assert run(*jobs, policy=Srtf()).metrics.rescales == 1


def test_a_price_change_in_the_middle_is_in_the_bill():
    market = [PriceChanged(500.0, "o", Price.from_usd_per_h("7.2"))]
    assert run(a_job("a", work=4000.0, gpus=4), market=market).metrics.usd == pytest.approx(0.5 + 1.0)


def test_figures_without_a_single_end_are_not_numbers_but_not_errors():
    done = run(a_job("a", work=400.0, gpus=4), market=[AvailabilityChanged(0.0, "o", 0)])
    assert done.unfinished == ("a",)
    assert (done.metrics.finished, math.isnan(done.metrics.mean_s), done.metrics.usd) == (0, True, 0.0)


def test_the_mean_number_of_jobs_is_an_average_over_the_time_watched():
    jobs = a_job("a", work=40.0, gpus=4), a_job("b", work=40.0, gpus=8, min_gpus=8)
    market = [AvailabilityChanged(0.0, "o", 1), PriceChanged(1000.0, "o", OFFER.price)]
    done = run(*jobs, market=market, nodes=2)
    assert done.unfinished == ("b",)
    assert done.metrics.mean_jobs == pytest.approx((10 + 1000) / 1000)


def test_littles_law_is_verified_and_its_breach_noticed():
    done = run(a_job("a", work=400.0, gpus=4))
    done.record.job_seconds += 1.0
    with pytest.raises(InvariantBroken, match="Little"):
        metrics_from_run(done.record, Kernel([OFFER]), 0.0, 0.0)


# ---------------------------------------------------------------------- what cannot be simulated


def test_a_run_needs_a_job_and_a_cloud_an_offer():
    with pytest.raises(InvalidValue, match="jobs"):
        simulate([], Fifo(), Cloud(offers=(OFFER,)))
    with pytest.raises(InvalidValue, match="offers"):
        Cloud(offers=())


def test_a_job_that_no_pool_could_ever_hold_is_refused_before_anything_runs():
    with pytest.raises(Infeasible) as caught:
        run(a_job("a", gpus=5, min_gpus=5), a_job("b"))
    assert (caught.value.needed, caught.value.available) == (5, 4)
    assert "a" in caught.value.what


def test_two_jobs_of_one_name_are_refused_before_anything_runs():
    with pytest.raises(InvalidValue, match="a"):
        run(a_job("a"), a_job("a", 5.0))
