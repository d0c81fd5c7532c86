"""What the study of hosts reads out of what workers printed, and what it calls right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet import plugins
from sublet.testing.hosts.blows import BLOWS, LEASE_S, LONG_S, SHORT_S
from sublet.testing.hosts.study import TOLERANCE, verdict
from sublet.testing.hosts.trial import Outcome, at_of, executed, result_of

FIRST = {"job-1.1.0": ["BEGIN 0", *(f"AT {n}" for n in range(1, 51))], "job-1.1.1": ["BEGIN 0", "AT 1", "AT 52"]}
SECOND = {"job-1.2.0": ["noise", "BEGIN 40", *(f"AT {n}" for n in range(41, 101)), 'RESULT {"loss": 0.25}']}
CALM = Outcome(phase="finished", struck=True, steps_lost=0, seconds=10.0, usd=0.1, loss=0.25)


def test_steps_that_were_made_twice_are_counted_round_by_round():
    assert executed({**FIRST, **SECOND}) - 100 == 12  # the second round began twelve steps before the end of the first
    assert executed(SECOND) == 60
    assert executed({"job-1.1.0": ["no step was begun"]}) == 0


def test_the_furthest_step_is_any_workers_and_the_result_the_last_that_was_told():
    assert at_of(FIRST) == 52
    assert at_of({}) == 0
    assert result_of({**FIRST, **SECOND}) == 0.25
    assert result_of(FIRST) is None


@pytest.mark.parametrize(
    ("facts", "right"),
    [
        ({}, True),
        ({"loss": 0.25 * (1 + TOLERANCE / 2)}, True),
        ({"loss": 0.25 * (1 + TOLERANCE * 2)}, False),
        ({"loss": None}, False),
        ({"phase": "failed"}, False),
        ({"struck": False}, False),  # nothing happened to it, so it shows nothing
    ],
)
def test_right_is_what_ended_after_the_blow_as_it_would_have_without(facts, right):
    assert verdict(replace(CALM, **facts), CALM) is right


def test_the_study_is_found_by_name_and_strikes_in_every_way():
    assert plugins.load("sublet.studies", "hosts").name == "hosts"
    assert len({blow.name for blow in BLOWS}) == len(BLOWS) == 6
    assert [blow.takes_all for blow in BLOWS] == [False, False, True, False, False, False]
    assert SHORT_S < LEASE_S < LONG_S
