"""What is compared in the study of the whole, and how."""

from __future__ import annotations

import math

import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.domain.offer import Market
from sublet.perf.gridded import Gridded
from sublet_lab.studies.whole.rivals import PUBLISHED, WHOLE, RivalOutcome, share_of
from sublet_lab.studies.whole.scene import CASES, clouds_of, gpu_hours, jobs_of, of_one_depth, with_fixed_batch
from sublet_lab.studies.whole.study import Scale, faster


def test_jobs_are_forty_and_two_of_them_choose_their_grids() -> None:
    jobs = jobs_of(1)
    assert len(jobs) == 40
    assert sorted(job.model for job in jobs if isinstance(job.speed, Gridded)) == ["bert", "gpt-1.5b"]
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)


def test_every_seed_is_another_workload() -> None:
    assert len({tuple(job.submit_s for job in jobs_of(seed)) for seed in range(1, 6)}) == 5


def test_without_a_choice_of_grids_copies_come_and_go_and_the_work_is_the_same() -> None:
    jobs = of_one_depth(jobs_of(1))
    for before, after in zip(jobs_of(1), jobs, strict=True):
        assert after.work == before.work
        if isinstance(after.speed, Gridded):
            profile = after.speed.profile
            assert len({parts for _, parts in profile.grids[1:]}) == 1
            assert gpu_hours(after) == pytest.approx(gpu_hours(before))  # the depth is the thriftiest
            assert after.min_gpus == profile.least


def test_with_a_fixed_batch_data_parallel_jobs_are_no_faster_on_one_gpu() -> None:
    jobs = with_fixed_batch(jobs_of(1), 1)
    pairs = list(zip(jobs_of(1), jobs, strict=True))
    assert all(gpu_hours(after) >= 0.999 * gpu_hours(before) for before, after in pairs)
    assert any(gpu_hours(after) > 1.05 * gpu_hours(before) for before, after in pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.trace)
def test_a_pool_of_both_markets_has_what_the_two_pools_have(case: object) -> None:
    markets = clouds_of(case)  # type: ignore[arg-type]  # pytest knows no types of parameters
    assert {offer.pool for offer in markets.mixed.offers} == {"T4"}
    assert [offer.id for offer in markets.mixed.offers] == [offer.id for offer in markets.both.offers]
    assert {offer.market for offer in markets.spot.offers} == {Market.SPOT}
    assert {offer.market for offer in markets.on_demand.offers} == {Market.ON_DEMAND}


def test_shares_of_a_market_add_up_to_it() -> None:
    cloud = clouds_of(CASES[0]).spot
    changes = [change for change, _ in zip(cloud.market(), range(200), strict=False)]
    parts = [
        [change for change, _ in zip(share_of(cloud, low, high).market(), range(200), strict=False)]
        for low, high in ((0.0, 0.31), (0.31, 1.0))
    ]
    for whole, one, other in zip(changes, *parts, strict=True):
        assert isinstance(whole, AvailabilityChanged)
        assert isinstance(one, AvailabilityChanged)
        assert isinstance(other, AvailabilityChanged)
        assert whole.nodes == (one.nodes or 0) + (other.nodes or 0)
        assert one.nodes == pytest.approx(0.31 * (whole.nodes or 0), abs=0.5)


def test_silos_take_every_job_once() -> None:
    for rival in PUBLISHED:
        taken = [job.id for part in rival.parts for job in jobs_of(1) if part.takes(job)]
        assert sorted(taken) == sorted(job.id for job in jobs_of(1))


def _ran(usd: float, hours: float) -> RivalOutcome:
    return RivalOutcome(usd=usd, hours={} if math.isinf(hours) else {"a": hours}, losses=0, paused_gpu_h=0.0)


def test_who_is_faster_is_asked_at_the_same_dollars() -> None:
    scale = Scale(CASES[:1], (1,), budgets=(1.0,), beyond=(1.0, 2.0))
    trace = CASES[0].trace
    found = {
        (WHOLE, trace, 1, 1.0): _ran(20.0, 1.5),
        ("a", trace, 1, 1.0): _ran(10.0, 4.0),
        ("a", trace, 1, 2.0): _ran(40.0, 1.0),  # 2 h for 20 dollars
        ("b", trace, 1, 1.0): _ran(30.0, 0.1),  # dearer at any budget: it is not asked
        ("b", trace, 1, 2.0): _ran(15.0, math.inf),  # never ended
    }
    assert faster(found, scale, ["a", "b"]) == [pytest.approx(25.0)]
    assert faster(found, scale, ["b"]) == []
