"""Lives on the shipped provider for AWS, over EC2 in memory; and what such lives have found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet_lab.world.kinds.clouds import CLOUD_KINDS
from sublet_lab.world.life import live
from sublet_lab.world.story import OF_CLOUD, Fault, JobPlan, Story, draw_story

JOB = JobPlan(name="job0", at_s=5.0, max_workers=2, steps=600, step_s=0.5, boot_s=2.0, write_s=1.0)
STORY = Story(seed=1, jobs=(JOB,), faults=(), cloud="aws", most_nodes=2)


def broken(*faults, **facts):
    return live(replace(STORY, faults=tuple(faults), **facts)).broken


def test_every_fault_of_a_cloud_can_be_drawn():
    assert {cloud: tuple(kinds) for cloud, kinds in CLOUD_KINDS.items()} == OF_CLOUD


@pytest.mark.parametrize("seed", range(10))
def test_lives_on_ec2_break_no_law(seed):
    assert live(draw_story(seed, cloud="aws")).broken is None


def test_the_same_seed_is_the_same_life_there():
    first, second = live(draw_story(3, cloud="aws")), live(draw_story(3, cloud="aws"))
    assert (first.digest, first.events) == (second.digest, second.events)


@pytest.mark.parametrize("rng", range(3))
def test_the_bill_is_right_though_somebody_sets_the_clock(rng):
    """I6: EC2's times were read by our own clock, and a node of five minutes cost one, or an hour."""
    assert broken(Fault(at_s=60.0, kind="clock", rng=rng)) is None


def test_an_agent_that_comes_for_the_first_time_proves_nothing_about_a_lease():
    """I6: nodes that booted while nobody was there made a controller believe that its clock was wrong."""
    assert broken(Fault(at_s=6.5, kind="kill_controller", rng=1), seed=0) is None  # it is away for fifty seconds
