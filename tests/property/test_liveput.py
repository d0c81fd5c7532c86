"""What holds for one job on spot whatever the market does."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import Infeasible
from sublet.perf.grids import spot_job
from sublet.perf.migration import Layers, LinearCosts
from sublet.planning.objective import Objective
from sublet_lab.rides.bounds import path_value
from sublet_lab.rides.deadline import Punctual, certain_samples, least_usd, replay_punctual
from sublet_lab.rides.many_zones import run_in_zones
from sublet_lab.rides.record import Record
from sublet_lab.rides.zones import Links, ZonedJob
from tests.rigs.sizes import sized

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
RATES = {(wide, deep): 10.0 * wide**0.9 * deep**0.8 for deep in (2, 3, 4) for wide in range(1, 12 // deep + 1)}
SEEDS = range(sized(3, 6))


def job():
    return spot_job("toy", RATES, COSTS)


def walk(seed, ticks=80, most=12):
    rng = np.random.default_rng(seed)
    now, path = 8, []
    for _ in range(ticks):
        if rng.random() < 0.3:
            now = int(np.clip(now + rng.integers(-4, 5), 0, most))
        path.append(now)
    return tuple(path)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_a_deadline_that_can_be_kept_is_kept_at_no_less_than_the_bound(seed, share):
    toy, record = job(), Record(capacity=walk(seed, ticks=120))
    plan = Punctual(
        samples=share * certain_samples(toy, record.span_s),
        within_s=record.span_s,
        usd_per_h=1.0,
        on_demand_usd_per_h=3.0,
    )
    done = replay_punctual(toy, plan, record)
    assert done.samples >= plan.samples
    assert done.usd >= least_usd(toy, record, plan) * (1 - 1e-9)


def test_a_deadline_that_nobody_could_keep_is_refused_with_its_own_code():
    plan = Punctual(samples=1e9, within_s=3600.0, usd_per_h=1.0, on_demand_usd_per_h=3.0)
    with pytest.raises(Infeasible, match="1,000,000,000 samples of toy") as refused:
        replay_punctual(job(), plan, Record(capacity=(8,) * 60))
    assert refused.value.exit_code == 111


# ---------------------------------------------------------------------- zones


def zoned(zones, **links):
    return ZonedJob(job(), zones, [12] * len(zones), batch=64, links=Links(**links), usd_per_h=1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_more_zones_never_hurt_who_knows_the_future(seed):
    zones = ("us-east-1a", "us-east-1b", "us-west-2a")
    have = list(zip(*(walk(seed + 100 * place) for place in range(3)), strict=True))
    samples = [
        run_in_zones(zoned(zones[:count]), "oracle", [each[:count] for each in have], usd_per_h=1.0).samples
        for count in (1, 2, 3)
    ]
    assert samples == sorted(samples)
    for name in ("greedy-live", "liveput"):
        assert run_in_zones(zoned(zones), name, have, usd_per_h=1.0).samples <= samples[-1] * (1 + 1e-9)


def test_one_zone_is_as_without_zones():
    for seed in SEEDS:
        capacity, toy = walk(seed), job()
        alone = run_in_zones(zoned(("z",)), "oracle", [(each,) for each in capacity], usd_per_h=1.0)
        assert alone.samples == pytest.approx(path_value(Objective(toy), Record(capacity=capacity)))


def test_a_stage_boundary_never_crosses_zones():
    split = zoned(("us-east-1a", "us-east-1b"))
    fits = split.fits_S((3, 3))
    grids = {split.job.grids[split.config_S[state]] for state in np.flatnonzero(fits)}
    assert (2, 3) in grids
    assert (2, 2) in grids
    assert (3, 2) not in grids  # six instances, but only one pipeline of two in each zone
    assert (1, 4) not in grids


def test_a_loss_in_one_zone_spares_the_pipelines_of_the_other():
    both = zoned(("us-east-1a", "us-east-1b"))
    pair = next(
        state
        for state, (site, config) in enumerate(zip(both.site_S, both.config_S, strict=True))
        if len(both.sites[site]) == 2 and both.job.grids[config] == (2, 4)
    )
    stay = both.pauses_s((4, 8), (3, 8))[pair, pair]
    mixed = both.job.pauses_s(12, 11)[both.job.at[2, 4], both.job.at[2, 4]]
    assert np.isfinite(stay) == bool(both.fits_S((3, 8))[pair])
    assert stay < mixed  # both pipelines lie in the fuller zone


def test_far_apart_costs_speed_and_money_and_dear_grids_are_left_out():
    near, far = zoned(("us-east-1a", "us-east-1b")), zoned(("us-east-1a", "us-west-2a"))
    both = [each.rate_S[each.site_S == 2] for each in (near, far)]
    assert (both[1] < both[0]).all()
    thrifty = ZonedJob(
        job(), ("us-east-1a", "us-west-2a"), [12, 12], batch=64, links=Links(), usd_per_h=1.0, most_usd=1e-4
    )
    assert len(thrifty.rate_S) < len(far.rate_S)
