"""Whoever is asked how long a shape takes under reclaims gives one number: policy, plan, advice, explain and ps.

What a live controller says (`--dry-run`, `explain`, `ps`) stands beside these in
`tests/unit/runtime/controller_api/test_explain_live.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sublet.advise.evaluate import UNLUCKY, Ask, Weighed
from sublet.advise.profiles import Profile
from sublet.domain.money import Price as Rent
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import JobState
from sublet.domain.shape import Shape, packed
from sublet.market.catalogue import load_gpus
from sublet.perf.preemption import Reclaims, believe_reclaims, read_reclaims, shapes_kept, spot_speed, toll_of
from sublet.perf.speedup import Linear
from sublet.policies.price.policy import Price
from sublet.rental.shapes import JobClass, shapes_of
from sublet.runtime.controller_api.explain import weigh_by_rent
from sublet.runtime.controller_api.remaining import estimate_remaining
from sublet.testing.driver import Driver
from sublet.testing.values import a_job
from tests.rigs.sizes import examples

BOOT_S, PAUSE_S = 60.0, 60.0  # no shorter than the boot: survivors of an advised cluster gain nothing by going on
WRITE_S = 20.0  # 10 GB to object storage
SPOT = Offer(
    id="spot",
    gpu="T4",
    gpus_per_node=4,
    market=Market.SPOT,
    price=Rent.from_usd_per_h("0.2"),
    cloud="aws",
    region="us-east-1",
    zone="us-east-1a",
    instance_type="toy",
    hazard_per_h=0.6,
    boot_s=BOOT_S,
)
GPUS = 8
HOURS = 100.0  # undisturbed


def a_spot_job(**facts):
    pauses = {"restart_s": PAUSE_S, "checkpoint_write_s": WRITE_S, **facts}
    return a_job("j", work=GPUS * HOURS * 3600.0, speed=Linear(), gpus=GPUS, min_gpus=GPUS, max_gpus=GPUS, **pauses)


def hours_by_asker(offer, job):
    """Hours of training by all that answer from an offer and a job, the first start left out."""
    driver = Driver([offer])
    driver.submit(job)
    snapshot = driver.kernel.snapshot()
    start_h = (BOOT_S + PAUSE_S) / 3600
    shape = Shape(offer.pool, GPUS)
    (weighed,) = Price().decide(snapshot).weighed["j"].rows()
    (planned,) = shapes_of(JobClass(name="j", like=job, works=((job.work, 1),), per_h=1.0), [offer])
    state = JobState(job=job, seq=0, as_of_s=0.0, held_since_s=0.0)
    return {
        "policy": weighed.hours - start_h,
        "plan": planned.hours - start_h,
        "explain and dry run": weigh_by_rent(snapshot, state)[shape].hours - start_h,
    }


def hours_by_ps(offer, job):
    state = Driver([offer]).kernel.snapshot().offers[offer.id]
    facts = {"spot_nodes": 2 if offer.market is Market.SPOT else 0, "done": 0.0, "left": job.work, "usd_per_h": 1.0}
    ahead = estimate_remaining([state], job, Shape(offer.pool, GPUS), packed(GPUS, 4), **facts)
    return ahead.left_s["p50"] / 3600


def hours_by_advice(offer):
    """And by how much an unlucky run is later."""
    rate = 10.0 * GPUS
    profile = Profile(
        name="toy",
        batch=4096,
        state_bytes=0.5e9 * WRITE_S,
        restart_s=PAUSE_S - WRITE_S,  # the adviser counts the reading of a checkpoint beside it
        source="a test",
        rates={"T4": {1: 10.0, 4: 40.0, 8: rate}},
        spread=0.0,
    )
    ask = Ask(profile=profile, samples=rate * HOURS * 3600, most_nodes=2, provision_s=BOOT_S)
    weighed = Weighed.of(ask, [offer], load_gpus())
    (choice,) = (
        choice
        for choice in map(weighed.choice, range(len(weighed.clusters.hours_C)))
        if (choice.keeper, choice.nodes, choice.market) == ("storage", 2, "spot")
    )
    assert not choice.goes_on
    start_h = (BOOT_S + PAUSE_S - WRITE_S) / 3600
    return choice.hours - start_h, choice.late_h - choice.hours


NOTICES_S = st.sampled_from([0.0, WRITE_S / 2, WRITE_S, 45.0, 120.0])  # too short to write, just enough, in plenty
SHARES = st.one_of(st.just(0.0), st.floats(0.01, 1.0))


@settings(max_examples=examples(50), deadline=None)
@given(st.floats(0.01, 3.0), NOTICES_S, SHARES)
@example(3.0, 120.0, 0.0)
@example(3.0, 0.0, 0.3)
@example(3.0, 120.0, 1.0)
def test_policy_plan_advice_and_explain_say_one_number(hazard, notice_s, share):
    offer = replace(SPOT, hazard_per_h=hazard, notice_s=notice_s, reclaim_share=share)
    found = hours_by_asker(offer, a_spot_job())
    found["advice"], later_h = hours_by_advice(offer)
    stated = Reclaims(per_h=hazard, boot_s=BOOT_S, notice_s=notice_s, share=share)
    exact = HOURS / spot_speed(stated, a_spot_job(), [2])[0]
    assert found == pytest.approx(dict.fromkeys(found, exact), rel=1e-9)
    assert hours_by_ps(offer, a_spot_job()) == pytest.approx(exact, rel=0.02)  # the middle, not the mean
    toll = toll_of(stated, a_spot_job(), "T4", 4, [Shape("p", GPUS)])
    start_h = (BOOT_S + PAUSE_S - WRITE_S) / 3600  # in which hits are counted, too
    varies = toll.varies_C[0] * HOURS * 3600 * (exact + start_h) / exact
    assert later_h == pytest.approx(UNLUCKY * math.sqrt(varies) / 3600, rel=1e-6)


@pytest.mark.parametrize("facts", [{"notice_s": 120.0}, {"reclaim_share": 0.3}, {"market": Market.ON_DEMAND}])
@pytest.mark.parametrize("pauses", [{}, {"checkpoint_write_s": 0.0, "checkpoint_every_s": 600.0}])
def test_notices_losses_of_several_nodes_and_quick_checkpoints_count_alike(facts, pauses):
    offer, job = replace(SPOT, pool="p", **facts), a_spot_job(**pauses)
    exact = HOURS / spot_speed(read_reclaims(offer), job, [2])[0]
    found = hours_by_asker(offer, job)
    assert found == pytest.approx(dict.fromkeys(found, exact), rel=1e-9)
    assert hours_by_ps(offer, job) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("facts", [{}, {"notice_s": 120.0}, {"reclaim_share": 0.3}])
def test_survivors_that_carry_on_count_alike(facts):
    offer = replace(SPOT, pool="p", boot_s=600.0, **facts)
    job = replace(a_spot_job(checkpoint_write_s=0.0, checkpoint_every_s=600.0), survives=True, min_gpus=4)
    exact = HOURS / shapes_kept(read_reclaims(offer), job, "T4", 4, [Shape("p", GPUS)])[0]
    assert (
        exact
        < 0.99 * HOURS / shapes_kept(read_reclaims(offer), replace(job, survives=False), "T4", 4, [Shape("p", GPUS)])[0]
    )
    shapes = shapes_of(JobClass(name="j", like=job, works=((job.work, 1),), per_h=1.0), [offer])
    (planned,) = (shape.hours - (600.0 + PAUSE_S) / 3600 for shape in shapes if shape.gpus == GPUS)
    assert planned == pytest.approx(exact, rel=1e-9)
    assert hours_by_ps(offer, job) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("survives", [False, True])
def test_in_a_pool_of_both_markets_all_say_one_number_for_every_mix(survives):
    spot = replace(SPOT, pool="p", boot_s=600.0)
    both = [
        spot,
        replace(spot, id="steady", market=Market.ON_DEMAND, hazard_per_h=0.0, price=Rent.from_usd_per_h("0.5")),
    ]
    job = replace(a_spot_job(checkpoint_every_s=600.0), survives=survives, min_gpus=4, hurry=True)
    driver = Driver(both)
    driver.submit(job)
    snapshot = driver.kernel.snapshot()
    weighed = {row.shape: row.hours for row in Price().decide(snapshot).weighed["j"].rows()}
    asked = {shape: row.hours for shape, row in weigh_by_rent(snapshot, JobState(job=job, seq=0)).items()}
    assert {shape.steady for shape in asked} == {0, 4, 8}
    for shape, hours in [*weighed.items(), *asked.items()]:
        kept = shapes_kept(read_reclaims(spot), job, "T4", 4, [shape])[0]
        exact = job.work / shape.gpus / 3600 / kept
        assert hours - (600.0 + PAUSE_S) / 3600 == pytest.approx(exact, rel=1e-9), shape
        facts = {"spot_nodes": (shape.gpus - shape.steady) // 4, "done": 0.0, "left": job.work, "usd_per_h": 1.0}
        states = list(snapshot.offers.values())
        ahead = estimate_remaining(states, job, shape, packed(shape.gpus, 4), **facts)
        assert ahead.left_s["p50"] / 3600 == pytest.approx(exact, rel=0.02)


def test_reclaims_count_per_node_not_per_gpu():
    job, small = a_spot_job(), replace(SPOT, gpus_per_node=1, pool="p")
    assert hours_by_asker(small, job)["plan"] > hours_by_asker(SPOT, job)["plan"] + 1.0


def test_what_an_offer_states_is_believed_until_something_was_seen():
    state = Driver([SPOT]).kernel.snapshot().offers["spot"]
    assert believe_reclaims([state]) == read_reclaims(SPOT)
