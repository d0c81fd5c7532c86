"""What a policy sees: progress between reports, attained service, and how much of an offer could be held."""

from __future__ import annotations

import math

import pytest

from sublet.domain.budget import Limit
from sublet.domain.plan import JobState, OfferState, Phase, Plan
from sublet.testing.values import a_job, an_offer


def state(phase=Phase.RUNNING, **fields):
    facts = {"gpus": 2, "spread": (2,), "gpu": "T4", "done": 10.0, "as_of_s": 100.0, "held_since_s": 90.0, **fields}
    return JobState(job=a_job(work=50.0, gpus=2), seq=0, phase=phase, **facts)


def test_a_running_job_goes_on_at_its_speed_since_the_last_report():
    assert state().done_at(105.0) == 20.0  # two GPUs, five seconds
    assert state().remaining_at(105.0) == 30.0


def test_a_job_is_never_more_than_done():
    assert state().done_at(1e6) == 50.0
    assert state().remaining_at(1e6) == 0.0


@pytest.mark.parametrize("now_s", [0.0, 99.9, 100.0])
def test_before_it_trains_nothing_is_added(now_s):
    assert state().done_at(now_s) == 10.0


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_only_a_running_job_makes_progress(phase):
    assert state(phase).done_at(1e6) == 10.0


def test_attained_service_counts_the_gpus_held_since():
    assert state(gpu_s=7.0).attained_gpu_s(100.0) == 7.0 + 2 * 10.0


@pytest.mark.parametrize(
    ("most", "available", "expected"),
    [(None, None, math.inf), (3, None, 3), (None, 2, 2), (3, 2, 2), (2, 3, 2), (None, 0, 0)],
)
def test_what_could_be_held_is_the_smaller_of_limit_and_supply(most, available, expected):
    offer = an_offer()
    limit = Limit(max_nodes=most)
    assert OfferState(offer=offer, price=offer.price, limit=limit, held=0, available=available).most == expected


def test_an_empty_plan_changes_nothing():
    plan = Plan()
    assert (plan.shapes, plan.hold, plan.ask_again_s) == ({}, {}, None)
