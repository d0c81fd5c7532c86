"""What is on the menu: every shape with its true speed, its rent, and its part of a node that is not full."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.domain.shape import Shape, packed
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear, PowerLaw, Table
from sublet.planning.menu import menu_of
from sublet.planning.terms import Terms
from sublet.testing import strategies
from sublet.testing.values import a_job, an_offer


def on_demand(offer_id="o", gpus=4, usd_per_h="4", **fields):
    return an_offer(offer_id, gpus=gpus, usd_per_h=usd_per_h, market=Market.ON_DEMAND, **fields)


def menu(job, *offers, **facts):
    return menu_of(job, Terms.from_snapshot(Kernel(offers or [on_demand()], **facts).snapshot()).sites)


def phased(ends, exponents):
    """Phase i scales as the number of GPUs to the power exponents[i]; each hashes as itself."""
    return Phased(ends=tuple(ends), rates=lambda gpu, spread: [(1 + i) * sum(spread) ** x for i, x in exponents])


@st.composite
def phased_jobs(draw):
    """Up to four phases; the work may end inside any of them, or beyond the last."""
    steps = draw(st.lists(st.sampled_from([10.0, 60.0, 500.0]), min_size=1, max_size=4))
    exponents = list(enumerate(draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in steps))
    low = draw(st.integers(1, 5))
    work = draw(st.sampled_from([1.0, 10.0, 69.0, 70.0, 333.0, 2500.0]))
    speed = phased(np.cumsum(steps), exponents)
    return a_job(work=work, speed=speed, gpus=low, min_gpus=low, max_gpus=draw(st.integers(low, 14)))


# ---------------------------------------------------------------------- speed


@given(phased_jobs(), st.sampled_from([1, 2, 4]))
def test_the_phases_of_a_job_take_together_what_its_speed_says(job, size):
    found = menu(job, on_demand(gpus=size))
    hours_C = found.hours(job.work).sum(axis=0)
    for shape, hours in zip(found.shapes, hours_C, strict=True):
        true_s = job.speed.seconds("T4", packed(shape.gpus, size), 0.0, job.work)
        assert hours * 3600 == pytest.approx(true_s, rel=1e-9)


@given(phased_jobs(), st.floats(0.0, 1.0))
def test_from_anywhere_the_rest_of_this_phase_and_the_next_ones_are_what_is_left(job, part):
    found = menu(job)
    done = part * job.work
    phase = found.phase(done)
    assert phase == job.speed.phase(done)
    left = found.work_left(phase, done, job.work)
    later_EC = found.hours(job.work)[phase + 1 :]
    for column, shape in enumerate(found.shapes):
        hours = left / found.rate_EC[phase, column] + later_EC[:, column].sum()
        true_s = job.speed.seconds("T4", packed(shape.gpus, 4), done, job.work)
        assert hours * 3600 == pytest.approx(true_s, rel=1e-9, abs=1e-9)


@given(strategies.jobs(most=1), strategies.offers(), st.data())
def test_every_shape_is_one_that_the_job_may_have_within_the_quota(jobs, offers, data):
    (job,) = jobs
    quotas = {offer.pool: data.draw(st.integers(0, 12)) for offer in offers if data.draw(st.booleans())}
    found = menu(job, *offers, quotas=quotas)
    assert len(set(found.shapes)) == len(found.shapes)
    assert [found.column[shape] for shape in found.shapes] == list(range(len(found.shapes)))
    size = {offer.pool: offer.gpus_per_node for offer in offers}
    for shape, gpus, whole in zip(found.shapes, found.gpus_C, found.whole_KC.sum(axis=0), strict=True):
        assert job.min_gpus <= shape.gpus <= min(job.max_gpus, quotas.get(shape.pool, math.inf))
        assert gpus == shape.gpus
        assert 0 <= whole - gpus < size[shape.pool]
        assert whole % size[shape.pool] == 0
    for pool in size:  # the least that it can run on is always there
        if job.min_gpus <= quotas.get(pool, math.inf):
            assert Shape(pool, job.min_gpus) in found.column


def test_a_kind_of_gpu_on_which_a_job_cannot_run_is_not_on_its_menu():
    job = a_job(speed=Linear(kinds={"A100": 3.0}), gpus=2)
    both = menu(job, on_demand("t", gpu="T4"), on_demand("a", gpu="A100"))
    assert {shape.pool for shape in both.shapes} == {"A100x4:on-demand"}
    none = menu(job, on_demand("t", gpu="T4"))
    assert none.shapes == ()
    assert none.rate_EC.shape == none.hours(5.0).shape == (1, 0)


def test_widths_that_were_not_measured_are_left_out():
    job = a_job(speed=Table(rates={"T4": {2: 3.0, 4: 5.0}}), max_gpus=12)
    assert [shape.gpus for shape in menu(job).shapes] == [2, 3, 4]


def test_reclaims_slow_spot_nodes_down_the_more_the_more_nodes_there_are():
    facts = {"restart_s": 180.0, "checkpoint_every_s": 300.0}
    job = a_job(speed=Linear(), gpus=1, max_gpus=16, **facts)
    spot = menu(job, an_offer(gpus=4, hazard_per_h=1 / 3))
    steady = menu(job, on_demand(hazard_per_h=1 / 3))
    for shape, rate in zip(spot.shapes, spot.rate_EC[0], strict=True):
        nodes = math.ceil(shape.gpus / 4)
        there = steady.rate_EC[0, steady.column[Shape("T4x4:on-demand", shape.gpus)]]
        assert there == pytest.approx(shape.gpus * 3600)
        hits = nodes / 3 / 3600
        kept = math.exp(-hits * 180) * hits * 300 / math.expm1(hits * 300)  # Daly's model, writing for nothing
        assert rate == pytest.approx(there * kept)


def test_nodes_that_are_taken_faster_than_a_job_restarts_make_it_slower_not_faster():
    job = a_job(max_gpus=8, gpus=1, restart_s=1800.0, checkpoint_every_s=60.0)
    found = menu(job, an_offer(gpus=4, hazard_per_h=1.5))
    assert found.shapes[-1].gpus == 8
    assert found.rate_EC[0, -1] < found.rate_EC[0, -2] < 4 * 3600 * math.exp(-0.75)


def test_a_job_that_keeps_nothing_is_offered_spot_only_where_a_notice_saves_its_work():
    job = a_job(restart_s=60.0, gpus=4)
    assert menu(job, an_offer(gpus=4, hazard_per_h=0.5)).shapes == ()
    warned = menu(job, an_offer(gpus=4, hazard_per_h=0.5, notice_s=30.0))
    assert warned.rate_EC[0, 0] == pytest.approx(warned.shapes[0].gpus * 3600 * math.exp(-0.5 * 60 / 3600))


def test_boot_and_restart_are_waited_for_at_the_start_and_only_the_restart_later():
    found = menu(a_job(restart_s=60.0), on_demand(boot_s=120.0))
    assert found.start_C.tolist() == [180 / 3600]
    assert found.restart_C.tolist() == [60 / 3600]


# ---------------------------------------------------------------------- kinds


def test_jobs_of_one_kind_have_one_menu_however_large_and_whenever_they_come():
    sites = Terms.from_snapshot(Kernel([on_demand()]).snapshot()).sites
    first = a_job("a", work=5.0, speed=Amdahl(parallel=0.9), gpus=1, max_gpus=8)
    again = a_job("b", submit_s=70.0, work=9.0, speed=Amdahl(parallel=0.9), gpus=3, max_gpus=8, weight=2.0)
    assert menu_of(first, sites) is menu_of(again, sites)


@pytest.mark.parametrize(
    "fields",
    [
        {"speed": PowerLaw(exponent=0.9)},
        {"speed": Amdahl(parallel=0.9, kinds={"T4": 2.0})},
        {"max_gpus": 9},
        {"min_gpus": 2, "gpus": 2},
        {"restart_s": 1.0},
        {"checkpoint_every_s": 1.0},
        {"checkpoint_write_s": 1.0},
    ],
)
def test_jobs_that_differ_in_anything_that_matters_do_not_share_a_menu(fields):
    sites = Terms.from_snapshot(Kernel([on_demand()]).snapshot()).sites
    plain = {"speed": Amdahl(parallel=0.9), "max_gpus": 8}
    assert menu_of(a_job(**plain), sites) is not menu_of(a_job(**{**plain, **fields}), sites)


# ---------------------------------------------------------------------- money


def test_rent_is_that_of_the_cheapest_offer_that_can_be_had():
    cheap, dear = on_demand("cheap", usd_per_h="4", pool="p"), on_demand("dear", usd_per_h="6", pool="p")
    kernel = Kernel([cheap, dear])
    assert Terms.from_snapshot(kernel.snapshot()).rent_R == (1.0,)
    kernel.handle(PriceChanged(0.0, "cheap", Price.from_usd_per_h("8")))
    assert Terms.from_snapshot(kernel.snapshot()).rent_R == (1.5,)
    assert Terms.from_snapshot(kernel.snapshot()).listed_R == (1.0,)
    kernel.handle(AvailabilityChanged(1.0, "dear", 0))
    assert Terms.from_snapshot(kernel.snapshot()).rent_R == (2.0,)
    kernel.handle(AvailabilityChanged(2.0, "cheap", 0))
    assert Terms.from_snapshot(kernel.snapshot()).rent_R == (1.5,)  # what there would be


def test_what_is_owned_costs_nothing_more():
    owned = Kernel([on_demand()], limits={"o": Limit(min_nodes=2, max_nodes=2)})
    assert Terms.from_snapshot(owned.snapshot()).rent_R == (0.0,)
    more = Kernel([on_demand()], limits={"o": Limit(min_nodes=2, max_nodes=3)})
    assert Terms.from_snapshot(more.snapshot()).rent_R == (1.0,)


def test_a_job_pays_for_whole_nodes_and_where_all_are_full_for_its_gpus():
    found = menu(a_job(max_gpus=8), on_demand(gpus=4))
    by_width = {shape.gpus: column for column, shape in enumerate(found.shapes)}
    whole, full = found.pay(10.0, (1.0,)), found.rent_when_full((1.0,))
    assert [whole[by_width[k]] for k in (1, 2, 3, 4, 8)] == [14.0, 14.0, 14.0, 14.0, 18.0]
    assert [full[by_width[k]] for k in (1, 2, 3, 4, 8)] == [1.0, 2.0, 3.0, 4.0, 8.0]
