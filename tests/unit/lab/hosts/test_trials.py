"""What the study of hosts reads out of what workers printed, and what it calls right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet import plugins
from sublet.runtime.providers.aws.config import AwsConfig
from sublet_lab.hosts.draws import draw
from sublet_lab.hosts.faults import FIVE_MINUTES_S, HOST_FAULTS, LEASE_S, LONG_S, SHORT_S, SLOW_S
from sublet_lab.hosts.first_step import first_of_all
from sublet_lab.hosts.seeds import made_twice, went_back
from sublet_lab.hosts.split import PARTS, marks_of_events, marks_of_words, rows_of
from sublet_lab.hosts.study import TOLERANCE, most_lost, slowed, verdict
from sublet_lab.hosts.trial import Outcome, at_of, executed, result_of

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


def test_what_may_be_lost_of_a_script_is_less_than_all_that_it_did():
    """Or the check of a folder that is carried could not fail."""
    for blow in HOST_FAULTS:
        assert (most_lost("ddp", blow) is not None) == blow.takes_rank_0
        assert (most_lost("ddp", blow) or 0) < blow.at * 240
        assert most_lost("trainer", blow) is None
        assert (most_lost("disk", blow) > 0) == (most_lost("sdk", blow) > 0) == blow.takes_all


def test_the_study_is_found_by_name_and_strikes_in_every_way():
    assert plugins.load("sublet.studies", "hosts").name == "hosts"
    assert len({blow.name for blow in HOST_FAULTS}) == len(HOST_FAULTS) == 8
    assert [blow.name for blow in HOST_FAULTS if blow.takes_all] == [
        "all nodes at once",
        "the controller host killed, another rented",
    ]
    assert [blow.on_host for blow in HOST_FAULTS] == [False] * 7 + [True]
    assert SHORT_S < LEASE_S < LONG_S


def test_a_job_outlasts_the_five_minutes_for_which_a_node_is_cut_off():
    (blow,) = [blow for blow in HOST_FAULTS if blow.comes_back]
    assert (1.0 - blow.at) * 240 * SLOW_S > FIVE_MINUTES_S
    for nodes in (2, 4):
        *_, pace_s, shared = slowed(("python", "script.py", "sdk", "240", "0.1"), nodes)
        assert (float(pace_s) / (nodes - 1), shared) == (pytest.approx(SLOW_S), "shared")
    assert 3 * FIVE_MINUTES_S == blow.lease_s == AwsConfig.__dataclass_fields__["lease_s"].default


def test_the_first_step_of_all_is_that_of_the_last_worker_to_make_one():
    printed = {"j.1.0": ["noise", "AT 1 1 10.5", "AT 2 1 11.0"], "j.1.1": ["AT 1 1 10.7"]}
    assert first_of_all(printed, 2) == 10.7
    assert first_of_all({**printed, "j.1.1": ["noise"]}, 2) is None


def test_a_seed_draws_the_same_again_and_all_kinds_come():
    drawn = [draw(seed) for seed in range(60)]
    assert [[blow.name for blow in each.blows] for each in drawn] == [
        [blow.name for blow in draw(seed).blows] for seed in range(60)
    ]
    assert {each.script for each in drawn} == {"sdk", "ddp", "trainer"}
    kinds = ("without notice", "a node with", "unplugged", "controller", "on a link")
    names = [blow.name for each in drawn for blow in each.blows]
    assert all(any(kind in name for name in names) for kind in kinds)
    assert all(0.0 < blow.at < 1.0 for each in drawn for blow in each.blows)


def test_a_step_of_an_older_generation_after_one_of_a_newer_is_made_twice():
    in_turn = {"j.1.0": ["AT 1 8 10.0", "AT 2 8 10.5"], "j.2.0": ["AT 3 9 11.0", "noise"]}
    assert not made_twice(in_turn)
    assert not made_twice({})
    assert made_twice({**in_turn, "j.1.1": ["AT 3 8 11.2"]})


def test_a_register_may_stay_or_go_on():
    assert not went_back([1, 1, 2, 5])
    assert not went_back([])
    assert went_back([1, 3, 2])


def test_of_each_mark_the_last_host_counts_and_a_part_that_was_over_by_then_took_nothing():
    words = {"w0": ["WHEN begun 105.0", "WHEN formed 107.0"], "w1": ["WHEN begun 106.5", "noise", "WHEN formed 107.5"]}
    events = [
        {"kind": "NodeReady", "at": "1970-01-01T00:01:42.000+00:00"},
        {"kind": "NodeReady", "at": "1970-01-01T00:01:43.500+00:00"},
        {"kind": "StartJob", "at": "1970-01-01T00:01:43.500+00:00"},
        {"kind": "NodeReady", "at": "1970-01-01T00:09:00.000+00:00"},  # of the job after it
    ]
    marks = marks_of_words(words) | marks_of_events(events, 2) | {"files": 103.0}
    rows = {what: (took, since) for what, took, since in rows_of(marks, 100.0)}
    assert rows[PARTS["ready"]] == ("3.50", "3.50")
    assert rows[PARTS["files"]] == ("0.00", "3.00")
    assert rows[PARTS["begun"]] == ("3.00", "6.50")
    assert rows[PARTS["formed"]] == ("1.00", "7.50")
    assert rows[PARTS["stepped"]] == ("not seen", "")
    assert marks_of_events(events[:1], 2) == {}
